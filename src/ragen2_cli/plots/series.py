"""From runs to the numbers behind a figure: median over seeds with its interval, by arm."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ragen2_cli.core.medians import median_interval
from ragen2_cli.records import RunLog

Row = dict[str, Any]
Measure = Callable[[RunLog], Iterable[tuple[int, float | None]]]


def filter_name(log: RunLog) -> str:
    """Return the run's filter in words, such as ``top-p 0.9`` or ``none``."""
    chosen = log.config["filter"]
    if chosen["strategy"] == "none":
        return "no filter"
    if chosen["strategy"] == "resample":
        return "resample"
    return f"{chosen['strategy']} {chosen['value']:g}"


_FILTER_AXES = ("filter", "top-p", "filter.strategy", "filter.value")


def other_labels(log: RunLog, without: Sequence[str] = ()) -> str:
    """Return what a run's arm is besides its filter, for the title of a panel."""
    left = [
        _words(name.rpartition(".")[2].replace("_", " "), label)
        for name, label in log.labels.items()
        if name not in (*_FILTER_AXES, *without)
    ]
    return ", ".join(left)


def _words(name: str, label: str) -> str:
    if name == "arm":
        return label
    return f"no {name}" if label == "none" else f"{name} {label}"


def arms(logs: Sequence[RunLog]) -> list[tuple[str, str, list[RunLog]]]:
    """Group runs by panel and series: ``(panel, series, runs)``, in order of first appearance.

    The series is the filter and the panel everything else that was swept. Where no panel would hold
    two filters, the panels become the series of a single panel instead.
    """
    found: dict[tuple[str, str], list[RunLog]] = {}
    for log in logs:
        found.setdefault((other_labels(log), filter_name(log)), []).append(log)
    panels = [panel for panel, _ in found]
    if len(set(panels)) == len(panels):
        return [("", panel or series, runs) for (panel, series), runs in found.items()]
    return [(panel, series, runs) for (panel, series), runs in found.items()]


def over_runs(measured: Sequence[tuple[RunLog, float | None]]) -> Row:
    """Return n, median and interval of one number per run.

    ``pooled`` says that the runs differ in more than their seed: no interval over seeds then.
    """
    result = median_interval([value for _, value in measured])
    pooled = mixed([log for log, _ in measured])
    return {
        "n": result.n,
        "median": result.estimate,
        "low": math.nan if pooled else result.low,
        "high": math.nan if pooled else result.high,
        "coverage": result.confidence if result.n > 1 and not pooled else math.nan,
        "pooled": pooled,
    }


def mixed(logs: Sequence[RunLog]) -> bool:
    """Whether some of the runs differ in a setting other than the seed."""
    return any(_differ(logs[0].config, log.config) for log in logs[1:])


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    # A setting that only one has came with a later version.
    return any(
        _differ(one[key], other[key])
        if isinstance(one[key], Mapping) and isinstance(other[key], Mapping)
        else one[key] != other[key]
        for key in (one.keys() & other.keys()) - {"seed", "schema_version"}
    )


def by_step(logs: Sequence[RunLog], measures: dict[str, Measure]) -> list[Row]:
    """Return one row per quantity, arm and step that at least one run has.

    Args:
        logs: The runs.
        measures: By the quantity's name: gives ``(step, value)`` of a run; None is left out.
    """
    rows: list[Row] = []
    for panel, series, runs in arms(logs):
        for quantity, measure in measures.items():
            values: dict[int, list[tuple[RunLog, float | None]]] = {}
            for log in runs:
                for step, value in measure(log):
                    if value is not None and not math.isnan(value):
                        values.setdefault(step, []).append((log, value))
            rows += [
                {"quantity": quantity, "panel": panel, "series": series, "step": step}
                | over_runs(values[step])
                for step in sorted(values)
            ]
    return rows


def smooth(points: Iterable[tuple[int, float | None]], window: int) -> list[tuple[int, float]]:
    """Trailing mean over the last ``window`` steps that have a value; others are left out.

    The mean of a step looks back only, so that a curve never knows its future.
    """
    result: list[tuple[int, float]] = []
    recent: list[float] = []
    for step, value in points:
        if value is None or math.isnan(value):
            continue
        recent = [*recent, value][-window:]
        result.append((step, math.fsum(recent) / len(recent)))
    return result


def seeds_text(rows: Sequence[Row]) -> str:
    """Return what a caption says about n and intervals."""
    counts = [row["n"] for row in rows]
    if not counts:
        return "No data."
    n = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    if max(counts) == 1:
        return "n = 1 run per arm: no interval over seeds."
    if any(row["pooled"] for row in rows):
        return f"Median over n = {n} runs, other settings pooled: no interval where they differ."
    covered = sorted({f"{row['coverage']:.0%}" for row in rows if row["n"] > 1})
    spans = covered[0] if len(covered) == 1 else f"{covered[0]} to {covered[-1]}"
    return (
        f"Median over n = {n} seeds; band or bar: order-statistic interval of the median "
        f"({spans} coverage)."
    )
