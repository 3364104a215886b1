"""Advantages per token: generalized advantage estimation, and credit for single turns.

An episode is a row of T columns: tokens that the policy wrote, and between them observations. Only
the policy's own tokens are time steps. An observation has no value, no reward and no share in the
discount, so putting one in, or making it longer, changes nothing at the policy's tokens.

``turn_N_T`` says which turn wrote a token: 0, 1, ... at the policy's tokens, ``NO_TURN`` at
observations and padding. ``rewards_N_K`` holds what each turn earned, its format penalty included;
NaN where an episode has no such turn. A row's sum is the episode's return.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen2_cli.core.groups import Scale, advantages
from ragen2_cli.errors import UserError, did_you_mean

Credit = Literal["episode", "turn", "bi-level"]
CREDITS: tuple[Credit, ...] = get_args(Credit)
NO_TURN = -1
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Discounts:
    """How far credit reaches back.

    Attributes:
        gamma: Discount from one of the policy's tokens to the next, in (0, 1].
        lam: GAE's lambda, in [0, 1]: 1 uses what was earned, 0 the next value alone.
        turn_gamma: Discount from one turn to the next, in (0, 1]; only of ``bi-level``.
    """

    gamma: float = 1.0
    lam: float = 1.0
    turn_gamma: float = 0.95


@dataclass(frozen=True, eq=False)
class Estimates:
    """What tokens are worth; both exactly 0 outside the policy's own tokens.

    Attributes:
        advantages_N_T: How much better things went than the value said.
        returns_N_T: What the value should have said: advantage plus value.
    """

    advantages_N_T: Floats
    returns_N_T: Floats


def last_of_turn(turn_N_T: ArrayLike) -> Bools:
    """Mark the last token of every turn."""
    turn = np.asarray(turn_N_T)
    ends = np.zeros(turn.shape, dtype=bool)
    following = np.full(len(turn), NO_TURN)
    for column in reversed(range(turn.shape[1])):
        own = turn[:, column] != NO_TURN
        ends[:, column] = own & (turn[:, column] != following)
        following = np.where(own, turn[:, column], following)
    return ends


def token_rewards(rewards_N_K: ArrayLike, turn_N_T: ArrayLike, credit: Credit) -> Floats:
    """Put rewards onto tokens: the return on the last one, or each turn's on its own last one.

    ``bi-level`` places them as ``turn`` does. Every row sums to its episode's return.

    Raises:
        UserError: Unknown ``credit``.
    """
    _check_credit(credit)
    rewards = np.nan_to_num(np.asarray(rewards_N_K, dtype=np.float64))
    turn = np.asarray(turn_N_T)
    rows, columns = np.nonzero(last_of_turn(turn))
    placed = np.zeros(turn.shape)
    if credit == "episode":
        last = np.flatnonzero(np.r_[np.diff(rows) != 0, True]) if len(rows) else rows
        placed[rows[last], columns[last]] = rewards.sum(axis=1)[rows[last]]
    else:
        placed[rows, columns] = rewards[rows, turn[rows, columns]]
    return placed


def gae(rewards_N_T: ArrayLike, values_N_T: ArrayLike, own_N_T: ArrayLike,
        gamma: float = 1.0, lam: float = 1.0) -> Estimates:  # fmt: skip
    """Generalized advantage estimation over some columns (arXiv 1506.02438, equations 11 to 16).

    With t+1 the next marked column (value 0 after the last one):
    ``delta_t = reward_t + gamma * value_{t+1} - value_t`` and
    ``advantage_t = delta_t + gamma * lam * advantage_{t+1}``.

    Args:
        rewards_N_T: Reward of each column; only marked ones are read.
        values_N_T: Value of the state before the token of each column; only marked ones are read.
        own_N_T: True at the columns that are time steps.
        gamma: Discount per step.
        lam: Lambda.
    """
    own = np.asarray(own_N_T, dtype=bool)
    return _backwards(rewards_N_T, values_N_T, own, np.zeros_like(own), gamma, lam)


def _backwards(
    rewards: ArrayLike, values: ArrayLike, own: Bools, cut: Bools, gamma: float, lam: float
) -> Estimates:
    """``gae`` that forgets what comes after the columns of ``cut``."""
    reward = np.where(own, np.asarray(rewards, dtype=np.float64), 0.0)
    value = np.where(own, np.asarray(values, dtype=np.float64), 0.0)
    found = np.zeros(own.shape)
    next_value = next_found = np.zeros(len(own))
    for column in reversed(range(own.shape[1])):
        next_value = np.where(cut[:, column], 0.0, next_value)
        next_found = np.where(cut[:, column], 0.0, next_found)
        delta = reward[:, column] + gamma * next_value - value[:, column]
        here = own[:, column]
        found[:, column] = np.where(here, delta + gamma * lam * next_found, 0.0)
        next_found = np.where(here, found[:, column], next_found)
        next_value = np.where(here, value[:, column], next_value)
    return Estimates(found, found + value)


def estimate(
    rewards_N_K: ArrayLike,
    values_N_T: ArrayLike,
    turn_N_T: ArrayLike,
    credit: Credit = "episode",
    discounts: Discounts | None = None,
) -> Estimates:
    """Advantages and returns of every token of the policy.

    ``episode`` puts the return on the last token, ``turn`` each turn's reward on the turn's last
    token; both then run ``gae`` over all of the policy's tokens. ``bi-level`` runs ``gae`` twice,
    as VAGEN does: over the turns' last tokens with ``turn_gamma``, then, with ``gamma``, inside
    each turn, whose reward is now what the first pass says the turn was worth (advantage plus
    value) and after which nothing follows.

    Args:
        rewards_N_K: What each turn earned.
        values_N_T: Value of the state before each token.
        turn_N_T: Turn of each token.
        credit: Where the reward goes.
        discounts: How far it reaches back; undiscounted by default.

    Raises:
        UserError: Unknown ``credit``.
    """
    reach = discounts or Discounts()
    turn = np.asarray(turn_N_T)
    own = turn != NO_TURN
    rewards = token_rewards(rewards_N_K, turn, credit)
    if credit != "bi-level":
        return gae(rewards, values_N_T, own, reach.gamma, reach.lam)
    ends = last_of_turn(turn)
    turns = gae(rewards, values_N_T, ends, reach.turn_gamma, reach.lam)
    return _backwards(turns.returns_N_T, values_N_T, own, ends, reach.gamma, reach.lam)


def turn_advantages(rewards_N_K: ArrayLike, group_size: int, scale: Scale = "group") -> Floats:
    """Group-relative advantage of every turn, from its return-to-go, without a critic.

    Return-to-go is the undiscounted sum of a turn's reward and all later ones. It is compared
    inside the group among the rollouts that have a turn of the same index, as
    ``groups.advantages`` compares returns. A turn that no other rollout of its group has cannot be
    compared: it gets its episode's advantage.

    Args:
        rewards_N_K: What each turn earned, groups of ``group_size`` consecutive rows; a row that
            is all NaN has no score.
        group_size: Rollouts per group.
        scale: What differences are divided by.

    Returns:
        advantages_N_K; 0 where there is no such turn, in rows without a score, and where all that
        are compared earned the same.

    Raises:
        UserError: Unknown ``scale``.
    """
    rewards = np.asarray(rewards_N_K, dtype=np.float64)
    there = ~np.isnan(rewards)
    to_go = np.cumsum(np.where(there, rewards, 0.0)[:, ::-1], axis=1)[:, ::-1]
    to_go = np.where(there, to_go, np.nan)
    episodes = np.where(there.any(axis=1), np.nansum(rewards, axis=1), np.nan)
    whole = advantages(episodes.reshape(-1, group_size), scale).ravel()
    found = np.zeros(rewards.shape)
    for index in range(rewards.shape[1]):
        column = to_go[:, index].reshape(-1, group_size)
        alone = np.repeat((~np.isnan(column)).sum(axis=1) < 2, group_size)
        found[:, index] = np.where(alone, whole, advantages(column, scale).ravel())
    return np.where(there, found, 0.0)


def spread_over_tokens(values_N_K: ArrayLike, turn_N_T: ArrayLike) -> Floats:
    """Give every token the value of its turn; 0 outside the policy's own tokens."""
    turn = np.asarray(turn_N_T)
    values = np.asarray(values_N_K, dtype=np.float64)
    if not values.shape[1]:
        return np.zeros(turn.shape)
    taken = np.take_along_axis(values, np.maximum(turn, 0), axis=1)
    return np.where(turn != NO_TURN, taken, 0.0)


