"""A live warning of an entropy eruption: sees each value once, never looks ahead."""

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHORT = 2
"""Newest values whose mean is judged."""
BASE = 6
"""Values before them that it is judged against."""
WARMUP = 15
"""Values seen before the first alarm is possible."""
MIN_RISE = 0.05
"""A rise below this share of the recent level is never an eruption, however quiet the series."""
_KERNEL = np.concatenate([np.full(SHORT, 1 / SHORT), np.full(BASE, -1 / BASE)])


class EruptionAlarm:
    """Warn when entropy rises sharply against its own recent past.

    The rise is the mean of the last ``SHORT`` values minus the mean of the ``BASE`` values before
    them. It must pass two tests:

    - against the noise: more than ``threshold * (1 + 8 / m)`` standard errors, where the noise
      comes from m second differences (blind to a level and to a trend; outliers cut at three
      robust deviations) and the factor pays for not knowing it well early on;
    - against its own history: more than ``habit`` robust deviations (median absolute deviation) of
      the rises seen before, so that a slowly wandering series does not alarm all the time.

    Multiplying the series by a constant changes nothing. A rise that takes much longer than
    ``SHORT + BASE`` values is a trend, not an eruption, and is left to ``eruption.classify``.
    After an alarm the next one waits until the rise is over (below a tenth of what it must exceed).

    Args:
        threshold: Of the first test. The default gives less than one false alarm in 10,000 windows
            of 120 values of white noise.
        habit: Of the second test. The default gives false alarms in about 3 % of such windows of
            noise with a correlation of 0.6 from value to value.
        memory: Values kept; nothing older is looked at.
    """

    def __init__(self, threshold: float = 5.0, habit: float = 4.0, memory: int = 100) -> None:
        self.threshold = threshold
        self.habit = habit
        self._values: deque[float] = deque(maxlen=max(memory, WARMUP))
        self._rising = False

    @property
    def active(self) -> bool:
        """True from an alarm until the rise that caused it has ended."""
        return self._rising

    def update(self, value: float | None) -> bool:
        """Take the next value and return True if it raises a new alarm.

        NaN, None and infinities are gaps: they are skipped and never raise or end anything.
        """
        if value is None or not math.isfinite(value):
            return False
        self._values.append(float(value))
        if len(self._values) < WARMUP:
            return False
        recent = np.array(self._values)
        rises = np.convolve(recent, _KERNEL, "valid")
        floor = MIN_RISE * _median(np.abs(recent))
        if not self._rising and rises[-1] <= floor:
            return False  # most steps end here, without measuring the noise
        needed = max(floor, self._needed(recent, rises[:-2]))
        if self._rising:
            self._rising = bool(rises[-1] > needed / 10)
            return False
        self._rising = bool(rises[-1] > needed)
        return self._rising

    def _needed(self, recent: NDArray[np.float64], earlier: NDArray[np.float64]) -> float:
        differences = np.abs(np.diff(recent, 2)) / math.sqrt(6)
        robust = _median(differences) / 0.6745
        noise = math.sqrt(float((np.minimum(differences, 3 * robust) ** 2).mean()))
        standard_error = noise * math.sqrt(1 / SHORT + 1 / BASE)
        habitual = 1.4826 * _median(np.abs(earlier - _median(earlier)))
        return max(
            self.threshold * (1 + 8 / differences.size) * standard_error,
            self.habit * habitual,
        )

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs to go on as if never interrupted (JSON-ready)."""
        return {"values": list(self._values), "rising": self._rising}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a saved ``state()``."""
        self._values.clear()
        self._values.extend(state["values"])
        self._rising = bool(state["rising"])


def _median(values: NDArray[np.float64]) -> float:
    """Median without numpy's overhead: this runs once per training step and per logged step."""
    ordered = np.sort(values)
    middle = ordered.size // 2
    if ordered.size % 2:
        return float(ordered[middle])
    return float(ordered[middle - 1] + ordered[middle]) / 2
