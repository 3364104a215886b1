"""``ragen2 envs``: list the environments, show what a policy reads, play a board."""

from typing import Annotated, Any

import typer

from ragen2_cli.commands.doctor import doctor

app = typer.Typer(no_args_is_help=True, help="Environments: list, show one, play one.")
app.command("doctor")(doctor)

Name = Annotated[str, typer.Argument(help="A name (`ragen2 envs list`) or FILE.py:CLASS.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="An option of it: key=value.")]
Level = Annotated[float, typer.Option(min=0, max=100, help="Percent of noise.")]
Kind = Annotated[str, typer.Option(help="Noise: slip, action or reward.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_(json_: Json = False) -> None:
    """List the environments; --json adds their answers and options, as `ragen2 envs show` does.

    Example: ragen2 envs list
    """
    from dataclasses import asdict

    from ragen2_cli.commands.tables import align
    from ragen2_cli.envs.catalog import cards

    found = cards()
    if json_:
        _echo_json([asdict(card) for card in found])
        return
    table = [["name", "what"], *([card.name, card.summary] for card in found)]
    typer.echo(align(table))
    typer.echo("\nAnswers, options and limits: ragen2 envs show NAME")
    typer.echo("Your own: --env path/to/file.py:Class (docs/environments.md)")


@app.command("show")
def show(
    name: Name,
    seed: Annotated[int, typer.Option(min=0, help="The example's board.")] = 0,
    set_: Sets = None,
    stochasticity: Level = 0.0,
    kind: Kind = "slip",
    json_: Json = False,
) -> None:
    """Show an environment's limits and options and what a policy reads first.

    Example: ragen2 envs show sokoban --seed 3
    """
    from ragen2_cli.envs.catalog import page

    found: dict[str, Any] = page(name, seed, _options(set_, stochasticity, kind))
    if json_:
        _echo_json(found)
        return
    typer.echo(f"{found['name']}: {found['summary']}")
    typer.echo(f"answers: {found['answers']}")
    typer.echo(f"options: {_pairs(found['options']) or 'none'}")
    typer.echo(f"limits: {_pairs(found['limits'])}")
    for style in ("full", "compact"):
        who = "every other model" if style == "full" else "the embedded policy"
        typer.echo(f"\nwhat {who} reads (seed {seed}, style {style}):")
        for message in found[style]:
            lines = message["content"].split("\n")
            typer.echo("\n".join(f"  {message['role'] + ':':<8}{line}" for line in lines[:1]))
            typer.echo("\n".join(f"  {'':<8}{line}" for line in lines[1:]))


@app.command("play")
def play(
    name: Name,
    seed: Annotated[int | None, typer.Option(min=0, help="The board; default: any.")] = None,
    set_: Sets = None,
    stochasticity: Level = 0.0,
    kind: Kind = "slip",
    json_: Json = False,
) -> None:
    """Play a board yourself, under the rules that a policy has.

    Example: ragen2 envs play frozenlake --seed 7
    """
    import secrets
    import sys

    from ragen2_cli.envs import human, make

    board = secrets.randbelow(1_000_000) if seed is None else seed
    env = make(name, **_options(set_, stochasticity, kind))

    def read() -> str | None:
        typer.echo("> ", nl=False, err=json_)
        return sys.stdin.readline() or None

    session = human.play(env, board, read, lambda text: typer.echo(text, err=json_))
    status = "left" if session is None else session.status
    total = None if session is None else session.episode_return
    if json_:
        _echo_json({"env": name, "seed": board, "status": status, "return": total})
    elif total is None:
        typer.echo(f"\n{status}; the same board again: --seed {board}")
    else:
        typer.echo(f"{status}, return {total:g}; the same board again: --seed {board}")


def _options(sets: list[str] | None, stochasticity: float, kind: str) -> dict[str, Any]:
    """Return the arguments of ``make`` from flags."""
    from ragen2_cli.config.load import parse_set

    options: dict[str, Any] = {}
    for text in sets or []:
        options.update(parse_set(text.removeprefix("env.options.")))
    return {**options, "stochasticity": stochasticity / 100, "kind": kind}


def _pairs(values: dict[str, object]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


def _echo_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, ensure_ascii=False))
