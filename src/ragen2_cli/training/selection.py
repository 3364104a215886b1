"""From raw rewards to advantages and metrics around a group filter; numpy only.

N rows are P groups of G consecutive rollouts. NaN marks a row without a score.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen2_cli.core.filters import Selection
from ragen2_cli.core.groups import GroupStats, LossScaling, loss_scaling_factor

Floats = NDArray[np.float64]


def weighted_rewards(rewards_N_F: ArrayLike, weights_F: ArrayLike) -> Floats:
    """Raw reward of each row: the weighted sum over reward functions, before any normalization.

    A function that gave a row no score (NaN) is left out of its sum; a row that no function scored
    is NaN.
    """
    rewards = np.asarray(rewards_N_F, dtype=np.float64)
    unscored = np.isnan(rewards).all(axis=1)
    total = np.nansum(rewards * np.asarray(weights_F, dtype=np.float64), axis=1)
    return np.where(unscored, np.nan, total)


def score_from_rows(values_N: Floats, group_size: int, score: str) -> Floats:
    """Group scores that need more than rewards: ``length``, ``entropy``, ``entropy_var``.

    Args:
        values_N: Per row, its completion length or mean token entropy; NaN where it has none.
        group_size: Rollouts per group.
        score: ``length`` and ``entropy`` are means over a group's rows, ``entropy_var`` the sample
            variance (ddof 1). NaN where a group has too few rows for it.
    """
    values = values_N.reshape(-1, group_size)
    count = (~np.isnan(values)).sum(axis=1)
    mean = np.divide(
        np.nansum(values, axis=1), count, out=np.full(len(values), np.nan), where=count > 0
    )
    if score != "entropy_var":
        return mean
    squares = np.nansum((values - mean[:, None]) ** 2, axis=1)
    return np.divide(squares, count - 1, out=np.full(len(values), np.nan), where=count > 1)


def shape_advantages(
    advantages_N: Floats,
    rewards_N: Floats,
    stats: GroupStats,
    selection: Selection,
    *,
    loss_scaling: LossScaling = "none",
    soft_weighting: bool = False,
) -> Floats:
    """Final advantages of every row, those of dropped groups too.

    Dead groups and rows without a score are exactly 0, where normalizing rounding noise would
    leave up to 1e-4. ``loss_scaling`` multiplies by the kept share of groups (or its root),
    ``soft_weighting`` by the group's spread over the largest one.
    """
    groups = len(stats.dead_P)
    factor_P = np.where(stats.dead_P, 0.0, 1.0)
    factor_P *= loss_scaling_factor(len(selection.kept), groups, loss_scaling)
    if soft_weighting:
        factor_P *= selection.weight_P
    factor_N = np.repeat(factor_P, len(rewards_N) // groups)
    live_N = ~np.isnan(rewards_N) & (factor_N != 0)
    return np.where(live_N, advantages_N * factor_N, 0.0)


def selection_metrics(selection: Selection, stats: GroupStats) -> dict[str, float]:
    """What one selection says, for the log; statistics over the whole batch before the filter.

    ``group_reward_std`` and ``group_reward_var`` are means over groups. ``filter_target`` is
    missing where the filter had no target.
    """
    groups = len(stats.dead_P)
    metrics = {
        "groups": float(groups),
        "kept_groups": float(len(selection.kept)),
        "dead_groups": float(stats.dead_P.sum()),
        "kept_ratio": len(selection.kept) / groups,
        "group_reward_std": float(stats.std_P.mean()),
        "group_reward_var": float(stats.var_P.mean()),
    }
    if selection.target is not None:
        metrics["filter_target"] = float(selection.target)
    return metrics
