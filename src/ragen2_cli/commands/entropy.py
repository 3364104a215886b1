"""``ragen2 analyze entropy``: phases of an entropy series, its verdict, and what went with it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ragen2_cli.core.courses import Course


def entropy(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Runs, TRL output folders, or logs (parquet, jsonl, CSV, trainer_state.json);"
            " the newest run by default."
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option("--entropy", help="Column of the entropy in a log.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Foreign columns: prompt=..,completion=..,step=..")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write entropy and rates by step.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Tell whether entropy erupts, in which phases, and what degenerates with it.

    Example: ragen2 analyze entropy runs/mine --csv entropy.csv
    """
    from ragen2_cli.commands.literal import printable
    from ragen2_cli.core.courses import report

    courses = read(paths or [], columns=columns, entropy=column)
    if csv is not None:
        _write(csv, courses)
    reports = [report(course) for course in courses]
    if json_:
        from ragen2_cli.runs.jsonl import dumps

        typer.echo(dumps(reports if len(reports) > 1 else reports[0]))
        return
    typer.echo(printable("\n\n".join(as_text(each) for each in reports)))


def read(
    paths: Sequence[Path], *, columns: str | None = None, entropy: str | None = None
) -> "list[Course]":
    """Read the courses of runs and logs; of a sweep, those of its finished cells.

    Raises:
        UserError: Nothing to read at a path, or a sweep without a finished cell.
    """
    import sys

    from ragen2_cli.errors import UserError
    from ragen2_cli.logs import Choice
    from ragen2_cli.logs.courses import read_course
    from ragen2_cli.logs.layout import parse_columns
    from ragen2_cli.runs import find
    from ragen2_cli.runs.kinds import is_run, is_sweep
    from ragen2_cli.sweeps.folder import SweepDirectory

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    chosen = list(paths) or [find(None, say).path]
    found: list[Path] = []
    for path in chosen:
        if is_sweep(path):
            sweep = SweepDirectory.open(path)
            ended = [sweep.run_path(cell) for cell in sweep.cells.values() if sweep.finished(cell)]
            if not ended:
                raise UserError(f"{path}: no cell of this sweep has finished yet")
            found += ended
        else:
            found.append(path)
    if (columns or entropy) and all(is_run(path) for path in found):
        flag = "--columns" if columns else "--entropy"
        raise UserError(f"{flag} is for logs; {found[0]} is a run, whose files say it")
    choice = Choice(columns=parse_columns(columns or ""))
    return [read_course(path, choice, entropy=entropy) for path in found]


def as_text(found: dict[str, Any]) -> str:
    """Return a report as lines of plain text."""
    from ragen2_cli.commands.literal import visible
    from ragen2_cli.commands.tables import align

    lines = [f"{visible(found['path'])}: {visible(found['basis'])}"]
    lines += [f"  {visible(text)}" for text in found["said"]]
    gaps = f", {found['missing']} missing" if found["missing"] else ""
    lines += ["", f"verdict: {found['verdict']}  ({found['points']} values{gaps})"]
    if found["threshold"] is not None:
        lines.append(
            f"  a move counts from {found['threshold']:.3g} on; noise {found['noise']:.2g},"
            f" level {found['level']:.3g}"
        )
    if found["phases"]:
        table = [["phase", "steps", "height", "period", "alarm"]]
        table += [_phase_cells(phase) for phase in found["phases"]]
        lines += ["", align(table)]
    lines += ["", _alarm_line(found)]
    if found["patterns"]:
        lines += ["", align(_pattern_table(found))]
    return "\n".join(lines)


def _phase_cells(phase: dict[str, Any]) -> list[str]:
    alarm = "-"
    if phase.get("alarm") is not None:
        alarm = f"step {phase['alarm']}, {phase['early']} before its top"
    return [
        phase["kind"],
        f"{phase['start']} to {phase['end']}",
        f"{phase['height']:.3g}",
        "-" if phase["period"] is None else str(phase["period"]),
        alarm if phase["kind"] == "eruption" else "",
    ]


def _alarm_line(found: dict[str, Any]) -> str:
    if not found["alarms"]:
        return "a live alarm would not have fired"
    steps = ", ".join(str(step) for step in found["alarms"][:8])
    more = "..." if len(found["alarms"]) > 8 else ""
    return f"a live alarm would have fired at step {steps}{more}"


def _pattern_table(found: dict[str, Any]) -> list[list[str]]:
    if not any(phase["kind"] == "eruption" for phase in found["phases"]):
        return [["pattern (rate)", "first fifth", "last fifth"]] + [
            [name.replace("_", " "), _share(row["first"]), _share(row["last"])]
            for name, row in found["patterns"].items()
        ]
    kinds = ("descent", "eruption", "subsidence")
    table = [["pattern (rate)", "before", *kinds, "after each cycle", "course"]]
    for name, row in found["patterns"].items():
        after = " ".join(_share(value) for value in row["after"]) or "-"
        table.append(
            [
                name.replace("_", " "),
                _share(row["before"]),
                *(_share(row["mean_by_kind"].get(kind)) for kind in kinds),
                after,
                row["course"],
            ]
        )
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def rows(courses: "Sequence[Course]") -> list[dict[str, Any]]:
    """Return one row per source and step: entropy, phase, alarm, and every rate."""
    from ragen2_cli.core.courses import report

    found = []
    for course in courses:
        told = report(course)
        for place, step in enumerate(course.steps):
            phase = next(
                (one["kind"] for one in told["phases"] if one["start"] <= step <= one["end"]), None
            )
            found.append(
                {"path": course.path, "step": step, "entropy": course.entropy[place]}
                | {"phase": phase, "alarm": int(step in told["alarms"])}
                | {name: rate[place] for name, rate in course.rates.items()}
            )
    return found


def _write(path: Path, courses: "Sequence[Course]") -> None:
    import csv
    import io

    from ragen2_cli.runs.atomic import reported

    table = rows(courses)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    with reported(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.getvalue(), encoding="utf-8")
