"""``ragen2 show``: read what a run's policy thought, answered and earned."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ragen2_cli.commands.episode_text import Line
    from ragen2_cli.runs.selection import Selected


def show(
    run: Annotated[
        Path | None, typer.Argument(help="The run's folder; the newest by default.", metavar="RUN")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Its step; the newest by default.")] = None,
    group: Annotated[int | None, typer.Option(min=0, help="Only this prompt group.")] = None,
    rollout: Annotated[int | None, typer.Option(min=0, help="Only this rollout of it.")] = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            help="Only these: success, failure (any other end), action_budget, turn_cap,"
            " context_limit, grader_error, kept, dropped or invalid (a turn without a valid"
            " answer)."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Show at most so many; 0 for all.")] = 5,
    json_: Annotated[bool, typer.Option("--json", help="Print the episodes as JSON.")] = False,
) -> None:
    """Read rollouts: observations, reasoning, answers, rewards, advantage, kept or dropped.

    Example: ragen2 show runs/frozenlake-top-p-20260101-1 --step 50 --outcome failure --limit 3
    """
    from ragen2_cli.runs import find
    from ragen2_cli.runs.selection import select

    def say(text: str) -> None:
        typer.echo(text, err=True)

    found = find(run, say)
    selected = select(
        found, say, step=step, group=group, rollout=rollout, outcome=outcome, limit=limit
    )
    if json_:
        _print_json(found.path, selected)
    else:
        _print_lines(_lines(selected))
    if selected.matched > len(selected.episodes):
        say(f"{len(selected.episodes)} of {selected.matched} episodes shown; --limit 0 for all")


def _lines(selected: "Selected") -> "list[Line]":
    """Return the episodes under the headings of their groups."""
    from ragen2_cli.commands.episode_text import episode_lines, group_line

    lines: list[Line] = []
    last = None
    for episode in selected.episodes:
        if episode.group != last:
            last = episode.group
            seen = selected.groups[episode.group]
            lines.append(group_line(last, seen.returns, seen.successes, episode.kept is not False))
        lines += episode_lines(episode)
        lines.append(("", ""))
    return lines


def on_terminal() -> bool:
    """Whether a person sees stdout directly."""
    import sys

    return sys.stdout.isatty()


def _print_lines(lines: "list[Line]") -> None:
    """Print in colors on a terminal; plain, without wrapping, elsewhere."""
    from ragen2_cli.commands.literal import printable

    if not on_terminal():
        for text, _ in lines:
            typer.echo(printable(text))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for text, style in lines:
        console.print(Text(printable(text), style=style))


def _print_json(path: Path, selected: "Selected") -> None:
    """Print one JSON object with the whole text of every episode shown."""
    from dataclasses import asdict

    from ragen2_cli.records import SCHEMA_VERSION
    from ragen2_cli.runs.jsonl import dumps

    body = {
        "schema_version": SCHEMA_VERSION,
        "run": str(path),
        "step": selected.step,
        "matched": selected.matched,
        "episodes": [asdict(episode) for episode in selected.episodes],
    }
    typer.echo(dumps(body))