@dataclass(frozen=True)
class Moments:
    """Count, sum and sum of squares of some numbers; those of several parts add up."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: ArrayLike, chosen: ArrayLike) -> "Moments":
        """Count the values where ``chosen`` is true."""
        picked = np.asarray(values, dtype=np.float64)[np.asarray(chosen, dtype=bool)]
        return cls(float(picked.size), float(picked.sum()), float((picked**2).sum()))

    @property
    def mean(self) -> float:
        """Mean; 0 of nothing."""
        return self.total / self.count if self.count else 0.0

    @property
    def var(self) -> float:
        """Sample variance (ddof 1); 0 of fewer than two."""
        if self.count < 2:
            return 0.0
        return max(0.0, (self.squares - self.total * self.mean) / (self.count - 1))

    @property
    def alike(self) -> bool:
        """Whether the numbers are equal but for rounding."""
        return self.var <= 1e-12 * max(self.mean**2, 1e-12)


def whiten(values_N_T: ArrayLike, own_N_T: ArrayLike, moments: Moments | None = None) -> Floats:
    """Shift and scale the marked values to mean 0 and standard deviation 1; 0 elsewhere.

    Args:
        values_N_T: Advantages.
        own_N_T: True at the policy's tokens.
        moments: Of all values that count, where other processes hold some; by default of these.

    Equal values all become 0.
    """
    own = np.asarray(own_N_T, dtype=bool)
    found = Moments.of(values_N_T, own) if moments is None else moments
    deviation = np.where(own, np.asarray(values_N_T, dtype=np.float64) - found.mean, 0.0)
    return deviation * (0.0 if found.alike else 1 / math.sqrt(found.var))


def explained_variance(returns: Moments, errors: Moments) -> float:
    """Share of the returns' variance that values explain: ``1 - var(errors) / var(returns)``.

    1 is a perfect critic, 0 one that knows only the mean, below 0 one that is worse than that.

    Args:
        returns: Moments of the returns.
        errors: Moments of returns minus values at the same tokens.

    Returns:
        NaN where the returns do not vary, but for rounding.
    """
    return math.nan if returns.alike else 1 - errors.var / returns.var


def turn_rewards(
    episodes: Sequence[Sequence[tuple[float | None, float]]],
) -> Floats:
    """Return rewards_N_K from each episode's turns, given as (reward, penalty).

    A turn's entry is the sum of both. An episode with an ungraded turn (None) has no score: its
    row is NaN.
    """
    longest = max((len(turns) for turns in episodes), default=0)
    found = np.full((len(episodes), longest), np.nan)
    for row, turns in enumerate(episodes):
        if all(reward is not None for reward, _ in turns):
            found[row, : len(turns)] = [(reward or 0.0) + penalty for reward, penalty in turns]
    return found


def _check_credit(credit: str) -> None:
    if credit not in CREDITS:
        raise UserError(
            f"credit: unknown '{credit}'{did_you_mean(credit, CREDITS)};"
            f" use one of {', '.join(CREDITS)}"
        )
