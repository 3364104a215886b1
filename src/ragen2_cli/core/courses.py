"""Entropy over a training, with the degenerate patterns beside it: rates by step, and a report."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from ragen2_cli.core.degeneration import Grounding, text_patterns
from ragen2_cli.core.eruption import EruptionReport, alarm_positions, classify, pattern_course

RATES = (
    "sentence_duplication",
    "repeated_5gram_mass",
    "repeated_10gram_mass",
    "repeated_words",
    "tag_faults",
    "ungrounded_facts",
)
"""Rates of a step, all in [0, 1] and higher when worse; ``repeated_words`` is 1 - the ratio of
unique words, ``tag_faults`` the share of turns with an unclosed, repeated or missing tag."""


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """One turn of an episode, as far as patterns go.

    Attributes:
        before: What the policy was shown right before it: the prompt, or an observation.
        reasoning: What it thought.
        fault: Whether its tags are broken; None where that cannot be told.
    """

    before: str
    reasoning: str
    fault: bool | None


class PatternRates:
    """Running means of every rate over the turns of a step."""

    def __init__(self) -> None:
        """Start without a turn."""
        self._sums = dict.fromkeys(RATES, 0.0)
        self._counts = dict.fromkeys(RATES, 0)

    def add(self, turns: Iterable[SpokenTurn]) -> None:
        """Count an episode; a fact is grounded in what was shown and said before it."""
        ground = Grounding()
        for turn in turns:
            ground.learn(turn.before)
            patterns = text_patterns(turn.reasoning)
            unique = patterns.pop("unique_token_ratio")
            self._count("repeated_words", None if unique is None else 1 - unique)
            self._count("tag_faults", turn.fault)
            self._count("ungrounded_facts", ground.judge(turn.reasoning))
            for name, value in patterns.items():
                self._count(name, value)

    def _count(self, name: str, value: float | None) -> None:
        if value is not None:
            self._sums[name] += value
            self._counts[name] += 1

    def means(self) -> dict[str, float | None]:
        """Return the mean of each rate over the turns that define it; None without one."""
        return {
            name: self._sums[name] / count if count else None
            for name, count in self._counts.items()
        }


@dataclass(frozen=True)
class Course:
    """An entropy series by step, with the rates of the same steps.

    Attributes:
        path: Where it was read.
        basis: What the entropy is, and where it was logged.
        steps: Ascending.
        entropy: One value per step; None is a gap.
        rates: By name of ``RATES``, one value per step, None where it was not measured.
        said: What was inferred while reading, one line each.
    """

    path: str
    basis: str
    steps: Sequence[int]
    entropy: Sequence[float | None]
    rates: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    said: Sequence[str] = ()


def report(course: Course) -> dict[str, Any]:
    """Return everything that can be said about a course, as JSON values; positions become steps.

    ``verdict``, ``phases`` (each with ``alarm``: the step at which a live alarm fired in an
    eruption, and ``early``: how many steps that was before its end), ``alarms``, ``patterns`` (by
    rate: means of the first and last fifth, by phase, before, during and after eruptions, and its
    course), and what the verdict rests on. Undefined numbers are None.
    """
    found = classify([math.nan if value is None else value for value in course.entropy])
    positions = alarm_positions([math.nan if value is None else value for value in course.entropy])
    patterns = {}
    for name, rate in course.rates.items():
        if any(value is not None for value in rate):
            filled = [math.nan if value is None else value for value in rate]
            patterns[name] = asdict(pattern_course(filled, found)) | _ends(rate)
    steps = course.steps
    return {
        "path": course.path,
        "basis": course.basis,
        "said": list(course.said),
        "steps": [steps[0], steps[-1]] if steps else [],
        "verdict": found.verdict,
        "cycles": found.cycles,
        "period": _period(found, steps),
        "points": found.points,
        "missing": found.missing,
        "noise": _number(found.noise),
        "level": _number(found.level),
        "threshold": _number(found.threshold),
        "phases": [_phase(found, index, steps, positions) for index in range(len(found.phases))],
        "alarms": [steps[position] for position in positions],
        "patterns": {name: _clean(values) for name, values in patterns.items()},
    }


def _ends(rate: Sequence[float | None]) -> dict[str, float]:
    """Means over the first and the last fifth of the measured steps, at least one each."""
    measured = [value for value in rate if value is not None]
    window = max(1, len(measured) // 5)
    return {"first": fmean(measured[:window]), "last": fmean(measured[-window:])}


def _phase(
    found: EruptionReport, index: int, steps: Sequence[int], alarms: Sequence[int]
) -> dict[str, Any]:
    phase = found.phases[index]
    row: dict[str, Any] = {
        "kind": phase.kind,
        "start": steps[phase.start],
        "end": steps[phase.end],
        "height": phase.height,
        "period": None,
    }
    if phase.kind == "eruption":
        if phase.period is not None:
            row["period"] = steps[phase.start] - steps[phase.start - phase.period]
        fired = next((place for place in alarms if phase.start <= place <= phase.end), None)
        row["alarm"] = None if fired is None else steps[fired]
        row["early"] = None if fired is None else steps[phase.end] - steps[fired]
    return row


def _period(found: EruptionReport, steps: Sequence[int]) -> float | None:
    if found.period is None or len(steps) < 2:
        return None
    return found.period * (steps[-1] - steps[0]) / (len(steps) - 1)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _clean(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _number(value)
        if isinstance(value, float)
        else [_number(one) for one in value]
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }
