"""The median of a few independent runs, with an interval that assumes nothing about them."""

import math
from collections.abc import Sequence

import numpy as np

from ragen2_cli.core.statistics import Interval


def median_interval(values: Sequence[float | None], confidence: float = 0.95) -> Interval:
    """Median with the interval between two of the values themselves.

    The k-th smallest and k-th largest of n values hold the median of the distribution with
    probability 1 - 2 P(B < k), B binomial (n, 1/2), whatever the distribution. The largest k that
    reaches ``confidence`` is taken. With 5 values or fewer even the extremes do not reach 0.95:
    then k is 1, and the interval's ``confidence`` says what it has (5 values: 0.9375).

    Args:
        values: One number per run; NaN and None are left out.
        confidence: Wanted coverage.

    Returns:
        ``n`` counts the values used. No value: all NaN. One value: no interval (NaN ends).
    """
    numbers = np.array(values, dtype=np.float64)
    numbers = np.sort(numbers[~np.isnan(numbers)])
    n = int(numbers.size)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0, confidence)
    median = float(np.median(numbers))
    if n == 1:
        return Interval(median, math.nan, math.nan, 1, confidence)
    rank = 1
    while rank < (n + 1) // 2 and _coverage(n, rank + 1) >= confidence:
        rank += 1
    low, high = float(numbers[rank - 1]), float(numbers[n - rank])
    return Interval(median, low, high, n, _coverage(n, rank))


def _coverage(n: int, rank: int) -> float:
    """Probability that the rank-th smallest and largest of n values enclose the median."""
    return float(1 - 2 * sum(math.comb(n, k) for k in range(rank)) / 2**n)
