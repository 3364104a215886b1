"""``ragen2 diagnose --watch RUN|SWEEP``: a live view of what other processes are writing."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, Group

    from ragen2_cli.records import Step

REFRESH_SECONDS = 1.0
SIDE_BY_SIDE = 4
WIDTH = 40
PANEL_WIDTH = 70
_LABELS = 42
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass
class View:
    """What one look at the folder gave.

    Attributes:
        steps: Rows of metrics.jsonl.
        diagnostics: Rows of diagnostics.jsonl.
        evaluations: The sampled held-out measurements.
        finished: Whether the run has ended.
        problem: Why the folder cannot be read just now; a run that restarts recovers.
    """

    steps: "list[Step]" = field(default_factory=list)
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[Any] = field(default_factory=list)
    finished: bool = False
    problem: str | None = None


def look(path: Path) -> View:
    """Read the run as it is now; half-written lines are left out, a missing file is no error."""
    from ragen2_cli.errors import UserError
    from ragen2_cli.runs import RunDirectory

    try:
        run = RunDirectory.open(path)
        sampled = [row for row in run.read_evaluations() if row.decoding == "sampled"]
        return View(
            steps=_last_of_each(run.read_steps(), lambda row: row.step),
            diagnostics=_last_of_each(run.read_diagnostics(), lambda row: row["step"]),
            evaluations=sampled,
            finished=run.finished,
        )
    except UserError as error:
        return View(problem=str(error))


def _last_of_each(rows: list[Any], key: Callable[[Any], int]) -> list[Any]:
    """Return the rows of a run whose restart may have written a step twice."""
    return [row for _, row in sorted({key(row): row for row in rows}.items())]


def summary(view: View, width: int = WIDTH) -> list[tuple[str, str, str]]:
    """Return (name, newest value, history) lines of a view, histories ``width`` steps long."""
    lines: list[tuple[str, str, str]] = []
    steps = view.steps

    def add(name: str, values: list[float | None], style: str) -> None:
        known = [value for value in values if value is not None]
        if known:
            lines.append((name, format(known[-1], style), sparkline(known, width)))

    add("training success", [row.success for row in steps], ".1%")
    if view.evaluations:
        newest = view.evaluations[-1]
        bars = sparkline([row.success for row in view.evaluations], max(1, width - 24))
        history = f"{bars} [{newest.ci_low:.1%}, {newest.ci_high:.1%}] n {newest.episodes}"
        lines.append(("held-out success", f"{newest.success:.1%}", history))
    measured = view.diagnostics
    add("mutual information", [row.get("mi_estimate") for row in measured], ".3g")
    add("MI-ZScore", [row.get("mi_zscore") for row in measured], ".3g")
    add("conditional entropy", [row.get("conditional_entropy") for row in measured], ".3g")
    add("token entropy", [row.entropy for row in steps], ".3g")
    add("kept groups", [row.kept_groups / row.groups for row in steps if row.groups], ".0%")
    add("dead groups", [row.dead_groups / row.groups for row in steps if row.groups], ".0%")
    add("invalid turns", [row.invalid_rate for row in steps], ".1%")
    add("response length", [row.response_length for row in steps], ".1f")
    return lines


def sparkline(values: list[float], width: int = WIDTH) -> str:
    """Return the last values as bars between their smallest and largest; flat is a middle line."""
    recent = values[-width:]
    low, high = min(recent), max(recent)
    if high <= low:
        return _BARS[4] * len(recent)
    return "".join(_BARS[1 + round(7 * (value - low) / (high - low))] for value in recent)


def verdict_lines(view: View) -> list[str]:
    """Return the verdict so far and the newest warnings."""
    from math import nan

    from ragen2_cli.core.eruption import alarm_positions
    from ragen2_cli.core.regimes import judge

    verdict = judge(view.diagnostics)
    lines = [f"verdict: {verdict.regime}", *verdict.reasons]
    alarms = alarm_positions([nan if row.entropy is None else row.entropy for row in view.steps])
    if alarms:
        lines.append(f"warning: entropy erupted at step {view.steps[alarms[-1]].step}")
    if view.diagnostics:
        lines += [f"warning: {text}" for text in view.diagnostics[-1].get("warnings", [])]
    return lines


def watch_run(path: Path, *, looks: int | None = None) -> None:
    """Show a run, or the runs of a sweep side by side, until they end or the user interrupts.

    Live on a terminal, else a line per step and run.

    Args:
        path: The folder of a run or of a sweep; it may appear later. Of a sweep with more than
            ``SIDE_BY_SIDE`` cells, those under way are shown.
        looks: Stop after so many looks; None: until everything has ended.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        _live(path, console, looks)
    else:
        _plain(path, looks)


