"""``ragen2 sweep``: a grid of runs, resumable, on warm local workers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ragen2_cli.records import Cell
    from ragen2_cli.sweeps.engine import Outcome
    from ragen2_cli.sweeps.folder import SweepDirectory
    from ragen2_cli.sweeps.progress import SweepProgress

    Runner = Callable[[SweepDirectory, SweepProgress], Outcome]

from ragen2_cli.errors import counted

FAILED_CELLS = 4
"""Exit code of a sweep that came to its end with failed cells."""


class SweepCommand(TyperCommand):
    """Lets ``--stochasticity`` stand without a value, which means the sources' levels."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default levels after a bare ``--stochasticity``, then parse as ever."""
        return super().parse_args(ctx, with_levels(args))


def with_levels(args: list[str]) -> list[str]:
    """Return the arguments with the sources' levels after a ``--stochasticity`` without value."""
    from ragen2_cli.sweeps.axes import LEVELS

    found = []
    for here, following in zip(args, [*args[1:], "--"], strict=True):
        bare = here == "--stochasticity" and following.startswith("-")
        found += [here, LEVELS] if bare else [here]
    return found


def sweep(
    stochasticity: Annotated[
        str | None,
        typer.Option(help="Percent levels; without a value 0,2,5,10,20,50,80,100."),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Noise: slip, action or reward.")] = None,
    filter: Annotated[
        str | None,
        typer.Option(help="Strategies, each NAME or NAME:VALUE: top-p:0.9,resample,none."),
    ] = None,
    top_p: Annotated[str | None, typer.Option(help="Values of top-p; none is no filter.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="grpo,dapo,dr-grpo,ppo.")] = None,
    credit: Annotated[str | None, typer.Option(help="episode,turn,bi-level.")] = None,
    kl: Annotated[str | None, typer.Option(help="KL coefficients.")] = None,
    entropy: Annotated[str | None, typer.Option(help="Entropy bonus coefficients.")] = None,
    entropy_target: Annotated[
        str | None, typer.Option(help="Targets of the adaptive entropy coefficient, or none.")
    ] = None,
    seal: Annotated[str | None, typer.Option(help="SEAL coefficients.")] = None,
    group_size: Annotated[str | None, typer.Option(help="Rollouts per prompt.")] = None,
    prompts: Annotated[str | None, typer.Option(help="Prompt groups in a batch.")] = None,
    env: Annotated[str | None, typer.Option(help="Environments.")] = None,
    model: Annotated[str | None, typer.Option(help="Models.")] = None,
    over: Annotated[
        list[str] | None, typer.Option(help="Any config key: section.key=a,b,c; repeatable.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="A count (5) or a list (0,3,7).")] = None,
    zip_: Annotated[
        bool, typer.Option("--zip", help="First values together, then the second ones.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of every cell.")] = None,
    eval_episodes: Annotated[int | None, typer.Option(help="Held-out episodes.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="A sparse TOML file; its [sweep] table may hold the axes.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="As for `ragen2 train`.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting: section.key=value.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes, one thread each.")] = 1,
    executor: Annotated[
        Literal["local", "ray"], typer.Option(help="Workers here, or tasks on a Ray cluster.")
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="The cluster: auto (default), HOST or HOST:PORT.")
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(min=0.01, help="CPUs of a cell on Ray; default 1.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(min=0, help="GPUs of a cell on Ray, shares allowed; default 0.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Sweep folder; one that is there goes on.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed cells again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Train a grid of cells; call it again with the same --out to go on where it stopped.

    Exit code 4: the sweep came to its end and cells have failed; --retry runs them again.

    Example: ragen2 sweep --stochasticity 0,20,80 --filter top-p,none --seeds 3 --steps 50
    """
    given = {
        "stochasticity": stochasticity,
        "filter": filter,
        "top-p": top_p,
        "algorithm": algorithm,
        "credit": credit,
        "kl": kl,
        "entropy": entropy,
        "entropy-target": entropy_target,
        "seal": seal,
        "group-size": group_size,
        "prompts": prompts,
        "env": env,
        "model": model,
    }
    flags = {"env.kind": kind, "steps": steps, "evaluation.episodes": eval_episodes}
    from ragen2_cli.sweeps.folder import SweepDirectory
    from ragen2_cli.sweeps.plan import plan

    nothing = not any([*given.values(), *flags.values(), over, seeds, config, preset, set_])
    if nothing and out is not None:
        cells = list(SweepDirectory.open(out).cells.values())
    else:
        cells = plan(
            given,
            over or [],
            seeds,
            file=config,
            preset=preset,
            flags=flags,
            sets=set_ or [],
            zipped=zip_,
        )
    if dry_run:
        _list(cells, as_json=json_)
        return
    runner = _runner(
        executor, workers=workers, retry=retry, address=ray_address, cpus=cpus, gpus=gpus
    )
    folder = SweepDirectory.create(out, cells)
    _run(folder, runner, executor=executor, quiet=quiet, as_json=json_)


def _runner(
    executor: str,
    *,
    workers: int,
    retry: bool,
    address: str | None,
    cpus: float | None,
    gpus: float | None,
) -> "Runner":
    """Return what runs a sweep's folder; a cluster is connected here, before a file is written."""
    from ragen2_cli.errors import UserError

    if executor == "local":
        if not (address is None and cpus is None and gpus is None):
            raise UserError("--ray-address, --cpus and --gpus go with --executor ray")
        from ragen2_cli.sweeps.engine import run_sweep

        return lambda folder, progress: run_sweep(
            folder, workers=workers, retry=retry, progress=progress
        )
    if workers != 1:
        raise UserError("--workers goes with --executor local; on Ray --cpus and --gpus decide")
    from ragen2_cli.sweeps.ray_cluster import RayCluster, Resources
    from ragen2_cli.sweeps.ray_executor import run_on_cluster

    resources = Resources(1.0 if cpus is None else cpus, 0.0 if gpus is None else gpus)
    cluster = RayCluster(address or "auto", resources)
    return lambda folder, progress: run_on_cluster(folder, cluster, retry=retry, progress=progress)


def _list(cells: "Sequence[Cell]", *, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict

        from ragen2_cli.runs.jsonl import dumps

        typer.echo(dumps({"cells": [asdict(cell) for cell in cells]}))
    else:
        typer.echo("\n".join(cell.name for cell in cells))


def _run(folder: Any, runner: "Runner", *, executor: str, quiet: bool, as_json: bool) -> None:
    import shlex
    import sys

    from ragen2_cli.commands.tables import align
    from ragen2_cli.sweeps.progress import describe, sweep_progress
    from ragen2_cli.sweeps.summary import summarize, table

    try:
        progress = sweep_progress(quiet=quiet or as_json)
        outcome = runner(folder, progress)
    except KeyboardInterrupt:
        how = " --executor ray" * (executor == "ray")
        out = shlex.quote(str(folder.path))
        sys.stderr.write(f"interrupted; go on with\n  ragen2 sweep{how} --out {out}\n")
        raise
    finally:
        folder.close()
    arms = summarize(folder)
    failed = [cell for cell in folder.cells.values() if cell.status == "failed"]
    if as_json:
        from dataclasses import asdict

        from ragen2_cli.runs.jsonl import dumps

        names = ("name", "labels", "seed", "reason")
        body = {
            "sweep": str(folder.path),
            "cells": asdict(outcome),
            "arms": [asdict(arm) for arm in arms],
            "failed": [{name: asdict(cell)[name] for name in names} for cell in failed],
        }
        typer.echo(dumps(body))
    elif not quiet:
        lines = [align(table(arms))] if arms else []
        lines += [f"failed: {describe(cell)}: {cell.reason}" for cell in failed]
        lines += ["run them again with --retry"] if failed else []
        lines.append(
            f"{counted(outcome.done, 'cell')} done, {outcome.ran} now; all in {folder.path}"
        )
        typer.echo("\n".join(lines))
    if outcome.failed:
        raise typer.Exit(FAILED_CELLS)
