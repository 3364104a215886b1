"""``ragen2 analyze``: gradients by reward spread, entropy phases, correlations with success."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ragen2_cli.commands.entropy import entropy

app = typer.Typer(
    help="Gradient norms by reward spread; entropy phases; correlations with success.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("entropy")(entropy)


@app.command("gradients")
def gradients(
    run: Annotated[
        Path | None, typer.Argument(help="A run's folder; the newest run by default.")
    ] = None,
    checkpoint: Annotated[
        int | None, typer.Option(help="Step of a checkpoint; the final adapter by default.")
    ] = None,
    groups: Annotated[int, typer.Option(min=1, help="Prompt groups of the fresh batch.")] = 128,
    buckets: Annotated[int, typer.Option(min=1, help="Buckets by spread.")] = 6,
    remainder: Annotated[
        Literal["spread", "last"], typer.Option(help="Where groups go that are left over.")
    ] = "spread",
    entropy: Annotated[
        float | None, typer.Option(min=0, help="Entropy coefficient; the run's by default.")
    ] = None,
    kl: Annotated[
        float | None, typer.Option(min=0, help="KL coefficient; the run's by default.")
    ] = None,
    per: Annotated[
        Literal["batch", "row", "token"], typer.Option(help="What norms are divided by.")
    ] = "batch",
    json_: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Measure task and regularizer gradients by reward spread on a fresh batch.

    Example: ragen2 analyze gradients runs/demo --groups 64 --entropy 0.01 --kl 0.01
    """
    import sys

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    from ragen2_cli.runs import find
    from ragen2_cli.training.gradient_runs import analyze_run

    content, path = analyze_run(
        find(run, say),
        checkpoint=checkpoint,
        groups=groups,
        buckets=buckets,
        remainder=remainder,
        entropy=entropy,
        kl=kl,
        say=say,
    )
    if json_:
        from ragen2_cli.runs.jsonl import dumps

        typer.echo(dumps(content))
        return
    for table in content["tables"]:
        after = f", after the filter {content['filter']}" if table["filtered"] else ""
        scale = table["scale_rewards"]
        how = "advantages of the critic" if scale == "gae" else f"rewards scaled by {scale}"
        typer.echo(f"{how}{after}:")
        typer.echo(_gradient_table(table["rows"], per, content["score"]) + "\n")
    typer.echo(
        f"{content['groups']} groups of {content['group_size']} from step {content['step']}, "
        f"{content['loss_type']} loss, norms per {per}; in {path}"
    )


def _gradient_table(rows: list[dict[str, Any]], per: str, score: str) -> str:
    from ragen2_cli.commands.tables import align

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}"

    names = ["task", "entropy", "kl", "regularizer", "snr"]
    if rows[0]["norms"][per].get("critic") is not None:
        names.append("critic")
    table = [["bucket", "groups", "dead", score, *names]]
    for row in rows:
        norms = row["norms"][per]
        table.append(
            [
                row["bucket"],
                str(row["groups"]),
                str(row["dead_groups"]),
                f"{row['score_mean']:.3g}",
                *(number(norms[name]) for name in names),
            ]
        )
    return align(table)


@app.command("probe")
def probe(
    run: Annotated[
        Path | None, typer.Argument(help="A run's folder; the newest run by default.")
    ] = None,
    checkpoint: Annotated[
        list[int] | None,
        typer.Option(help="Steps of checkpoints; default: first, middle, last."),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts.")] = 32,
    rollouts: Annotated[int, typer.Option(min=2, help="Rollouts of each.")] = 8,
    json_: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Play the same held-out prompts with several checkpoints, for `ragen2 plot heatmap`.

    Example: ragen2 analyze probe runs/demo --prompts 32
    """
    import sys

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    from ragen2_cli.runs import find
    from ragen2_cli.training.prompt_probe import probe_run

    found = find(run, say)
    contents = probe_run(found, steps=checkpoint or (), prompts=prompts, rollouts=rollouts, say=say)
    if json_:
        from ragen2_cli.runs.jsonl import dumps

        typer.echo(dumps(contents))
    else:
        typer.echo(f"draw it with\n  ragen2 plot heatmap {shlex.quote(str(found.path))}")


@app.command("correlations")
def correlations(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Sweeps and runs to pool; the newest sweep by default."),
    ] = None,
    rule: Annotated[
        Literal["final", "best", "per-checkpoint"],
        typer.Option(help="Which measurement of a run counts."),
    ] = "final",
    within: Annotated[
        str | None,
        typer.Option(
            help="Labels or keys, by commas, within whose levels agreement counts; default: "
            "environment, noise and seed where they vary over arms; '' for pooled only."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of permutations and bootstrap.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Rank-correlate every diagnostic with held-out success over a pool of runs.

    Example: ragen2 analyze correlations sweeps/slip --within env.stochasticity
    """
    import sys
    from dataclasses import asdict

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    from ragen2_cli.sweeps.correlations import correlate
    from ragen2_cli.sweeps.results import load

    pool = load(paths or [], say)
    keys = None if within is None else [key.strip() for key in within.split(",") if key.strip()]
    rows = correlate(pool, rule=rule, within=keys, seed=seed)
    if json_:
        from ragen2_cli.runs.jsonl import dumps

        body = {"runs": len(pool), "rule": rule, "rows": [asdict(row) for row in rows]}
        typer.echo(dumps(body))
        return
    from ragen2_cli.commands.tables import align

    table = [["diagnostic", "scope", "rho", "95 % interval", "p", "n", "runs", "dropped", "note"]]
    for row in rows:
        found = row.result
        missing = found.rho != found.rho
        interval = found.ci_low == found.ci_low
        table.append(
            [
                row.metric,
                row.scope,
                "-" if missing else f"{found.rho:+.2f}",
                f"[{found.ci_low:+.2f}, {found.ci_high:+.2f}]" if interval else "-",
                "-" if found.p_value != found.p_value else f"{found.p_value:.3g} ({found.method})",
                str(found.n),
                str(row.runs),
                str(found.dropped),
                found.reason,
            ]
        )
    typer.echo(align(table))
    typer.echo(f"Spearman's rho with held-out success; rule: {rule}")
    if any(row.unit == "arm" for row in rows):
        typer.echo("Runs of equal seed share prompts: within seeds, interval and p are over arms.")
