"""``ragen2 plot``: a figure, the CSV behind it, and how it was made."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Kind = Literal[
    "all",
    "curves",
    "dead-share",
    "dynamics",
    "entropy",
    "filter",
    "gradients",
    "heatmap",
    "lengths",
    "regimes",
    "scatter",
    "sensitivity",
    "separation",
    "spearman",
    "stochasticity",
]


def plot(
    kind: Annotated[Kind, typer.Argument(help="Which figure; all draws what the data allow.")],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Sweeps and runs; the newest sweep (or run) by default."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("-o", "--out", metavar="PATH", help="File, or folder; default: PATH/figures."),
    ] = None,
    format_: Annotated[
        Literal["png", "pdf", "svg"], typer.Option("--format", help="File format.")
    ] = "png",
    step: Annotated[
        int | None,
        typer.Option(help="The step of filter and gradients (default: last), or of heatmap."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the files' names as JSON.")] = False,
) -> None:
    """Draw a figure from what runs have written, with its numbers and its runs' as CSV.

    Example: ragen2 plot curves sweeps/demo -o curves.png
    """
    import sys

    from ragen2_cli.commands import figures
    from ragen2_cli.errors import UserError
    from ragen2_cli.sweeps.results import newest

    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:  # every figure of `all` reads the same runs
            sys.stderr.write(f"{text}\n")
        said.add(text)

    if step is not None and kind not in ("all", "filter", "gradients", "heatmap"):
        raise UserError(f"--step: {kind} has no single step; filter, gradients and heatmap do")
    chosen = list(paths or [newest(say)])
    kinds = [*figures.READERS, "regimes"] if kind == "all" else [kind]
    written = []
    runs: list[dict[str, Any]] = []
    for each in kinds:
        file = figure_file(each, chosen[0], out, format_, folder=kind == "all")
        try:
            rows, figure = figures.make(each, chosen, step, say)
        except UserError as error:
            if kind != "all":
                raise
            say(f"no {each}: {error}")
            continue
        if not rows and kind == "all":
            say(f"no {each}: no data")
            continue
        write(figure, rows, file, chosen)
        if each in figures.FROM_LOGS:
            runs = runs or figures.runs(chosen, say)
            write_table(runs, file.with_suffix(".runs.csv"))
        written.append(str(file))
    if json_:
        import json

        typer.echo(json.dumps({"files": written}))
    else:
        typer.echo("\n".join(written))


def figure_file(
    kind: str, first: Path, out: str | None, form: str = "png", *, folder: bool = False
) -> Path:
    """Return where a figure goes: below the path it is of, or where it was asked for.

    Args:
        kind: Its name, which is that of the file in a folder.
        first: What it is drawn from.
        out: A file, whose suffix may be missing, or a folder: one that is there or ends with ``/``.
        form: The suffix.
        folder: Whether ``out`` is a folder in any case.
    """
    if out is None:
        return (first.parent if first.is_file() else first) / "figures" / f"{kind}.{form}"
    path = Path(out)
    if folder or out.endswith("/") or path.is_dir():
        return path / f"{kind}.{form}"
    return path if path.suffix else path.with_name(f"{path.name}.{form}")


def write(figure: Any, rows: list[dict[str, Any]], file: Path, paths: list[Path]) -> None:
    """Write the figure, ``<stem>.csv`` with its numbers and ``<stem>.json`` with how it was made.

    Raises:
        UserError: The folder cannot be written, or the format is unknown.
    """
    import sys
    from datetime import UTC, datetime
    from importlib.metadata import version

    from ragen2_cli.errors import UserError
    from ragen2_cli.runs.atomic import reported
    from ragen2_cli.runs.jsonl import dumps

    with reported(f"cannot write {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            figure.savefig(file)
        except ValueError as error:
            raise UserError(f"-o {file}: {str(error).splitlines()[0]}") from None
        write_table(rows, file.with_suffix(".csv"))
        about = {
            "command": " ".join(["ragen2", *sys.argv[1:]]),
            "paths": [str(path) for path in paths],
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "versions": {
                name: version(name) for name in ("ragen2", "torch", "trl", "transformers", "numpy")
            },
        }
        file.with_suffix(".json").write_text(dumps(about, indent=2) + "\n", encoding="utf-8")


def write_table(rows: list[dict[str, Any]], file: Path) -> None:
    """Write rows as CSV, with a column for every name that one of them has.

    Raises:
        UserError: It cannot be written.
    """
    import csv

    from ragen2_cli.runs.atomic import reported

    names = list(dict.fromkeys(name for row in rows for name in row))
    with (
        reported(f"cannot write {file}"),
        file.open("w", newline="", encoding="utf-8") as table,
    ):
        writer = csv.DictWriter(table, names or ["no data"])
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    """Return what stands in the CSV: absent values are empty, lists are joined by blanks."""
    if value is None or value != value:
        return ""
    if isinstance(value, list):
        return " ".join(f"{item:.6g}" for item in value)
    return f"{value:.6g}" if isinstance(value, float) else value
