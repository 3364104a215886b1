"""Which of four regimes a run is in, and early warnings on the way there.

Two axes: information (does the reasoning depend on the prompt?) and entropy given the prompt (does
it vary for one prompt?). Their names are RAGEN-2's; no thresholds are published. Ours compare a
run with its own first measurements and with what chance alone gives, and every verdict states
them::

                       entropy high          entropy low
    information high   diverse               compressed
    information low    template collapse     low-entropy collapse
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import Any

from ragen2_cli.core.collapse import add_ema
from ragen2_cli.errors import counted

NOT_ENOUGH = "not enough data"
_LATER = "the text may depend on its prompt after its first words, which --model would tell"
COLLAPSES = frozenset({"template collapse", "low-entropy collapse"})
REGIMES = {
    (True, True): "diverse",
    (False, True): "template collapse",
    (True, False): "compressed",
    (False, False): "low-entropy collapse",
}
NEXT = {
    "diverse": "ragen2 diagnose  # nothing to mend; again after more steps",
    "template collapse": (
        "ragen2 train --filter top-p --filter-value 0.9 --entropy 0  "
        "# drop groups without signal, and the bonus that drowns the rest"
    ),
    "compressed": ("ragen2 evaluate  # little variety left: compare sampled with greedy success"),
    "low-entropy collapse": (
        "ragen2 train --filter top-p --lr 3e-4  # go back to a checkpoint, learn more slowly"
    ),
    NOT_ENOUGH: "ragen2 train --diagnose-every 5  # measure more steps, with two prompts or more",
}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Every number a verdict or a warning depends on.

    Attributes:
        share: An axis is low below this share of the run's own first measurements.
        window: First and last measurements that are averaged, at most (never overlapping).
        chance_deviations: Information is low when it is within so many standard deviations of
            chance: of retrieval (binomial) or, without a model, of shuffled prompts, and was not
            at first.
        opening: Nats a word: with less entropy of the first words at first they are a fixed
            opening, and nothing is judged by them.
        rows: Fewest rows of a measurement.
        patience: Measurements in a row for a warning.
        fall: Share by which the smoothed z-score must have fallen over those measurements, and MI
            since the first ones.
        held: Entropy has not fallen when it keeps at least this share over them.
        climb: Points by which the invalid or the truncated share must have climbed.
        stop_after: Collapse verdicts in a row before a run is stopped.
    """

    share: float = 0.5
    window: int = 3
    chance_deviations: float = 2.0
    opening: float = 0.05
    rows: int = 16
    patience: int = 3
    fall: float = 0.2
    held: float = 0.9
    climb: float = 0.1
    stop_after: int = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """A regime with what it rests on.

    Attributes:
        regime: One of the four, or ``not enough data``.
        basis: ``cross-scoring`` or ``text`` (first words, no model).
        step: The last step it covers; None without measurements.
        measurements: How many measurements were used.
        rows: Rows of the last one.
        information: The information axis: value, own baseline, chance level.
        entropy: The entropy axis: value, own baseline.
        reasons: Plain sentences: the numbers, the thresholds, what was compared.
        next_step: A command to try next.
    """

    regime: str
    basis: str
    step: int | None
    measurements: int
    rows: int
    information: dict[str, float | None]
    entropy: dict[str, float | None]
    reasons: tuple[str, ...]
    next_step: str


