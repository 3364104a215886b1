"""Intervals and rank correlation that always say their n.

Every result is a named tuple of plain numbers. What is undefined is NaN with a reason, never 0.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen2_cli.core.resampling import (
    all_orders,
    codes,
    crossed_products,
    percentile_interval,
    permuted_products,
)
from ragen2_cli.errors import UserError, counted

EXACT_UP_TO = 9
"""Largest n whose n! orders are enumerated for an exact p-value."""
MIN_CLUSTERS = 8
"""Fewest independent units (runs, arms) for which a correlation gets a bootstrap interval."""
_TIE = 1e-9  # relative slack when a permuted statistic is compared with the observed one

Method = Literal["exact", "permutation", "none"]


class Interval(NamedTuple):
    """An estimate with its confidence interval; NaN ends where there is none."""

    estimate: float
    low: float
    high: float
    n: int
    confidence: float = 0.95


class Spearman(NamedTuple):
    """A rank correlation.

    Attributes:
        rho: Spearman's rho with mid-ranks for ties; NaN when undefined.
        n: Complete pairs used.
        dropped: Pairs left out because one side was NaN or None.
        p_value: Two-sided p; NaN when undefined, and when a unit has several pairs
            without being in every level once.
        method: ``exact`` (all orders enumerated), ``permutation`` (sampled) or ``none``.
        ci_low: Lower end of the bootstrap interval; NaN when none is given.
        ci_high: Upper end.
        reason: Why rho, p or the interval is missing; empty when all are there.
    """

    rho: float
    n: int
    dropped: int
    p_value: float
    method: Method
    ci_low: float
    ci_high: float
    reason: str


class PairedDifference(NamedTuple):
    """Mean of ``a - b`` over complete pairs, with a Student t interval."""

    mean: float
    ci_low: float
    ci_high: float
    n: int
    dropped: int
    confidence: float = 0.95


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a success rate.

    With p = successes / n and z the normal quantile: center (p + z^2/2n) / (1 + z^2/n), half-width
    z sqrt(p(1-p)/n + z^2/4n^2) / (1 + z^2/n). Stays inside [0, 1], also for 0 or n successes. With
    n 0 the estimate is NaN and the interval is all of [0, 1].

    Raises:
        UserError: ``successes`` outside 0..n, or ``confidence`` outside (0, 1).
    """
    _check_confidence(confidence)
    if not 0 <= successes <= n:
        raise UserError(f"success rate: {successes} of {counted(n, 'episode')} is impossible")
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0, confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / n
    shrink = 1 + z * z / n
    center = (rate + z * z / (2 * n)) / shrink
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / shrink
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == n else center + half
    return Interval(rate, low, high, n, confidence)


