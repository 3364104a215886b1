"""Where to cut a ranked list of group scores: one pure function per rule of the group filter.

Every function takes the candidates' scores, best first, and returns a ``Cut``: how many of them
stay, what had to be reached, and why nothing stays. Comparisons allow for rounding, relative to
their own size, so that nine of ten scores of 0.1 do reach 0.9 of the sum.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Keep = Literal["largest", "smallest"]

ROUNDING = 1e-9
"""Relative tolerance of every comparison between scores or sums of them."""


@dataclass(frozen=True)
class Cut:
    """Length of the kept prefix, its target in the rule's own unit, and why it is empty."""

    count: int
    target: float
    reason: str = ""


def ranked(
    score_P: NDArray[np.float64], candidates: NDArray[np.int64], keep: Keep
) -> NDArray[np.int64]:
    """Candidate indices from best to worst; scores equal up to rounding go by index."""
    cost = score_P[candidates] if keep == "smallest" else -score_P[candidates]
    order = np.argsort(cost, kind="stable")
    ordered = cost[order]
    size = np.maximum(np.abs(ordered[1:]), np.abs(ordered[:-1]))
    steps = np.diff(ordered) > ROUNDING * size
    tie_class = np.concatenate([np.zeros(min(1, order.size), dtype=int), np.cumsum(steps)])
    return candidates[order[np.lexsort((order, tie_class))]]


def linear_mass(
    scores: NDArray[np.float64], value: float, eps: float, eps_rel: float, name: str
) -> Cut:
    """Smallest prefix whose summed score reaches ``value * total * (1 - eps_rel) - eps``.

    A target of 0 or below keeps nothing, nor does one that the scores before the first one of 0 or
    below cannot reach. ``value`` 1 keeps all. ``name`` is what the reason calls the score.
    """
    total = math.fsum(scores)
    if value >= 1:
        return Cut(scores.size, total)
    target = value * total * (1 - eps_rel) - eps
    if target <= ROUNDING * value * max(total, 0.0):
        hint = "; eps is absolute, use eps_rel for rewards of this size" if total > 0 else ""
        why = f"{value:g} times the summed {name} {total:.3g}, minus eps {eps:g}{hint}"
        return Cut(0, target, f"the target fell to {target:.3g}, zero or below: {why}")
    positive = scores[: _leading(scores > 0)]
    if count := _prefix(positive, target, slack=ROUNDING * total):
        return Cut(count, target)
    reason = (
        f"the target {target:.3g} is out of reach: the {positive.size} groups before the first"
        f" {name} of 0 or below sum to {math.fsum(positive):.3g}"
    )
    return Cut(0, target, reason)


def softmax_mass(scores: NDArray[np.float64], value: float, keep: Keep) -> Cut:
    """Smallest prefix whose softmax mass (temperature 1) reaches ``value``; 1 keeps all.

    With ``keep`` smallest the softmax is over the negated scores.
    """
    logits = scores if keep == "largest" else -scores
    weights = np.exp(logits - logits.max())
    return _share(weights / weights.sum(), value, target=value)


def sample_mass(rows: NDArray[np.int64], value: float, total_rows: int) -> Cut:
    """Smallest prefix whose rollouts (``rows`` per candidate) reach ``value * total_rows``.

    ``total_rows`` counts every group of the batch; all candidates stay when they are too few.
    """
    return _share(rows.astype(np.float64), value, target=value * total_rows)


def share_of_groups(candidates: int, value: float, groups: int) -> Cut:
    """The best ``max(1, floor(value * groups))`` candidates, fewer when there are fewer."""
    k = max(1, math.floor(value * groups * (1 + ROUNDING)))
    return Cut(min(k, candidates), float(k))


def share_of_best(scores: NDArray[np.float64], value: float, keep: Keep, name: str) -> Cut:
    """Scores of at least ``value`` times the largest (or at most the smallest over ``value``).

    Negative scores can leave nothing: the best of them does not pass its own threshold.
    """
    best = float(scores[0])
    if keep == "largest":
        threshold = value * best
        stays = scores >= threshold - ROUNDING * abs(threshold)
    else:
        threshold = best / value
        stays = scores <= threshold + ROUNDING * abs(threshold)
    if count := _leading(stays):
        return Cut(count, threshold)
    reason = f"no group passes the threshold {threshold:.3g}: the best {name} is {best:.3g}"
    return Cut(0, threshold, reason)


def _share(mass: NDArray[np.float64], value: float, target: float) -> Cut:
    if value >= 1:
        return Cut(mass.size, target)
    return Cut(_prefix(mass, target, slack=ROUNDING * target) or mass.size, target)


def _prefix(mass: NDArray[np.float64], target: float, slack: float) -> int:
    """Length of the smallest prefix whose sum reaches the target; 0 when none does."""
    reached = np.flatnonzero(np.cumsum(mass) >= target - slack)
    return int(reached[0]) + 1 if reached.size else 0


def _leading(mask: NDArray[np.bool_]) -> int:
    """Number of True values before the first False."""
    return int(mask.size if mask.all() else np.argmin(mask))