def judge(series: Sequence[Mapping[str, Any]], limits: Thresholds | None = None) -> Verdict:
    """Return the verdict on measurements in the order of their steps.

    A series with cross-scoring metrics is judged by ``mi_estimate``, ``retrieval_accuracy`` and
    ``conditional_entropy``; one without by ``prefix_mi``, ``prefix_mi_zscore`` and
    ``prefix_conditional_entropy``. First words alone prove no collapse by their level, since a
    text may open alike whatever follows: information is low only after a fall from above chance,
    and nothing is judged when the opening was fixed or at chance from the start. Measurements of
    fewer than ``limits.rows`` rows or without these metrics are left out.
    """
    limits = limits or Thresholds()
    scored = [row for row in series if row.get("mi_estimate") is not None]
    basis = "cross-scoring" if scored else "text"
    size = "scored_rows" if scored else "rows"
    usable = [
        row
        for row in (scored or series)
        if row.get(size, 0) >= limits.rows and (scored or row.get("prefix_mi") is not None)
    ]
    if not usable:
        return _undecided(basis, usable, _why_none(series, limits))
    information, low_mi, why_mi = _information(usable, basis, limits)
    if low_mi is None:
        return _undecided(basis, usable, why_mi)
    if len(usable) < 2:
        return _undecided(
            basis, usable, f"one measurement has no baseline of its own to compare with; {why_mi}"
        )
    name = "conditional_entropy" if basis == "cross-scoring" else "prefix_conditional_entropy"
    first, last = _ends([row[name] for row in usable], limits)
    if basis == "text" and first < limits.opening:
        return _undecided(
            basis, usable, f"{name} {first:.3g} at first: a fixed opening; {_LATER}; {why_mi}"
        )
    low_entropy = last < limits.share * first or first < 1e-3
    why_entropy = (
        f"{name} {last:.3g} against {first:.3g} at first: "
        f"{'below' if low_entropy else 'not below'} {limits.share:.0%}"
    )
    regime = REGIMES[(not low_mi, not low_entropy)]
    return Verdict(
        regime=regime,
        basis=basis,
        step=usable[-1].get("step"),
        measurements=len(usable),
        rows=int(usable[-1][size]),
        information=information,
        entropy={"value": last, "baseline": first, "share": limits.share},
        reasons=(why_mi, why_entropy),
        next_step=NEXT[regime],
    )


def _undecided(basis: str, usable: Sequence[Mapping[str, Any]], reason: str) -> Verdict:
    last = usable[-1] if usable else {}
    return Verdict(
        regime=NOT_ENOUGH,
        basis=basis,
        step=last.get("step"),
        measurements=len(usable),
        rows=int(last.get("scored_rows", last.get("rows", 0))),
        information={},
        entropy={},
        reasons=(reason,),
        next_step=NEXT[NOT_ENOUGH],
    )


def _why_none(series: Sequence[Mapping[str, Any]], limits: Thresholds) -> str:
    if not series:
        return "there are no measurements"
    if all(row.get("prompts", 2) < 2 for row in series):
        return "every measurement has one prompt only, and information needs two to compare"
    return f"no measurement has {limits.rows} rows and two prompts"