def mid_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1, equal values sharing the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def spearman(
    x: ArrayLike,
    y: ArrayLike,
    *,
    seed: int = 0,
    permutations: int = 9999,
    clusters: Sequence[Hashable] | None = None,
    levels: Sequence[Hashable] | None = None,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Spearman:
    """Spearman's rank correlation with an honest p-value and interval.

    Args:
        x: One number per observation; NaN or None drops the pair.
        y: The same length.
        seed: Of the permutations and of the bootstrap.
        permutations: Random orders drawn for n above ``EXACT_UP_TO``; p = (hits + 1) / (drawn + 1).
        clusters: The independent unit (run, arm) of each pair, resampled whole; each pair is its
            own when not given. The interval needs ``MIN_CLUSTERS`` of them. Several pairs of a
            unit are not exchangeable, so then there is no p-value, unless every unit has one pair
            in every level: then whole units are exchanged, alike in all levels.
        levels: A level (environment, stochasticity) of each pair. Ranks lose their level's mean, so
            that only agreement *within* levels counts, and orders are drawn within levels.
        resamples: Bootstrap resamples of the percentile interval.
        confidence: Of the interval.

    Returns:
        ``rho`` is NaN with a reason for fewer than two pairs or a constant side. Up to n
        ``EXACT_UP_TO`` (without levels) p counts all n! orders: a perfect n = 3 has p 1/3.

    Raises:
        UserError: Lengths that differ, or ``confidence`` outside (0, 1).
    """
    _check_confidence(confidence)
    left, right = _as_vector("x", x), _as_vector("y", y)
    units = np.arange(left.size, dtype=np.int64) if clusters is None else codes(clusters)
    strata = np.zeros(len(left), dtype=np.int64) if levels is None else codes(levels)
    if len({len(left), len(right), len(units), len(strata)}) > 1:
        raise UserError(
            f"spearman: x, y, clusters and levels differ in length ({len(left)}, {len(right)},"
            f" {len(units)}, {len(strata)})"
        )
    complete = ~(np.isnan(left) | np.isnan(right))
    left, right = left[complete], right[complete]
    units, strata = units[complete], strata[complete]
    n, dropped = len(left), int((~complete).sum())
    rho = _rank_correlation(left, right, strata)
    if math.isnan(rho):
        reason = _why_undefined(left, right)
        return Spearman(math.nan, n, dropped, math.nan, "none", math.nan, math.nan, reason)
    rng = np.random.default_rng(seed)
    distinct, missing = len(np.unique(units)), []
    whole = distinct < n
    exact = distinct <= EXACT_UP_TO and (levels is None or whole)
    method: Method = "exact" if exact else "permutation"
    draws = 0 if exact else permutations
    p_value = _p_value(left, right, strata, draws, rng, units if whole else None)
    if math.isnan(p_value):
        method = "none"
        missing.append(f"no p: {n} pairs of {counted(distinct, 'unit')} are not independent")
    if distinct < MIN_CLUSTERS:
        missing.append(f"no interval: {distinct} independent units, {MIN_CLUSTERS} needed")
        reason = "; ".join(missing)
        return Spearman(rho, n, dropped, p_value, method, math.nan, math.nan, reason)

    def resampled(rows: NDArray[np.int64]) -> float:
        return _rank_correlation(left[rows], right[rows], strata[rows])

    low, high = percentile_interval(units, resampled, rng, resamples, confidence)
    return Spearman(rho, n, dropped, p_value, method, low, high, "; ".join(missing))


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[[NDArray[np.float64]], float] = np.mean,
    seed: int = 0,
    *,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Percentile bootstrap interval of any statistic of a list of numbers.

    Args:
        values: NaN and None are left out.
        statistic: From a one-dimensional array to a number.
        seed: Of the resampling; equal seeds give equal intervals.
        clusters: The independent unit of each value, resampled whole; default: each its own.
        resamples: How many.
        confidence: Of the interval.

    Returns:
        ``n`` counts the values used. Without values the estimate is NaN; with fewer than two
        independent units there is no interval (NaN ends).

    Raises:
        UserError: ``clusters`` of another length, or ``confidence`` outside (0, 1).
    """
    _check_confidence(confidence)
    numbers = _as_vector("values", values)
    units = np.arange(numbers.size, dtype=np.int64) if clusters is None else codes(clusters)
    if len(units) != len(numbers):
        raise UserError(f"bootstrap: {len(numbers)} values but {len(units)} cluster ids")
    present = ~np.isnan(numbers)
    numbers, units = numbers[present], units[present]
    if numbers.size == 0:
        return Interval(math.nan, math.nan, math.nan, 0, confidence)
    low = high = math.nan
    if len(np.unique(units)) > 1:
        rng = np.random.default_rng(seed)
        low, high = percentile_interval(
            units, lambda rows: float(statistic(numbers[rows])), rng, resamples, confidence
        )
    return Interval(float(statistic(numbers)), low, high, int(numbers.size), confidence)


def paired_difference(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> PairedDifference:
    """Mean of ``a - b`` over pairs (the same seed in both arms) with a Student t interval.

    Pairs with a NaN or None are dropped and counted. Fewer than two pairs: no interval (NaN ends);
    none at all: the mean is NaN too. Equal differences give an interval of width 0.

    Raises:
        UserError: Lengths that differ, or ``confidence`` outside (0, 1).
    """
    from scipy.special import stdtrit

    _check_confidence(confidence)
    left, right = _as_vector("a", a), _as_vector("b", b)
    if len(left) != len(right):
        raise UserError(f"paired difference: {len(left)} values against {len(right)}; pair them")
    difference = left - right
    kept = difference[~np.isnan(difference)]
    n, dropped = kept.size, int(difference.size - kept.size)
    if n < 2:
        mean = float(kept[0]) if n else math.nan
        return PairedDifference(mean, math.nan, math.nan, n, dropped, confidence)
    mean = float(kept.mean())
    half = float(stdtrit(n - 1, 0.5 + confidence / 2) * kept.std(ddof=1) / math.sqrt(n))
    return PairedDifference(mean, mean - half, mean + half, n, dropped, confidence)


def _as_vector(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"statistics: {name} must be a flat list of numbers: {error}") from error
    if vector.ndim != 1:
        raise UserError(f"statistics: {name} must be a flat list, got shape {vector.shape}")
    return vector


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UserError(f"statistics: confidence must be in (0, 1), got {confidence}")


def _centered_ranks(values: NDArray[np.float64], strata: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mid-ranks minus the mean rank of their stratum."""
    ranks = mid_ranks(values)
    counts = np.bincount(strata)
    sums = np.bincount(strata, weights=ranks)
    return ranks - (sums / np.maximum(counts, 1))[strata]


def _rank_correlation(
    x: NDArray[np.float64], y: NDArray[np.float64], strata: NDArray[np.int64]
) -> float:
    """Pearson correlation of centered mid-ranks; NaN when a side does not vary."""
    if x.size < 2:
        return math.nan
    left, right = _centered_ranks(x, strata), _centered_ranks(y, strata)
    scale = math.sqrt(float(left @ left) * float(right @ right))
    if scale <= _TIE:
        return math.nan
    return min(1.0, max(-1.0, float(left @ right) / scale))


def _why_undefined(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    if x.size < 2:
        return f"{x.size} complete pairs, 2 needed"
    for name, side in (("x", x), ("y", y)):
        if (side == side[0]).all():
            return f"{name} is constant"
    return "a side does not vary within levels"


def _p_value(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    strata: NDArray[np.int64],
    draws: int,
    rng: np.random.Generator,
    units: NDArray[np.int64] | None,
) -> float:
    """Two-sided p of the rank products: over all orders when ``draws`` is 0, else over draws.

    Orders are those of the pairs within a stratum, or of whole units where they are given; NaN
    where units cannot be exchanged.
    """
    x_ranks, y_ranks = _centered_ranks(x, strata), _centered_ranks(y, strata)
    observed = abs(float(x_ranks @ y_ranks))
    limit = observed - _TIE * max(1.0, observed)
    if units is not None:
        table = crossed_products(x_ranks, y_ranks, units, strata)
        if table is None:
            return math.nan
        own = np.arange(len(table))
        orders = (
            all_orders(own.size)
            if draws == 0
            else rng.permuted(np.broadcast_to(own, (draws, own.size)), axis=1)
        )
        products = table[own, orders].sum(axis=1)
    elif draws == 0:
        products = y_ranks[all_orders(x.size)] @ x_ranks
    else:
        products = permuted_products(x_ranks, y_ranks, strata, draws, rng)
    hits = np.abs(products) >= limit
    return float(hits.mean()) if draws == 0 else (int(hits.sum()) + 1) / (draws + 1)
