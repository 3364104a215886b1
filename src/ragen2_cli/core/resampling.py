"""Resampling: all orders, random orders within strata, bootstrap over whole units."""

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


def codes(labels: Sequence[Hashable]) -> NDArray[np.int64]:
    """Number the distinct labels in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(label, len(seen)) for label in labels], dtype=np.int64)


def all_orders(n: int) -> NDArray[np.int8]:
    """All n! orders of range(n), one per row."""
    orders = np.zeros((1, 1), dtype=np.int8)
    for size in range(1, n):
        orders = np.concatenate(
            [np.insert(orders, place, size, axis=1) for place in range(size + 1)]
        )
    return orders


def permuted_products(
    x_ranks: NDArray[np.float64],
    y_ranks: NDArray[np.float64],
    strata: NDArray[np.int64],
    draws: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Sums of products of x and y over random orders of y within each stratum."""
    total = np.zeros(draws)
    for stratum in np.unique(strata):
        rows = np.flatnonzero(strata == stratum)
        shuffled = rng.permuted(np.broadcast_to(y_ranks[rows], (draws, rows.size)), axis=1)
        total += shuffled @ x_ranks[rows]
    return total


def crossed_products(
    x_ranks: NDArray[np.float64],
    y_ranks: NDArray[np.float64],
    units: NDArray[np.int64],
    strata: NDArray[np.int64],
) -> NDArray[np.float64] | None:
    """Products of each unit's x with each unit's y, summed over strata: (units, units).

    Giving the units' y away as a whole, in the same order in every stratum, then sums one entry of
    each row. None unless every unit has one row in every stratum.
    """
    unit, stratum = (np.unique(side, return_inverse=True)[1] for side in (units, strata))
    row = np.full((stratum.max() + 1, unit.max() + 1), -1)
    row[stratum, unit] = np.arange(units.size)
    if units.size != row.size or (row < 0).any():
        return None
    table: NDArray[np.float64] = x_ranks[row].T @ y_ranks[row]
    return table


def percentile_interval(
    units: NDArray[np.int64],
    statistic: Callable[[NDArray[np.int64]], float],
    rng: np.random.Generator,
    resamples: int,
    confidence: float,
) -> tuple[float, float]:
    """Percentile interval of a statistic of row indices, whole units resampled."""
    distinct = np.unique(units)
    draws = rng.integers(distinct.size, size=(resamples, distinct.size))
    if distinct.size == units.size:  # every row is its own unit
        values = np.array([statistic(rows) for rows in draws])
    else:
        members = [np.flatnonzero(units == unit) for unit in distinct]
        values = np.array([statistic(np.concatenate([members[k] for k in row])) for row in draws])
    values = values[~np.isnan(values)]  # resamples whose statistic is undefined
    if values.size == 0:
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    return float(np.quantile(values, tail)), float(np.quantile(values, 1 - tail))