def _ends(values: Sequence[float], limits: Thresholds) -> tuple[float, float]:
    """Return the means of the first and of the last measurements, which do not overlap."""
    window = min(limits.window, max(1, len(values) // 2))
    return sum(values[:window]) / window, sum(values[-window:]) / window


def _information(
    usable: Sequence[Mapping[str, Any]], basis: str, limits: Thresholds
) -> tuple[dict[str, float | None], bool | None, str]:
    """Return the numbers, whether information is low (None: cannot be told), and why."""
    last = usable[-1]
    name = "mi_estimate" if basis == "cross-scoring" else "prefix_mi"
    baseline, value = _ends([row[name] for row in usable], limits)
    below = fallen = len(usable) > 1 and value < limits.share * baseline
    wavers = False  # about the limit, rather than fallen to chance
    if basis == "cross-scoring":
        accuracy, chance = last["retrieval_accuracy"], last["retrieval_chance"]
        band = limits.chance_deviations * sqrt(chance * (1 - chance) / last["scored_rows"])
        at_chance = accuracy - chance <= band
        against = f"retrieval {accuracy:.2f} against {chance:.2f} + {band:.2f} by chance"
    else:
        score = last["prefix_mi_zscore"]
        if score is None and last["unique_prefix_rate"] > 0.5:
            return {}, None, "nearly every text starts with words of its own: nothing to compare"
        # Undefined with few different texts: they are the same words whatever the prompt.
        at_chance = score is None or score <= limits.chance_deviations
        start = _ends([row["prefix_mi_zscore"] or 0.0 for row in usable], limits)[0]
        accuracy, chance = score, 0.0
        against = (
            "the first words are the same for every prompt"
            if score is None
            else f"prefix_mi_zscore {score:.1f} against {limits.chance_deviations:g} by chance"
        )
        if start <= limits.chance_deviations:
            if at_chance:
                return {}, None, f"{against}: at chance level from the start; {_LATER}"
            fallen = False  # it has risen above chance
        wavers = score is not None and score >= limits.share * start
    numbers = {
        "value": value,
        "baseline": baseline if len(usable) > 1 else None,
        "share": limits.share,
        "against_chance": accuracy,
        "chance": chance,
    }
    own = f"{name} {value:.3g}"
    if len(usable) > 1:
        own += (
            f" against {baseline:.3g} at first: {'below' if below else 'not below'} "
            f"{limits.share:.0%}"
        )
    level = "at chance level" if at_chance else "above chance"
    return numbers, fallen or (at_chance and not wavers), f"{own}; {against}: {level}"


class CollapseWatch:
    """A fold over live measurements: smoothed z-scores, warnings, and whether to stop.

    Its state is JSON-able, so that a resumed run warns and stops like an uninterrupted one.
    """

    def __init__(self, limits: Thresholds | None = None) -> None:
        """Start without measurements."""
        self.limits = limits or Thresholds()
        self._rows: list[dict[str, Any]] = []
        self._smoothed: dict[str, float] | None = None
        self._collapsed = 0

    def update(self, measurement: Mapping[str, Any]) -> dict[str, Any]:
        """Return the measurement with the smoothed z-scores, ``regime`` and ``warnings`` added."""
        row = dict(measurement)
        if row.get("mi_estimate") is not None:
            smoothed = add_ema(row, self._smoothed)
            self._smoothed = {k: v for k, v in smoothed.items() if k.startswith("marginal_std_ema")}
            row = dict(smoothed)
        self._rows.append({name: row[name] for name in _KEPT if name in row})
        verdict = judge(self._rows, self.limits)
        self._collapsed = self._collapsed + 1 if verdict.regime in COLLAPSES else 0
        row["regime"] = verdict.regime
        row["warnings"] = self._warnings()
        return row

    def stop_reason(self) -> str | None:
        """Return why the run should stop now, or None."""
        if self._collapsed < self.limits.stop_after:
            return None
        verdict = judge(self._rows, self.limits)
        often = counted(self._collapsed, "measurement")
        return f"{verdict.regime} in {often} in a row ({verdict.reasons[0]})"

    def state(self) -> dict[str, Any]:
        """Return everything the fold remembers."""
        return {"rows": self._rows, "smoothed": self._smoothed, "collapsed": self._collapsed}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state()``."""
        self._rows = [dict(row) for row in state["rows"]]
        smoothed = state["smoothed"]
        self._smoothed = None if smoothed is None else dict(smoothed)
        self._collapsed = int(state["collapsed"])

    def _warnings(self) -> list[str]:
        """Return the early signs in the last measurements."""
        recent = self._rows[-(self.limits.patience + 1) :]
        if len(recent) <= self.limits.patience:
            return []
        found = []
        score, entropy = _column(recent, "mi_zscore_ema"), _column(recent, "conditional_entropy")
        # The z-score alone also falls when the marginals merely spread out, as they do in a run
        # that learns well; so the information itself must have fallen too.
        information = _column([*self._rows[: self.limits.window], recent[-1]], "mi_estimate")
        if score and entropy and information and _falls(score) and score[0]:
            first = fmean(information[:-1])
            lost = information[-1] <= (1 - self.limits.fall) * first
            drop = (score[0] - score[-1]) / abs(score[0])
            held = entropy[-1] >= self.limits.held * entropy[0]
            if drop >= self.limits.fall and held and lost:
                found.append(
                    f"MI-ZScore-EMA fell {self.limits.patience} times in a row, "
                    f"{score[0]:.2f} to {score[-1]:.2f}, and MI is {information[-1]:.2f} against "
                    f"{first:.2f} at first, while conditional entropy did not fall "
                    f"({entropy[0]:.2f} to {entropy[-1]:.2f}): reasoning is losing its prompt"
                )
        for name in ("truncated", "invalid"):
            share = _column(recent, name)
            if share and _climbs(share) and share[-1] - share[0] >= self.limits.climb:
                found.append(
                    f"the {name} share climbed {self.limits.patience} times in a row, "
                    f"{share[0]:.0%} to {share[-1]:.0%}"
                )
        return found


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return a metric of every row; empty when a row lacks it."""
    values = [row.get(name) for row in rows]
    return [] if None in values else [float(value) for value in values if value is not None]


_KEPT = (
    *("step", "rows", "prompts", "scored_rows", "mi_estimate", "mi_zscore_ema"),
    *("retrieval_accuracy", "retrieval_chance", "conditional_entropy"),
    *("prefix_mi", "prefix_mi_zscore", "prefix_conditional_entropy", "unique_prefix_rate"),
    *("truncated", "invalid"),
)


def _falls(values: Sequence[float]) -> bool:
    return all(later < earlier for earlier, later in pairwise(values))


def _climbs(values: Sequence[float]) -> bool:
    return all(later > earlier for earlier, later in pairwise(values))
