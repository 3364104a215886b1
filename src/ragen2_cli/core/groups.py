"""Reward groups: statistics, advantages, and the bookkeeping around them.

A group is the G rollouts of one prompt; a batch is P groups. Everything here is per *episode*,
never per turn row, and works on the raw rewards before any normalization. A reward of NaN or None
means "no score" (an infrastructure failure, a grader that crashed): the row is left out, not read
as 0.
"""

import math
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen2_cli.errors import UserError, did_you_mean

DEAD_TOLERANCE = 1e-6
"""A group is dead when its scored rewards range over at most this share of its largest |reward|."""

Scale = Literal["group", "batch", "none"]
LossScaling = Literal["none", "linear", "sqrt"]
SCALES: tuple[Scale, ...] = get_args(Scale)
LOSS_SCALINGS: tuple[LossScaling, ...] = get_args(LossScaling)


@dataclass(frozen=True, eq=False)
class GroupStats:
    """Statistics of each group over its scored rows.

    Attributes:
        mean_P: Mean reward; NaN for a group without a scored row.
        std_P: Sample standard deviation (ddof 1); exactly 0 for a dead group.
        var_P: Sample variance (ddof 1); exactly 0 for a dead group.
        dead_P: True where the group carries no signal (see ``DEAD_TOLERANCE``), which includes
            groups with fewer than two scored rows.
        scored_P: Number of scored rows.
    """

    mean_P: NDArray[np.float64]
    std_P: NDArray[np.float64]
    var_P: NDArray[np.float64]
    dead_P: NDArray[np.bool_]
    scored_P: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RewardMatrix:
    """Rewards as a rectangle, and how many of its columns are real rows of each group."""

    rewards_P_G: NDArray[np.float64]
    rows_P: NDArray[np.int64]


def reward_matrix(rewards_P_G: ArrayLike | Sequence[Sequence[Any]]) -> RewardMatrix:
    """Read rewards by group: an array, nested lists with None, or groups of uneven size.

    Uneven groups are padded with NaN and warned about; ``rows_P`` keeps their true sizes.

    Raises:
        UserError: Not two-dimensional, not numbers, or an infinite reward.
    """
    try:
        if isinstance(rewards_P_G, np.ndarray) or hasattr(rewards_P_G, "shape"):
            matrix = np.array(rewards_P_G, dtype=np.float64)
            rows = np.full(matrix.shape[:1], matrix.shape[1] if matrix.ndim == 2 else 0)
        else:
            matrix, rows = _from_lists(list(rewards_P_G))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"rewards by group: expected one row of numbers (or null) per group: {error}"
        ) from error
    if matrix.ndim != 2:
        raise UserError(
            f"rewards by group: expected shape (groups, rollouts), got {matrix.shape};"
            " reshape to one row per prompt"
        )
    if np.isinf(matrix).any():
        group = int(np.flatnonzero(np.isinf(matrix).any(axis=1))[0])
        raise UserError(f"rewards by group: group {group} has an infinite reward; return a number")
    return RewardMatrix(matrix, rows.astype(np.int64))


