"""From raw rewards to advantages and metrics around a group filter; numpy only.

N rows are P groups of G consecutive rollouts. NaN marks a row without a score.
"""

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen2_cli.core.filters import GroupFilter, Selection
from ragen2_cli.core.groups import (
    DEAD_TOLERANCE,
    GroupStats,
    LossScaling,
    advantages,
    group_stats,
    loss_scaling_factor,
)

Floats = NDArray[np.float64]


def replace_last(log: MutableSequence[Any], values: Sequence[Any]) -> None:
    """Put values in the place of as many that were appended last (fewer, if there are fewer)."""
    for _ in range(min(len(log), len(values))):
        log.pop()
    log.extend(values)


def as_written(values: ArrayLike) -> Floats:
    """Values in float64; those in float32 as the decimal that they print as: 0.9, not 0.8999999762.

    TRL keeps rewards in float32, whose rounding would part spreads that are equal, such as that of
    0.9 and -0.1 and that of 1 and 0.
    """
    array = np.asarray(values)
    return (array.astype(str) if array.dtype == np.float32 else array).astype(np.float64)


def weighted_rewards(rewards_N_F: ArrayLike, weights_F: ArrayLike) -> Floats:
    """Raw reward of each row: the weighted sum over reward functions, before any normalization.

    A function that gave a row no score (NaN) is left out of its sum; a row that no function scored
    is NaN.
    """
    rewards = as_written(rewards_N_F)
    unscored = np.isnan(rewards).all(axis=1)
    total = np.nansum(rewards * as_written(weights_F), axis=1)
    return np.where(unscored, np.nan, total)


def normalized_rewards(rewards_N_F: ArrayLike, weights_F: ArrayLike, group_size: int) -> Floats:
    """What TRL's ``normalize_then_sum`` makes of each row: the weighted sum of its z-scores.

    Each function's rewards are normalized inside their group, (r - mean) / (std + 1e-4), where a
    function that does not tell a group's rows apart gives exactly 0. Terms that cancel give exactly
    0 too, not rounding noise. NaN as in ``weighted_rewards``.
    """
    rewards = as_written(rewards_N_F)
    terms = as_written(weights_F) * np.stack(
        [advantages(column.reshape(-1, group_size), "group").ravel() for column in rewards.T], 1
    )
    total = terms.sum(axis=1)
    largest_P = np.abs(terms).sum(axis=1).reshape(-1, group_size).max(axis=1)
    cancel = np.abs(total) <= DEAD_TOLERANCE * np.repeat(largest_P, group_size)
    return np.where(np.isnan(rewards).all(axis=1), np.nan, np.where(cancel, 0.0, total))


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


def nothing_left(batches: int, selection: Selection | None) -> str:
    """Say why training stops after ``batches`` batches in a row without a row to train on."""
    why = selection.reason if selection else ""
    return (
        f"{batches} batches in a row left nothing to train on:"
        f" {why or 'no token of a kept completion is trained on'}"
    )


@dataclass(frozen=True, eq=False)
class Decision:
    """What becomes of the rows of one generation batch.

    Attributes:
        selection: The filter's choice of groups.
        stats: Statistics of the groups' rewards, over the whole batch before the filter.
        advantages_N: Final advantages of every row, those of dropped groups too.
        kept_N: True for the rows that are trained on: scored, in a kept group.
        scale_N: What loss scaling and soft weights multiply a row's advantage by, dead or not.
    """

    selection: Selection
    stats: GroupStats
    advantages_N: Floats
    kept_N: NDArray[np.bool_]
    scale_N: Floats

    def metrics(self) -> dict[str, float]:
        """Counts and statistics for the log.

        ``group_reward_std`` and ``group_reward_var`` are means over groups. ``filter_target`` is
        missing where the filter had no target.
        """
        groups, kept = len(self.stats.dead_P), len(self.selection.kept)
        metrics = {
            "groups": float(groups),
            "kept_groups": float(kept),
            "dead_groups": float(self.stats.dead_P.sum()),
            "kept_ratio": kept / groups,
            "group_reward_std": float(self.stats.std_P.mean()),
            "group_reward_var": float(self.stats.var_P.mean()),
        }
        if self.selection.target is not None:
            metrics["filter_target"] = float(self.selection.target)
        return metrics


@dataclass(frozen=True)
class Rules:
    """How groups are chosen and advantages scaled.

    Attributes:
        group_filter: Chooses the groups.
        loss_scaling: Multiply advantages by the kept share of groups, or by its root.
        soft_weighting: Multiply advantages by a group's spread over the largest spread.

    Raises:
        UserError: An unknown ``loss_scaling``, at construction.
    """

    group_filter: GroupFilter
    loss_scaling: LossScaling = "none"
    soft_weighting: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown name."""
        loss_scaling_factor(1, 1, self.loss_scaling)

    def decide(
        self,
        rewards_N: Floats,
        spread_N: Floats,
        advantages_N: Floats,
        group_size: int,
        score_P: Floats | None = None,
    ) -> Decision:
        """Choose groups by the spread and give every row its final advantage.

        Dead groups and rows without a score are exactly 0, where dividing rounding noise by its
        own size would leave up to 1e-4.

        Args:
            rewards_N: Raw rewards; with ``normalize_then_sum`` the ``normalized_rewards``, which
                TRL's advantages come from.
            spread_N: What the filter judges; the rewards, or the outcome alone.
            advantages_N: TRL's advantages.
            group_size: Rollouts per group.
            score_P: Scores that rewards cannot give, passed on to the filter.
        """
        stats = group_stats(rewards_N.reshape(-1, group_size))
        selection = self.group_filter.select(spread_N.reshape(-1, group_size), score_P=score_P)
        groups = len(stats.dead_P)
        scaling = loss_scaling_factor(len(selection.kept), groups, self.loss_scaling)
        scale_P = scaling * (selection.weight_P if self.soft_weighting else np.ones(groups))
        factor_N = np.repeat(np.where(stats.dead_P, 0.0, scale_P), group_size)
        scored_N = ~np.isnan(rewards_N)
        return Decision(
            selection,
            stats,
            np.where(scored_N & (factor_N != 0), advantages_N * factor_N, 0.0),
            scored_N & np.repeat(np.isin(np.arange(groups), selection.kept), group_size),
            np.repeat(scale_P, group_size),
        )
