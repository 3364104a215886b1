"""Entropy series to phases and a verdict: descent, eruption, subsidence.

The detector looks for rises and falls that are large against three things at once: the range of the
series, its noise (from second differences, so that a level or a trend does not count as noise), and
its level. Multiplying a series by a constant changes nothing. Gaps are closed up before anything is
measured, so a gap can hide a cycle but never make one. Turning points come from
``scipy.signal.find_peaks`` by prominence, on the raw series (narrow spikes) and on a smoothed one
(noisy cycles); the one that shows more structure counts.

==================== ==============================================================================
verdict              what the series does
==================== ==============================================================================
cyclical eruption    rises or falls three times at least (three cycles, with ends cut or not)
spike                rises and falls back, once or twice
sustained rise       ends with a rise that has not fallen back
collapse             falls and stays down, well below where a rise before it began, if there was one
stable               none of these, or only a brief dip
too short            fewer than ``MIN_POINTS`` values
==================== ==============================================================================
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen2_cli.core.alarm import EruptionAlarm
from ragen2_cli.errors import UserError

Verdict = Literal["cyclical eruption", "spike", "sustained rise", "collapse", "stable", "too short"]
PhaseKind = Literal["descent", "eruption", "subsidence"]

MIN_POINTS = 24
"""Fewest values for a verdict: three cycles of eight."""
CYCLES = 3
"""Fewest rises, or falls, of a cyclical eruption."""
MIN_SHARE = 0.25
"""A move counts from this share of the range of the series on."""
MIN_LEVEL = 0.05
"""... and from this share of its median absolute value on."""
EDGE = 0.1
"""A phase starts and ends where this share of its height is left."""


@dataclass(frozen=True)
class Phase:
    """One move of the series; positions count from 0 and include gaps.

    Attributes:
        kind: ``descent`` (a fall before any eruption), ``eruption`` or ``subsidence``.
        start: Last position at which less than a tenth of the move is done.
        end: First position at which less than a tenth of it is left.
        height: How far entropy moved, never negative.
        period: Positions since the start of the previous eruption; None for the first one and for
            other phases.
    """

    kind: PhaseKind
    start: int
    end: int
    height: float
    period: int | None = None


@dataclass(frozen=True)
class EruptionReport:
    """What an entropy series did.

    Attributes:
        verdict: See the module's table.
        phases: The moves in order; empty when stable or too short.
        cycles: Completed rise-and-fall pairs.
        period: Median period of the eruptions; None with fewer than two.
        points: Finite values.
        missing: NaN, None or infinite values.
        noise: Standard deviation of the noise.
        level: Median absolute value.
        threshold: Height from which a move counted.
    """

    verdict: Verdict
    phases: tuple[Phase, ...]
    cycles: int
    period: float | None
    points: int
    missing: int
    noise: float
    level: float
    threshold: float


def classify(entropy_T: ArrayLike) -> EruptionReport:
    """Judge an entropy series, one value per step; NaN and None are gaps.

    Raises:
        UserError: Not a flat list of numbers.
    """
    series = _as_series(entropy_T)
    positions = np.flatnonzero(np.isfinite(series))
    values = series[positions]
    missing = int(series.size - values.size)
    if values.size < MIN_POINTS:
        nan = math.nan
        return EruptionReport("too short", (), 0, None, values.size, missing, nan, nan, nan)
    noise = float(np.median(np.abs(np.diff(values, 2)))) / (0.6745 * math.sqrt(6))
    level = float(np.median(np.abs(values)))
    width = max(3, values.size // 24 | 1)
    candidates = [_turning_points(values, w, noise, level) for w in (1, width)]
    turns, smooth, threshold = max(candidates, key=lambda found: len(found[0]))  # raw on a tie
    phases = _phases(turns, smooth, positions)
    cycles = sum(phase.kind == "subsidence" for phase in phases)
    periods = [phase.period for phase in phases if phase.period is not None]
    return EruptionReport(
        verdict=_verdict(phases, turns, smooth, threshold),
        phases=phases,
        cycles=cycles,
        period=float(np.median(periods)) if periods else None,
        points=values.size,
        missing=missing,
        noise=noise,
        level=level,
        threshold=threshold,
    )


def alarm_positions(entropy_T: ArrayLike) -> tuple[int, ...]:
    """Positions at which a live ``EruptionAlarm`` with default settings would have warned."""
    alarm = EruptionAlarm()
    return tuple(
        position for position, value in enumerate(_as_series(entropy_T)) if alarm.update(value)
    )


@dataclass(frozen=True)
class PatternCourse:
    """How the rate of a degenerate pattern (duplication, repetition, ...) follows the phases.

    Attributes:
        mean_by_kind: Mean rate over the positions of each kind of phase, where it was measured.
        before: Mean rate before the first eruption starts.
        during: Mean rate from the starts of the eruptions to the ends of their subsidences.
        after: Mean rate after each completed subsidence until the next eruption, in order; NaN
            where nothing was measured.
        recovered: Share of the increase that was gone after the last subsidence:
            (during - last after) / (during - before); NaN when unknown or not defined.
        course: ``falls back`` (half or more recovered), ``accumulates``, ``unaffected`` (the rate
            grew by at most ``EDGE`` of its largest value) or ``unknown``.
    """

    mean_by_kind: dict[PhaseKind, float]
    before: float
    during: float
    after: tuple[float, ...]
    recovered: float
    course: Literal["falls back", "accumulates", "unaffected", "unknown"]


def pattern_course(rate_T: ArrayLike, report: EruptionReport) -> PatternCourse:
    """Say whether a pattern's rate falls back after eruptions or accumulates across cycles.

    Args:
        rate_T: The rate at each position of the series that ``report`` was made from, NaN or None
            where it was not measured. Rates must not be negative.
        report: From ``classify``.

    Raises:
        UserError: Not a flat list of numbers.
    """
    rate = _as_series(rate_T)
    eruptions = [phase for phase in report.phases if phase.kind == "eruption"]
    falls = [phase for phase in report.phases if phase.kind == "subsidence"]
    by_kind: dict[PhaseKind, float] = {}
    kinds: tuple[PhaseKind, ...] = ("descent", "eruption", "subsidence")
    for kind in kinds:
        spans = [(phase.start, phase.end + 1) for phase in report.phases if phase.kind == kind]
        if not math.isnan(mean := _mean_over(rate, spans)):
            by_kind[kind] = mean
    starts = [phase.start for phase in eruptions]
    before = _mean_over(rate, [(0, starts[0])] if starts else [])
    ends = [fall.end + 1 for fall in falls]
    during = _mean_over(rate, list(zip(starts, ends, strict=False)))
    rests = zip(ends, [*starts[1:], rate.size], strict=False)
    after = tuple(_mean_over(rate, [(end, max(end + 1, following))]) for end, following in rests)
    last = after[-1] if after else math.nan
    grew = during - before
    if math.isnan(grew) or math.isnan(last):
        return PatternCourse(by_kind, before, during, after, math.nan, "unknown")
    if grew <= EDGE * float(np.nanmax(rate)):
        return PatternCourse(by_kind, before, during, after, math.nan, "unaffected")
    recovered = (during - last) / grew
    course: Literal["falls back", "accumulates"] = (
        "falls back" if recovered >= 0.5 else "accumulates"
    )
    return PatternCourse(by_kind, before, during, after, recovered, course)


def _mean_over(rate: NDArray[np.float64], spans: Sequence[tuple[int, int]]) -> float:
    pieces = [rate[start:end] for start, end in spans]
    values = np.concatenate(pieces) if pieces else np.empty(0)
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else math.nan


def _as_series(entropy_T: ArrayLike) -> NDArray[np.float64]:
    try:
        series = np.array(entropy_T, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"entropy series: expected a flat list of numbers: {error}") from error
    if series.ndim != 1:
        raise UserError(f"entropy series: expected a flat list, got shape {series.shape}")
    return series


def _turning_points(
    values: NDArray[np.float64], width: int, noise: float, level: float
) -> tuple[list[int], NDArray[np.float64], float]:
    """Alternating lows and highs at least a threshold apart, the series used, and the threshold."""
    from scipy.ndimage import uniform_filter1d
    from scipy.signal import find_peaks

    smooth = uniform_filter1d(values, width, mode="nearest") if width > 1 else values
    span = float(np.ptp(smooth))
    # pure noise ranges over about 2 sqrt(2 ln n) deviations: ask for three more
    chance = (2 * math.sqrt(2 * math.log(values.size)) + 3) * noise / math.sqrt(width)
    threshold = max(MIN_SHARE * span, chance, MIN_LEVEL * level)
    if span == 0 or span < threshold:
        return [], smooth, threshold
    floor = float(smooth.min()) - 2 * span
    padded = np.concatenate([[floor], smooth, [floor]])  # so that either end can be a high
    highs = find_peaks(padded, prominence=threshold)[0] - 1
    turns: list[int] = []
    borders = [0, *(int(high) for high in highs), values.size - 1]
    for before, after in pairwise(borders):
        low = before + int(np.argmin(smooth[before : after + 1]))
        neighbors = [smooth[high] for high in highs if high in (before, after)]
        if min(neighbors) - smooth[low] >= threshold:
            turns.append(low)
        if after in highs and after not in turns:
            turns.append(after)
    return turns, smooth, threshold


def _phases(
    turns: Sequence[int], smooth: NDArray[np.float64], positions: NDArray[np.int64]
) -> tuple[Phase, ...]:
    phases: list[Phase] = []
    last_eruption: int | None = None
    for first, last in pairwise(turns):
        move = smooth[first : last + 1]
        height = float(move[-1] - move[0])
        done = (move - move[0]) / height
        begin = int(np.flatnonzero(done <= EDGE)[-1])
        finish = begin + int(np.flatnonzero(done[begin:] >= 1 - EDGE)[0])
        start, end = int(positions[first + begin]), int(positions[first + finish])
        if height > 0:
            period = None if last_eruption is None else start - last_eruption
            phases.append(Phase("eruption", start, end, height, period))
            last_eruption = start
        else:
            kind: PhaseKind = "descent" if last_eruption is None else "subsidence"
            phases.append(Phase(kind, start, end, -height))
    return tuple(phases)


def _verdict(
    phases: tuple[Phase, ...], turns: Sequence[int], smooth: NDArray[np.float64], threshold: float
) -> Verdict:
    if not phases:
        return "stable"
    rises = sum(phase.kind == "eruption" for phase in phases)
    if max(rises, len(phases) - rises) >= CYCLES:
        return "cyclical eruption"
    if phases[-1].kind == "descent":
        return "collapse"
    if any(phase.kind == "subsidence" for phase in phases):
        beyond = phases[-1].height - phases[-2].height >= threshold
        if not beyond:
            return "spike"
        return "sustained rise" if phases[-1].kind == "eruption" else "collapse"
    if len(phases) == 2:  # down and up again
        halfway = float(smooth[turns[1]]) + min(phase.height for phase in phases) / 2
        if int((smooth < halfway).sum()) < smooth.size / 10:
            return "stable"
    return "sustained rise"
