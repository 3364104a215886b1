"""What runs and sweeps have written, as records: the way in for compare, analyze and plot."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ragen2_cli.config.load import build_config
from ragen2_cli.errors import UserError, counted
from ragen2_cli.records import Evaluation, RunLog
from ragen2_cli.runs import RunDirectory
from ragen2_cli.runs.kinds import is_sweep
from ragen2_cli.sweeps.folder import SweepDirectory


def load_run(path: Path, labels: dict[str, str] | None = None) -> RunLog:
    """Read one run's numbers.

    Raises:
        UserError: No run there, or files that are damaged or of a newer schema.
    """
    run = RunDirectory.open(path)
    return RunLog(
        name=run.path.name,
        labels=labels or {},
        config=run.read_config()["config"],
        steps=tuple(run.read_steps()),
        evaluations=tuple(run.read_evaluations()),
        diagnostics=tuple(run.read_diagnostics()),
        summary=run.read_summary(),
    )


def load_sweep(path: Path) -> list[RunLog]:
    """Read the finished cells of a sweep, in the order of planning.

    Raises:
        UserError: No sweep there, no finished cell in it, or damaged files.
    """
    sweep = SweepDirectory.open(path)
    logs = [
        load_run(sweep.run_path(cell), dict(cell.labels))
        for cell in sweep.cells.values()
        if sweep.finished(cell)
    ]
    if not logs:
        raise UserError(f"{path}: none of its {len(sweep.cells)} cells has finished yet")
    return logs


def load(paths: Sequence[Path], say: Callable[[str], None]) -> list[RunLog]:
    """Read runs and sweeps into one pool.

    A run on its own is labeled by each setting that differs from the defaults in any such run, or
    that a sweep of the pool varied, so that runs of equal settings fall into one arm.

    Args:
        paths: Run and sweep folders; empty for the newest sweep or run.
        say: Called with one line when the newest was taken, when cells are left out, and when what
            counts as the end of training differs between the runs.

    Raises:
        UserError: A path that is neither, one given twice, or no data at all.
    """
    if not paths:
        paths = [newest(say)]
    resolved = [path.resolve() for path in paths]
    twice = next((path for path in paths if resolved.count(path.resolve()) > 1), None)
    if twice is not None:
        raise UserError(f"{twice} is given twice; copies would count as independent runs")
    pool: list[RunLog] = []
    alone: list[int] = []
    for path in paths:
        if not is_sweep(path):
            alone.append(len(pool))
            pool.append(load_run(path))
            continue
        found, planned = load_sweep(path), len(SweepDirectory.open(path).cells)
        pool += found
        if len(found) < planned:
            left = planned - len(found)
            say(f"warning: {path}: unfinished and left out: {left} of {counted(planned, 'cell')}")
    keys = {key for log in pool for key in log.labels}
    keys |= {key for index in alone for key in _unusual(pool[index])}
    for index in alone:
        pool[index] = _labeled(pool[index], keys)
    warning = unequal_lengths(pool)
    if warning:
        say(f"warning: the runs are not equally long: {warning}")
    return pool


def newest(say: Callable[[str], None]) -> Path:
    """Return the newest sweep, else the newest run, and say which."""
    if any(Path("sweeps").glob("*/cells.jsonl")):
        path = SweepDirectory.newest().path
        say(f"reading {path} (the newest sweep)")
        return path
    path = RunDirectory.newest().path
    say(f"reading {path} (the newest run)")
    return path


def _unusual(log: RunLog) -> list[str]:
    """Return the settings of a run that differ from the defaults of its algorithm."""
    from ragen2_cli.sweeps.axes import flat

    plain = flat(
        build_config({"algorithm": {"name": log.config["algorithm"]["name"]}}).model_dump()
    )
    return [
        key
        for key, value in flat(log.config).items()
        if plain.get(key) != value and key not in ("seed", "schema_version")
    ]


def _labeled(log: RunLog, keys: Collection[str]) -> RunLog:
    from ragen2_cli.sweeps.axes import flat

    labels = {
        key: f"{value:g}" if isinstance(value, float) else str(value)
        for key, value in flat(log.config).items()
        if key in keys
    }
    return replace(log, labels=labels)


def arm_of(log: RunLog) -> str:
    """Return the name of a run's arm: its labels without the seed."""
    return ", ".join(f"{name} {label}" for name, label in log.labels.items()) or "default"


def by_arm(logs: Sequence[RunLog]) -> dict[str, list[RunLog]]:
    """Group runs by arm, in order of first appearance."""
    arms: dict[str, list[RunLog]] = {}
    for log in logs:
        arms.setdefault(arm_of(log), []).append(log)
    return arms


def sampled(log: RunLog) -> list[Evaluation]:
    """Return a run's sampled held-out evaluations in the order of their steps."""
    rows = [row for row in log.evaluations if row.decoding == "sampled"]
    return sorted(rows, key=lambda row: row.step)


@dataclass(frozen=True)
class Ending:
    """How far a run came, which decides what its last and its best evaluation mean.

    Attributes:
        run: Its name.
        step: Of its last sampled evaluation; None without one after training began.
        evaluations: Its sampled evaluations after training began: the best is the best of these.
        ended: ``finished``, ``unfinished``, or ``stopped early``.
    """

    run: str
    step: int | None
    evaluations: int
    ended: str


def ending(log: RunLog) -> Ending:
    """Return how far a run came."""
    steps = [row.step for row in sampled(log) if row.step > 0]
    if log.summary is None:
        ended = "unfinished"
    else:
        ended = "finished" if log.summary.get("stopped") is None else "stopped early"
    return Ending(log.name, steps[-1] if steps else None, len(steps), ended)


def unequal_lengths(logs: Sequence[RunLog]) -> str:
    """Return a warning when the last evaluations of runs are not comparable; empty when they are.

    They are when every run finished, and was evaluated as often and last at the same step.
    """
    ends = [ending(log) for log in logs]
    steps = sorted({one.step for one in ends if one.step is not None})
    parts = [
        f"{counted(len(names), 'run')} of {len(ends)} {ended} ({', '.join(names[:4])}"
        + ", ..." * (len(names) > 4)
        + ")"
        for ended in ("unfinished", "stopped early")
        if (names := [one.run for one in ends if one.ended == ended])
    ]
    if len(steps) > 1:
        parts.append(f"last evaluations at steps {steps[0]} to {steps[-1]}")
    tries = sorted({one.evaluations for one in ends})
    if len(tries) > 1:
        parts.append(f"{tries[0]} to {tries[-1]} evaluations, of which a best one is chosen")
    return "; ".join(parts)


def final_success(log: RunLog) -> float | None:
    """Return the last sampled held-out success; None without an evaluation after training."""
    rows = sampled(log)
    return rows[-1].success if rows and rows[-1].step > 0 else None
