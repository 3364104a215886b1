"""SNR-aware filtering: which whole groups of a batch are worth a gradient.

``GroupFilter`` is called once per generation batch with the raw rewards by group and says which
groups stay. Groups whose rollouts all earn the same carry no task signal, only regularizer and
noise. The statistic, the mass and the cut are separate choices, each under its own name:

==============  ==================================================================================
``none``        every group stays, dead ones too
``top-p``       best groups first, until their mass reaches ``value`` of the whole;
                mass ``linear`` (scores), ``softmax`` (of the scores) or ``samples`` (rollouts)
``top-k``       ``max(1, floor(value * P))`` groups
``top-k-abs``   ``value`` groups
``min-p``       groups whose score is at least ``value`` times the best
==============  ==================================================================================
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen2_cli.core import cuts
from ragen2_cli.core.cuts import Cut, Keep
from ragen2_cli.core.groups import GroupStats, RewardMatrix, group_stats, reward_matrix
from ragen2_cli.errors import UserError, did_you_mean

Strategy = Literal["none", "top-p", "top-k", "top-k-abs", "min-p"]
Mass = Literal["linear", "softmax", "samples"]
Score = Literal[
    "reward_var", "reward_std", "reward_mean", "reward_sum", "entropy", "entropy_var", "length"
]

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
MASSES: tuple[Mass, ...] = get_args(Mass)
SCORES: tuple[Score, ...] = get_args(Score)
KEEPS: tuple[Keep, ...] = get_args(Keep)
SPREAD_SCORES = frozenset({"reward_var", "reward_std"})
GIVEN_SCORES = frozenset({"entropy", "entropy_var", "length"})

PRESETS = MappingProxyType(
    {
        "ragen2-code": {"strategy": "top-p", "score": "reward_std", "eps": 0.01},
        "ragen2-main-table": {
            "strategy": "top-p",
            "score": "reward_std",
            "mass": "softmax",
            "include_zero": True,
        },
    }
)
"""The filters of RAGEN-2's code and of its main table, as keyword arguments of ``GroupFilter``."""


@dataclass(frozen=True, eq=False)
class Selection:
    """What a filter decided about one batch.

    Attributes:
        kept: Indices of the kept groups, ascending.
        weight_P: Spread over the largest spread of the batch, in [0, 1] and 0 for a dead group: the
            factor of the soft variant. Computed for dropped groups too. The spread is the score
            where that is one, else the reward variance.
        score_P: The score that groups were ranked by; 0 where it is undefined.
        dead_P: True where a group's rewards carry no signal.
        target: What the prefix had to reach, in the unit of the strategy (summed score, softmax
            mass, rollouts, groups, or the min-p threshold); None for strategy ``none`` and when
            there was no candidate.
        reason: Why nothing was kept; empty when something was.
    """

    kept: NDArray[np.int64]
    weight_P: NDArray[np.float64]
    score_P: NDArray[np.float64]
    dead_P: NDArray[np.bool_]
    target: float | None
    reason: str


