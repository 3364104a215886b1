"""Paired differences between two runs or two arms of a sweep."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ragen2_cli.core.statistics import PairedDifference, paired_difference, wilson
from ragen2_cli.errors import UserError, did_you_mean
from ragen2_cli.records import RunLog
from ragen2_cli.runs.kinds import is_sweep
from ragen2_cli.sweeps.axes import flat
from ragen2_cli.sweeps.results import final_success, load_run, load_sweep, sampled

ARM_MARK = "@"


@dataclass(frozen=True)
class Difference:
    """One quantity in two arms.

    Attributes:
        quantity: Its name, with the unit where it has one.
        a: Mean over seeds in the first arm.
        b: The same in the second.
        difference: ``a - b`` over seeds; a seed with several levels counts once, with their mean.
        interval: What the interval is over: ``pairs of runs`` (one per seed), ``seeds, mean over 3
            levels``, ``held-out episodes``, or empty when there is none.
    """

    quantity: str
    a: float
    b: float
    difference: PairedDifference
    interval: str


def _last_diagnostic(name: str) -> Callable[[RunLog], float | None]:
    def value(log: RunLog) -> float | None:
        rows = [row for row in log.diagnostics if row.get(name) is not None]
        return float(max(rows, key=lambda row: row["step"])[name]) if rows else None

    return value


def _summary(name: str) -> Callable[[RunLog], float | None]:
    return lambda log: None if log.summary is None else log.summary[name]


def _last_length(log: RunLog) -> float | None:
    rows = sampled(log)
    return rows[-1].response_length if rows else None


def _best(log: RunLog) -> float | None:
    return max((row.success for row in sampled(log) if row.step > 0), default=None)


def _greedy(log: RunLog) -> float | None:
    rows = [row for row in log.evaluations if row.decoding == "greedy" and row.step > 0]
    return max(rows, key=lambda row: row.step).success if rows else None


SUCCESS = "success, final (share)"
QUANTITIES: dict[str, Callable[[RunLog], float | None]] = {
    SUCCESS: final_success,
    "success, best checkpoint (share)": _best,
    "success, greedy (share)": _greedy,
    "mi_estimate (nats)": _last_diagnostic("mi_estimate"),
    "mi_seq_estimate (nats)": _last_diagnostic("mi_seq_estimate"),
    "conditional_entropy (nats)": _last_diagnostic("conditional_entropy"),
    "response length (tokens)": _last_length,
    "groups kept (share)": _summary("kept_ratio"),
    "time (seconds)": _summary("seconds"),
    "tokens sampled": _summary("tokens"),
}
"""What is compared, in the order of the table. To add one, add an entry."""


def run_rows(logs: Sequence[RunLog]) -> list[dict[str, object]]:
    """Return one row per run: name, labels, seed, its last evaluation, and all ``QUANTITIES``.

    With them every difference between arms can be computed again. Absent values are None.
    """
    found: list[dict[str, object]] = []
    for log in logs:
        last = next((row for row in sampled(log)[-1:] if row.step > 0), None)
        found.append(
            {
                "run": log.name,
                **log.labels,
                "seed": log.seed,
                "step": None if last is None else last.step,
                "episodes": None if last is None else last.episodes,
                **{name: measure(log) for name, measure in QUANTITIES.items()},
                "sampling entropy (nats)": None if last is None else last.entropy,
            }
        )
    return found


def read_arm(target: str) -> list[RunLog]:
    """Read ``RUN``, ``SWEEP`` or ``SWEEP@axis=label,axis=label``.

    A path may hold the mark too: what exists as a whole is taken whole. A sweep may have grown an
    axis: ``axis=`` with nothing after it names the runs from before, which have no label there.

    Raises:
        UserError: No such run or sweep, an axis or label that it does not have, or no finished run.
    """
    place, wanted = target, None
    while not Path(place).exists() and ARM_MARK in place:
        place, _, part = place.rpartition(ARM_MARK)
        wanted = part if wanted is None else f"{part}{ARM_MARK}{wanted}"
    path = Path(place)
    if not is_sweep(path):
        if wanted is not None:
            raise UserError(f"{place} is not a sweep; '{ARM_MARK}' names an arm of a sweep")
        return [load_run(path)]
    logs = load_sweep(path)
    # A label may hold commas; the next pair begins where a comma is followed by axis=.
    for part in filter(None, re.split(r",(?=[^,=]*=)", wanted or "")):
        name, equals, label = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UserError(f"{target}: '{part}' is not axis=label")
        known = list(dict.fromkeys(axis for log in logs for axis in log.labels))
        if name not in known:
            raise UserError(f"{place} has no axis '{name}'{did_you_mean(name, known)}")
        labels = list(dict.fromkeys(log.labels.get(name, "") for log in logs))
        if label not in labels:
            raise UserError(f"{place}: {name} has no finished '{label}'; it has {labels}")
        logs = [log for log in logs if log.labels.get(name, "") == label]
    return logs


def pair_up(
    first: Sequence[RunLog], second: Sequence[RunLog]
) -> tuple[list[tuple[RunLog, RunLog]], int]:
    """Pair runs of two arms that share their seed and every label in which the arms are alike.

    Labels that have one value in each arm, and not the same, are what the arms differ in.

    Returns:
        The pairs, and how many runs found no partner. Two single runs are a pair of their own.

    Raises:
        UserError: Nothing can be paired, or several runs of an arm share a key.
    """
    if len(first) == len(second) == 1:
        return [(first[0], second[0])], 0
    axes = {name for log in [*first, *second] for name in log.labels}
    apart = {
        name
        for name in axes
        if len(values(first, name)) == 1
        and len(values(second, name)) == 1
        and values(first, name) != values(second, name)
    }
    shared = sorted(axes - apart)
    left, right = _keyed(first, shared), _keyed(second, shared)
    common = [key for key in left if key in right]
    if not common:
        raise UserError("compare: no two runs share their seed and settings, so nothing is paired")
    alone = len(left) + len(right) - 2 * len(common)
    return [(left[key], right[key]) for key in common], alone


def values(logs: Sequence[RunLog], name: str) -> set[str | None]:
    """Return the labels that runs have on an axis; None stands for runs without it."""
    return {log.labels.get(name) for log in logs}


def _keyed(logs: Sequence[RunLog], names: Sequence[str]) -> dict[tuple[object, ...], RunLog]:
    found: dict[tuple[object, ...], RunLog] = {}
    for log in logs:
        key = (*(log.labels.get(name) for name in names), log.seed)
        if key in found:
            raise UserError(
                f"compare: {found[key].name} and {log.name} have the same settings and seed; "
                f"name one arm with {ARM_MARK}axis=label"
            )
        found[key] = log
    return found


def compare(pairs: Sequence[tuple[RunLog, RunLog]]) -> list[Difference]:
    """Return the difference in every quantity that both arms have, over the seeds of the pairs.

    Runs of equal seed share their boards and noise, so the pairs of a seed are not independent:
    their mean is one observation. Two seeds or more: a Student t interval over seeds. A single
    pair: for the success rates the interval that the held-out episodes allow (Newcombe's, from two
    Wilson intervals), else none.
    """
    found = []
    for quantity, measure in QUANTITIES.items():
        complete = [
            (first, second, a, b)
            for first, second in pairs
            if (a := measure(first)) is not None and (b := measure(second)) is not None
        ]
        if not complete:
            continue
        by_seed: dict[int, list[tuple[float, float]]] = {first.seed: [] for first, _ in pairs}
        for first, _, a, b in complete:
            by_seed[first.seed].append((a, b))
        left, right = (
            [_mean([both[side] for both in levels]) for levels in by_seed.values()]
            for side in (0, 1)
        )
        result = paired_difference(left, right)
        over = _unit([len(levels) for levels in by_seed.values() if levels]) * (result.n > 1)
        if len(complete) == 1 and quantity == SUCCESS:
            result = _newcombe(*complete[0][:2])._replace(dropped=result.dropped)
            over = "held-out episodes"
        means = [_mean([one for one in side if not math.isnan(one)]) for side in (left, right)]
        found.append(Difference(quantity, means[0], means[1], result, over))
    if not found:
        raise UserError("compare: the runs have no measurement in common")
    return found


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _unit(levels: Sequence[int]) -> str:
    """Say what one observation is, by the number of levels that each seed has."""
    fewest, most = min(levels), max(levels)
    if most == 1:
        return "pairs of runs"
    return f"seeds, mean over {fewest} {f'to {most} ' * (most > fewest)}levels"


def differing_settings(pairs: Sequence[tuple[RunLog, RunLog]]) -> dict[str, tuple[str, str]]:
    """Return the settings in which the runs of some pair differ, the seed apart.

    Returns:
        By dotted config key, in the order of the first run's config: the values of both arms, each
        as text; values that an arm has several of are joined by ``|``, absent ones are ``-``.
    """
    flats = [(flat(first.config), flat(second.config)) for first, second in pairs]
    keys = dict.fromkeys(key for both in flats for side in both for key in side)
    found = {}
    for key in keys:
        apart = any(a.get(key) != b.get(key) for a, b in flats)
        if apart and key not in ("seed", "schema_version"):
            left = dict.fromkeys(str(a.get(key, "-")) for a, _ in flats)
            right = dict.fromkeys(str(b.get(key, "-")) for _, b in flats)
            found[key] = ("|".join(left), "|".join(right))
    return found


def _newcombe(first: RunLog, second: RunLog) -> PairedDifference:
    """Difference of two success rates with Newcombe's hybrid score interval (method 10)."""
    a, b = sampled(first)[-1], sampled(second)[-1]
    left, right = wilson(a.successes, a.episodes), wilson(b.successes, b.episodes)
    mean = a.success - b.success
    low = mean - math.hypot(a.success - left.low, right.high - b.success)
    high = mean + math.hypot(left.high - a.success, b.success - right.low)
    return PairedDifference(mean, low, high, 1, 0)