def look_at(path: Path) -> tuple[dict[str, View], bool]:
    """Return a view per run of ``path`` by its title, and whether nothing more will come."""
    from ragen2_cli.errors import UserError
    from ragen2_cli.runs.kinds import is_sweep
    from ragen2_cli.sweeps.folder import SweepDirectory
    from ragen2_cli.sweeps.progress import describe

    if not is_sweep(path):
        view = look(path)
        return {str(path): view}, view.finished
    try:
        sweep = SweepDirectory.open(path)
    except UserError as error:
        return {str(path): View(problem=str(error))}, False
    cells = list(sweep.cells.values())
    ended = all(cell.status in ("done", "failed") for cell in cells)
    if len(cells) > SIDE_BY_SIDE:
        running = [cell for cell in cells if cell.status == "running"]
        cells = (running or cells)[-SIDE_BY_SIDE:]
    views = {}
    for cell in cells:
        view = look(sweep.run_path(cell))
        waits = view.problem and cell.status in ("planned", "running", "interrupted")
        views[describe(cell)] = View(problem=cell.status) if waits else view
    return views, ended


def _views(path: Path, looks: int | None) -> Iterator[dict[str, View]]:
    """Yield looks until the end; a run's last good view stands in while it cannot be read."""
    last: dict[str, View] = {}
    count = 0
    while True:
        seen, ended = look_at(path)
        for title, view in seen.items():
            if view.problem and title in last:
                good = last[title]
                seen[title] = View(
                    good.steps, good.diagnostics, good.evaluations, problem=view.problem
                )
        last = seen
        yield seen
        count += 1
        if ended or (looks is not None and count >= looks):
            return
        time.sleep(REFRESH_SECONDS)


def _live(path: Path, console: "Console", looks: int | None) -> None:
    from rich.live import Live
    from rich.table import Table

    with Live(console=console, refresh_per_second=4) as live:
        try:
            for views in _views(path, looks):
                columns = max(1, min(len(views), console.width // PANEL_WIDTH))
                width = min(WIDTH, max(8, console.width // columns - _LABELS))
                screens = [_screen(title, view, width) for title, view in views.items()]
                page = Table.grid(padding=(0, 3, 1, 0))
                for start in range(0, len(screens), columns):
                    page.add_row(*screens[start : start + columns])
                live.update(page)
        except KeyboardInterrupt:
            return


def _screen(title: str, view: View, width: int = WIDTH) -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from ragen2_cli.commands.literal import visible

    step = f"step {view.steps[-1].step}" if view.steps else "no step yet"
    state = "finished" if view.finished else f"waiting: {view.problem}" if view.problem else step
    table = Table.grid(padding=(0, 2))
    for name, value, history in summary(view, width):
        table.add_row(Text(name), Text(value, style="bold"), Text(history, style="cyan"))
    verdict, *details = verdict_lines(view)
    color = "red" if "collapse" in verdict else "green" if "diverse" in verdict else "yellow"
    head = visible(f"{title}  {step}  {state if state != step else ''}").rstrip()
    return Group(
        Text(head, style="bold"), table, Text(verdict, style=f"bold {color}"), *map(Text, details)
    )


def _plain(path: Path, looks: int | None) -> None:
    """Write a line whenever a new step has appeared, and the verdicts at the end."""
    import typer

    from ragen2_cli.commands.literal import printable

    shown: dict[str, int] = {}
    problems: dict[str, str | None] = {}
    views: dict[str, View] = {}
    try:
        for views in _views(path, looks):
            for title, view in views.items():
                name = f"{title}: " if len(views) > 1 else ""
                newest = view.steps[-1].step if view.steps else -1
                if view.steps and newest != shown.get(title, -1):
                    values = ", ".join(f"{key} {value}" for key, value, _ in summary(view))
                    typer.echo(printable(f"{name}step {newest}: {values}"))
                    shown[title] = newest
                if view.problem and view.problem != problems.get(title):
                    typer.echo(printable(f"{name}waiting: {view.problem}"), err=True)
                problems[title] = view.problem
    except KeyboardInterrupt:
        return
    for title, view in views.items():
        name = f"{title}: " if len(views) > 1 else ""
        for line in verdict_lines(view):
            typer.echo(printable(f"{name}{line}"))