@dataclass(frozen=True)
class GroupFilter:
    """Choose the groups of a batch that are trained on. Frozen, picklable, without state.

    Attributes:
        strategy: The cut, see the module's table.
        value: Share of the mass (``top-p``), of the groups (``top-k``) or of the best score
            (``min-p``), all in (0, 1]; a whole number of groups (``top-k-abs``). ``top-p`` with 1
            keeps every candidate. ``none`` ignores it.
        mass: What ``top-p`` adds up.
        score: What groups are ranked by. ``reward_var`` and ``reward_std`` are the sample variance
            and standard deviation (ddof 1); ``entropy``, ``entropy_var`` and ``length`` must be
            given to ``select``.
        keep: Rank the largest or the smallest scores first.
        include_zero: Let groups whose score is 0 compete (for a spread: dead groups).
        eps: Absolute slack of the ``linear`` target, in the unit of the score. Not scale-free: with
            small rewards it can swallow the whole target.
        eps_rel: The same as a share of the target, in [0, 1).

    The ``linear`` target is ``value * total * (1 - eps_rel) - eps`` over the candidates; a target
    of 0 or below, or one that the positive scores cannot reach, keeps nothing. Ties go to the lower
    index.

    Raises:
        UserError: An unknown name or a number outside its range, at construction.

    Source: RAGEN-2 (arXiv 2604.06268), SNR-aware filtering, and its public code.
    """

    strategy: Strategy = "top-p"
    value: float = 0.9
    mass: Mass = "linear"
    score: Score = "reward_var"
    keep: Keep = "largest"
    include_zero: bool = False
    eps: float = 0.0
    eps_rel: float = 0.0

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers outside their range."""
        _check_name("strategy", self.strategy, STRATEGIES)
        _check_name("mass", self.mass, MASSES)
        _check_name("score", self.score, SCORES)
        _check_name("keep", self.keep, KEEPS)
        if not isinstance(self.include_zero, bool):
            raise UserError(
                f"filter include_zero: expected true or false, got {self.include_zero!r}"
            )
        _check_number("value", self.value)
        _check_number("eps", self.eps)
        _check_number("eps_rel", self.eps_rel)
        if self.eps < 0:
            raise UserError(f"filter eps: must be 0 or more, got {self.eps}")
        if not 0 <= self.eps_rel < 1:
            raise UserError(f"filter eps_rel: must be in [0, 1), got {self.eps_rel}")
        if self.strategy == "top-k-abs":
            if self.value < 1 or self.value != int(self.value):
                raise UserError(
                    "filter value: top-k-abs counts groups and takes a whole number of 1 or more,"
                    f" got {self.value}; use top-k for a share"
                )
        elif self.strategy != "none" and not 0 < self.value <= 1:
            raise UserError(
                f"filter value: {self.strategy} takes a share in (0, 1], got {self.value}"
            )

    def select(
        self, rewards_P_G: ArrayLike | Sequence[Sequence[Any]], *, score_P: ArrayLike | None = None
    ) -> Selection:
        """Choose the groups to keep from the raw rewards of one batch.

        Args:
            rewards_P_G: Raw episode returns by group (array, nested lists, uneven lists); NaN or
                None is a rollout without a score, which is left out.
            score_P: Replaces the computed score, one number per group: entropy, length, or the
                spread of the outcome alone. NaN means that the group has none and cannot be kept.

        Returns:
            The selection; see ``Selection``. A batch without groups keeps nothing.

        Raises:
            UserError: ``score_P`` missing for a score that needs it, or of the wrong length, or
                infinite; rewards that are not numbers by group.
        """
        matrix = reward_matrix(rewards_P_G)
        stats = group_stats(matrix.rewards_P_G)
        score, defined = self._score(matrix, stats, score_P)
        weight = _soft_weights(score if self.score in SPREAD_SCORES else stats.var_P, stats.dead_P)
        if self.strategy == "none":
            reason = "" if score.size else "the batch has no groups"
            return Selection(np.arange(score.size), weight, score, stats.dead_P, None, reason)
        candidates = np.flatnonzero(defined if self.include_zero else defined & (score != 0))
        order = cuts.ranked(score, candidates, self.keep)
        if order.size == 0:
            reason = _why_no_candidate(self.score, stats.dead_P, defined)
            return Selection(order, weight, score, stats.dead_P, None, reason)
        cut = self._cut(score[order], matrix.rows_P[order], matrix.rows_P)
        kept = np.sort(order[: cut.count])
        return Selection(kept, weight, score, stats.dead_P, cut.target, cut.reason)

    def _score(
        self, matrix: RewardMatrix, stats: GroupStats, score_P: ArrayLike | None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the scores (0 where undefined) and where they are defined."""
        groups = len(stats.dead_P)
        if score_P is not None:
            given = _given_scores(score_P, groups)
            defined = ~np.isnan(given)
            return np.where(defined, given, 0.0), defined
        if self.score in GIVEN_SCORES:
            raise UserError(
                f"filter score '{self.score}' cannot be computed from rewards: pass score_P=, one"
                " number per group"
            )
        if self.score in SPREAD_SCORES:
            spread = stats.var_P if self.score == "reward_var" else stats.std_P
            return spread, np.ones(groups, dtype=bool)
        defined = stats.scored_P > 0
        if self.score == "reward_mean":
            return np.where(defined, stats.mean_P, 0.0), defined
        return np.nansum(np.sort(matrix.rewards_P_G, axis=1), axis=1), defined

    def _cut(
        self,
        scores: NDArray[np.float64],
        candidate_rows: NDArray[np.int64],
        rows_P: NDArray[np.int64],
    ) -> Cut:
        """Apply the rule to the candidates' scores and rollout counts, best first."""
        if self.strategy == "min-p":
            return cuts.share_of_best(scores, self.value, self.keep, self.score)
        if self.strategy == "top-k-abs":
            return Cut(min(int(self.value), scores.size), float(self.value))
        if self.strategy == "top-k":
            return cuts.share_of_groups(scores.size, self.value, rows_P.size)
        if self.mass == "linear":
            return cuts.linear_mass(scores, self.value, self.eps, self.eps_rel, self.score)
        if self.mass == "softmax":
            return cuts.softmax_mass(scores, self.value, self.keep)
        return cuts.sample_mass(candidate_rows, self.value, int(rows_P.sum()))


def _given_scores(score_P: ArrayLike, groups: int) -> NDArray[np.float64]:
    try:
        given = np.array(score_P, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"filter score_P: expected one number per group: {error}") from error
    if given.shape != (groups,):
        raise UserError(
            f"filter score_P: expected one score per group, shape ({groups},), got {given.shape}"
        )
    if np.isinf(given).any():
        raise UserError("filter score_P: a score is infinite; give finite numbers or NaN")
    return given


def _soft_weights(spread_P: NDArray[np.float64], dead_P: NDArray[np.bool_]) -> NDArray[np.float64]:
    live = np.where(dead_P, 0.0, np.maximum(spread_P, 0.0))
    largest = live.max(initial=0.0)
    return live / largest if largest > 0 else np.zeros_like(live)


def _why_no_candidate(score: str, dead_P: NDArray[np.bool_], defined_P: NDArray[np.bool_]) -> str:
    if dead_P.size == 0:
        return "the batch has no groups"
    if not defined_P.any():
        return f"no group has a {score}"
    if dead_P.all():
        return f"every group is dead ({dead_P.size} of {dead_P.size}): their scored rewards tie"
    return f"every group's {score} is 0 and include_zero is off"


def _check_name(field: str, name: object, known: tuple[str, ...]) -> None:
    if name not in known:
        raise UserError(
            f"filter {field}: unknown '{name}'{did_you_mean(str(name), known)};"
            f" use one of {', '.join(known)}"
        )


def _check_number(field: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float, np.integer, np.floating)):
        raise UserError(f"filter {field}: expected a number, got {number!r}")
    if not math.isfinite(float(number)):
        raise UserError(f"filter {field}: must be finite, got {number}")
