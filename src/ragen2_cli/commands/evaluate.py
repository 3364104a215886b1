"""``ragen2 evaluate``: held-out success of a run or of a model."""

from dataclasses import asdict
from typing import Annotated

import typer


def evaluate(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A run folder or a model (embedded, hub id, folder, .gguf).", metavar="RUN|MODEL"
        ),
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment; a run's own by default.")] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**16,
            help="Different held-out prompts; a run's own number by default, else 512.",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.01, help="Temperature of sampling.")] = 1.0,
    greedy: Annotated[bool, typer.Option(help="Also decode greedily.")] = True,
    checkpoint: Annotated[
        int | None,
        typer.Option(help="Evaluate this checkpoint's step instead of the final adapter."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting: section.key=value.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Measure success on held-out prompts that no training run has seen.

    Example: ragen2 evaluate embedded --env frozenlake --episodes 128
    """
    from ragen2_cli.training.evaluate_target import evaluate_target

    rows = evaluate_target(
        target,
        env=env,
        episodes=episodes,
        temperature=temperature,
        greedy=greedy,
        checkpoint=checkpoint,
        sets=set_ or [],
        say=(lambda text: None) if quiet else (lambda text: typer.echo(text, err=True)),
    )
    if json_:
        import json

        typer.echo(json.dumps([asdict(row) for row in rows]))
        return
    from ragen2_cli.commands.tables import align, success_cell

    table = [["decoding", "success", "n", "return", "invalid", "length"]]
    for row in rows:
        mean = "-" if row.episode_return is None else f"{row.episode_return:.3f}"
        label = "greedy" if row.decoding == "greedy" else f"sampled, T = {row.temperature:g}"
        table.append(
            [
                label,
                success_cell(asdict(row)),
                str(row.episodes),
                mean,
                f"{row.invalid_rate:.1%}",
                f"{row.response_length:.1f}",
            ]
        )
    typer.echo(align(table))
