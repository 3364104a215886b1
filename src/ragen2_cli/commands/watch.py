"""``ragen2 diagnose --watch RUN``: a live view of a run that another process is writing."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, Group

    from ragen2_cli.records import Step

REFRESH_SECONDS = 1.0
WIDTH = 40
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass
class View:
    """What one look at the folder gave.

    Attributes:
        steps: Rows of metrics.jsonl.
        diagnostics: Rows of diagnostics.jsonl.
        evaluation: The newest sampled held-out success, or None.
        finished: Whether the run has ended.
        problem: Why the folder cannot be read just now; a run that restarts recovers.
    """

    steps: "list[Step]" = field(default_factory=list)
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    evaluation: Any = None
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
            evaluation=sampled[-1] if sampled else None,
            finished=run.finished,
        )
    except UserError as error:
        return View(problem=str(error))


def _last_of_each(rows: list[Any], key: Callable[[Any], int]) -> list[Any]:
    """Return the rows of a run whose restart may have written a step twice."""
    return [row for _, row in sorted({key(row): row for row in rows}.items())]


def summary(view: View) -> list[tuple[str, str, str]]:
    """Return (name, newest value, history) lines of a view."""
    lines: list[tuple[str, str, str]] = []
    steps = view.steps

    def add(name: str, values: list[float | None], style: str) -> None:
        known = [value for value in values if value is not None]
        if known:
            lines.append((name, format(known[-1], style), sparkline(known)))

    add("training success", [row.success for row in steps], ".1%")
    if view.evaluation is not None:
        best = view.evaluation
        lines.append(
            (
                "held-out success",
                f"{best.success:.1%}",
                f"step {best.step}, n {best.episodes}, [{best.ci_low:.1%}, {best.ci_high:.1%}]",
            )
        )
    measured = view.diagnostics
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
    from ragen2_cli.core.regimes import judge

    verdict = judge(view.diagnostics)
    lines = [f"verdict: {verdict.regime}", *verdict.reasons]
    if view.diagnostics:
        lines += [f"warning: {text}" for text in view.diagnostics[-1].get("warnings", [])]
    return lines


def watch_run(path: Path, *, looks: int | None = None) -> None:
    """Show the run until it ends (or is interrupted): live on a terminal, else a line per step.

    Args:
        path: The run's folder; it may appear later.
        looks: Stop after so many looks; None: until the run ends.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        _live(path, console, looks)
    else:
        _plain(path, looks)


def _views(path: Path, looks: int | None) -> Iterator[View]:
    """Yield looks until the run ends; the last good view stands in while it cannot be read."""
    last = View()
    count = 0
    while True:
        view = look(path)
        if view.problem:
            view = View(last.steps, last.diagnostics, last.evaluation, problem=view.problem)
        last = view
        yield view
        count += 1
        if view.finished or (looks is not None and count >= looks):
            return
        time.sleep(REFRESH_SECONDS)


def _live(path: Path, console: "Console", looks: int | None) -> None:
    from rich.live import Live

    with Live(console=console, refresh_per_second=4) as live:
        try:
            for view in _views(path, looks):
                live.update(_screen(path, view))
        except KeyboardInterrupt:
            return


def _screen(path: Path, view: View) -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from ragen2_cli.commands.literal import visible

    step = f"step {view.steps[-1].step}" if view.steps else "no step yet"
    state = "finished" if view.finished else f"waiting: {view.problem}" if view.problem else step
    table = Table.grid(padding=(0, 2))
    for name, value, history in summary(view):
        table.add_row(Text(name), Text(value, style="bold"), Text(history, style="cyan"))
    verdict, *details = verdict_lines(view)
    color = "red" if "collapse" in verdict else "green" if "diverse" in verdict else "yellow"
    title = Text(
        visible(f"{path}  {step}  {state if state != step else ''}").rstrip(), style="bold"
    )
    return Group(title, table, Text(verdict, style=f"bold {color}"), *map(Text, details))


def _plain(path: Path, looks: int | None) -> None:
    """Write a line whenever a new step has appeared, and the verdict at the end."""
    import typer

    from ragen2_cli.commands.literal import printable

    shown, view, problem = -1, View(), None
    try:
        for view in _views(path, looks):
            newest = view.steps[-1].step if view.steps else -1
            if newest != shown and view.steps:
                values = ", ".join(f"{name} {value}" for name, value, _ in summary(view))
                typer.echo(printable(f"step {newest}: {values}"))
                shown = newest
            if view.problem != problem and view.problem:
                typer.echo(printable(f"waiting: {view.problem}"), err=True)
            problem = view.problem
    except KeyboardInterrupt:
        return
    for line in verdict_lines(view):
        typer.echo(printable(line))
