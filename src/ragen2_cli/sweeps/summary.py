"""The table that a sweep ends with: one row per arm, the seeds as its interval."""

from dataclasses import dataclass

from ragen2_cli.core.medians import median_interval
from ragen2_cli.core.statistics import Interval
from ragen2_cli.records import RunLog
from ragen2_cli.sweeps.folder import SweepDirectory
from ragen2_cli.sweeps.results import by_arm, final_success, load_run


@dataclass(frozen=True)
class ArmSummary:
    """One arm of a sweep over its seeds.

    Attributes:
        labels: What it has of each axis.
        runs: Finished runs.
        success: Median final held-out success over seeds, with its interval.
        stopped: Runs that a rule ended early.
        kept: Median over runs of the share of groups kept.
        extra_rollouts: Rollouts beyond one batch per step (``resample``), summed over runs.
        tokens: Median sampled tokens per run.
        seconds: Median duration per run.
    """

    labels: dict[str, str]
    runs: int
    success: Interval
    stopped: int
    kept: float
    extra_rollouts: int
    tokens: float
    seconds: float


def summarize(sweep: SweepDirectory) -> list[ArmSummary]:
    """Return one row per arm that has a finished run, in the order of planning."""
    logs = [
        load_run(sweep.run_path(cell), dict(cell.labels))
        for cell in sweep.cells.values()
        if sweep.finished(cell)
    ]
    return [_row(arm) for arm in by_arm(logs).values()]


def _row(logs: list[RunLog]) -> ArmSummary:
    summaries = [log.summary for log in logs if log.summary is not None]
    extra = sum(step.extra.get("extra_rollouts", 0.0) for log in logs for step in log.steps)
    return ArmSummary(
        labels=logs[0].labels,
        runs=len(logs),
        success=median_interval([final_success(log) for log in logs]),
        stopped=sum(summary["stopped"] is not None for summary in summaries),
        kept=_median([summary["kept_ratio"] for summary in summaries]),
        extra_rollouts=int(extra),
        tokens=_median([summary["tokens"] for summary in summaries]),
        seconds=_median([summary["seconds"] for summary in summaries]),
    )


def _median(values: list[float]) -> float:
    return median_interval(values).estimate


def table(arms: list[ArmSummary]) -> list[list[str]]:
    """Return the rows of the printed table, header first."""
    names = list(dict.fromkeys(name for arm in arms for name in arm.labels))
    resampled = any(arm.extra_rollouts for arm in arms)
    head = [*names, "seeds", "median success", "interval", "stopped", "kept", "tokens", "s/run"]
    rows = [head + ["extra rollouts"] * resampled]
    for arm in arms:
        success = arm.success
        has = success.n > 0
        interval = (
            f"[{success.low:.1%}, {success.high:.1%}] at {success.confidence:.0%}"
            if success.n > 1
            else "- (1 seed)" * has or "-"
        )
        cells = [arm.labels.get(name, "-") for name in names]
        cells += [
            str(arm.runs),
            f"{success.estimate:.1%}" if has else "-",
            interval,
            str(arm.stopped),
            f"{arm.kept:.0%}",
            f"{arm.tokens:,.0f}",
            f"{arm.seconds:.0f}",
        ]
        rows.append(cells + [f"{arm.extra_rollouts:,}"] * resampled)
    return rows