def _from_lists(groups: list[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rows = [np.array(group, dtype=np.float64) for group in groups]
    if any(row.ndim != 1 for row in rows):
        raise ValueError("a group is not a flat list")
    sizes = np.array([row.size for row in rows], dtype=np.int64)
    if sizes.size and sizes.min() != sizes.max():
        warnings.warn(
            f"groups have uneven sizes ({sizes.min()} to {sizes.max()} rollouts);"
            " missing rows count as unscored",
            stacklevel=4,
        )
    matrix = np.full((len(rows), int(sizes.max(initial=0))), np.nan)
    for index, row in enumerate(rows):
        matrix[index, : row.size] = row
    return matrix, sizes


def group_stats(rewards_P_G: ArrayLike | Sequence[Sequence[Any]]) -> GroupStats:
    """Mean, standard deviation, variance (ddof 1) and deadness of each group.

    Rows are sorted before they are summed, so the result does not depend on their order.

    Args:
        rewards_P_G: Raw episode returns by group; NaN or None is unscored. Accepts what
            ``reward_matrix`` accepts.

    Raises:
        UserError: Input that ``reward_matrix`` refuses.
    """
    rewards = np.sort(reward_matrix(rewards_P_G).rewards_P_G, axis=1)  # NaN sorts last
    scored = ~np.isnan(rewards)
    count = scored.sum(axis=1)
    filled = np.where(scored, rewards, 0.0)
    mean = np.divide(filled.sum(axis=1), count, out=np.full(len(count), np.nan), where=count > 0)
    high = np.where(scored, rewards, -np.inf).max(axis=1, initial=-np.inf)
    low = np.where(scored, rewards, np.inf).min(axis=1, initial=np.inf)
    spread = np.where(count > 0, high - low, 0.0)
    largest = np.abs(filled).max(axis=1, initial=0.0)
    dead = (count < 2) | (spread <= DEAD_TOLERANCE * largest)
    deviation = np.where(scored, rewards - np.where(count > 0, mean, 0.0)[:, None], 0.0)
    var = np.divide((deviation**2).sum(axis=1), count - 1, out=np.zeros(len(count)), where=~dead)
    return GroupStats(mean, np.sqrt(var), var, dead, count)


def advantages(
    rewards_P_G: ArrayLike | Sequence[Sequence[Any]], scale: Scale = "group", eps: float = 1e-4
) -> NDArray[np.float64]:
    """Group-relative advantages: (reward - group mean) / (std + eps), as TRL computes them.

    Args:
        rewards_P_G: Raw episode returns by group; NaN or None is unscored.
        scale: ``group`` divides by the group's std (ddof 1), ``batch`` by the std of all scored
            rows of the batch, ``none`` does not divide.
        eps: Added to the std.

    Returns:
        advantages_P_G. Dead groups (a group of one included) and unscored rows are exactly 0.

    Raises:
        UserError: Unknown ``scale``, or input that ``reward_matrix`` refuses.
    """
    if scale not in SCALES:
        raise UserError(
            f"advantages: unknown scale '{scale}'{did_you_mean(scale, SCALES)};"
            f" use one of {', '.join(SCALES)}"
        )
    rewards = reward_matrix(rewards_P_G).rewards_P_G
    stats = group_stats(rewards)
    live = ~np.isnan(rewards) & ~stats.dead_P[:, None]
    centered = np.where(live, rewards - stats.mean_P[:, None], 0.0)
    if scale == "none":
        return centered
    if scale == "group":
        return centered / (stats.std_P[:, None] + eps)
    scored = rewards[~np.isnan(rewards)]
    batch_std = float(scored.std(ddof=1)) if scored.size > 1 else 0.0
    return centered / (batch_std + eps)


def loss_scaling_factor(kept: int, total: int, mode: LossScaling = "none") -> float:
    """Factor on the advantages for a batch of which ``kept`` of ``total`` groups remain.

    ``none`` is 1, ``linear`` is kept / total, ``sqrt`` its root. An empty batch (total 0, or
    nothing kept) gives 0 for ``linear`` and ``sqrt``.

    Raises:
        UserError: Unknown mode, or ``kept`` outside 0..total.
    """
    if mode not in LOSS_SCALINGS:
        raise UserError(
            f"loss scaling: unknown mode '{mode}'{did_you_mean(mode, LOSS_SCALINGS)};"
            f" use one of {', '.join(LOSS_SCALINGS)}"
        )
    if not 0 <= kept <= total:
        raise UserError(f"loss scaling: {kept} kept groups out of {total} is impossible")
    if mode == "none":
        return 1.0
    share = kept / total if total else 0.0
    return share if mode == "linear" else math.sqrt(share)


def episode_return(turn_rewards: Iterable[float | None], penalty: float = 0.0) -> float:
    """Sum of the per-turn rewards plus the accumulated format penalty of one episode.

    A turn without a score (None or NaN) leaves the whole episode without one: NaN. An episode
    without turns returns its penalty.
    """
    values = [math.nan if reward is None else float(reward) for reward in turn_rewards]
    return math.fsum(values) + penalty


def one_per_episode(
    values_R: Sequence[float | None], episode_ids_R: Sequence[Hashable]
) -> tuple[list[Hashable], NDArray[np.float64]]:
    """Collapse turn rows that each repeat their episode's value to one value per episode.

    Long episodes would otherwise weigh more than short ones in every mean and spread.

    Args:
        values_R: One value per turn row; None or NaN is unscored.
        episode_ids_R: The episode of each row.

    Returns:
        The episode ids in order of first appearance and their values.

    Raises:
        UserError: Different lengths, or rows of one episode that disagree.
    """
    if len(values_R) != len(episode_ids_R):
        raise UserError(f"turn rows: {len(values_R)} values but {len(episode_ids_R)} episode ids")
    found: dict[Hashable, float] = {}
    for value, episode in zip(values_R, episode_ids_R, strict=True):
        number = math.nan if value is None else float(value)
        first = found.setdefault(episode, number)
        if first != number and not (math.isnan(first) and math.isnan(number)):
            raise UserError(
                f"turn rows of episode {episode!r} hold different values ({first} and {number});"
                " sum per-turn rewards into a return first"
            )
    return list(found), np.array(list(found.values()), dtype=np.float64)


def group_by_id(ids_N: Sequence[Hashable]) -> list[NDArray[np.int64]]:
    """Row indices of each group, for rows that carry a group id.

    Groups come in the order of their ids (numbers by value, other ids by type and text), and
    indices ascend, so shuffling the rows changes neither which groups there are nor their order.
    Uneven group sizes are warned about. No rows: an empty list.
    """
    rows: dict[Hashable, list[int]] = {}
    for index, group in enumerate(ids_N):
        rows.setdefault(group, []).append(index)
    sizes = [len(indices) for indices in rows.values()]
    if sizes and min(sizes) != max(sizes):
        warnings.warn(f"groups have uneven sizes ({min(sizes)} to {max(sizes)} rows)", stacklevel=2)
    return [np.array(rows[group], dtype=np.int64) for group in sorted(rows, key=_id_order)]


def _id_order(group: Hashable) -> tuple[int, int | float, str, str]:
    if isinstance(group, (int, np.integer)):
        return (0, int(group), "", "")  # exact: a float would tie large ids
    if isinstance(group, (float, np.floating)):
        return (0, float(group), "", "")
    return (1, 0.0, type(group).__name__, str(group))
