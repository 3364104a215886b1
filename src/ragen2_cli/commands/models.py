"""``ragen2 models``: list what can be trained, rebuild the embedded policy, export a run."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True, help="Policies: list, build the embedded one, export a run."
)


@app.command("list")
def list_(
    json_: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """Show what `--model` accepts, and the embedded policy's size and origin.

    Example: ragen2 models list
    """
    import json

    from ragen2_cli.training.embedded.files import describe
    from ragen2_cli.training.models import embedded_folder

    embedded = describe(embedded_folder())
    if json_:
        typer.echo(json.dumps({"embedded": embedded}))
        return
    names = ", ".join(sorted({lesson["env"] for lesson in embedded["lessons"]}))
    typer.echo(
        f"embedded            {embedded['parameters']:,} parameters, "
        f"{embedded['bytes'] / 1e6:.1f} MB, warm-started on {names}\n"
        "                    (bandit and countdown play a variant that copies names and numbers)\n"
        "ORG/NAME            a model of the Hugging Face hub (downloaded once)\n"
        "path/to/folder      a local folder in transformers' format (safetensors)\n"
        "path/to/file.gguf   a GGUF file, read through transformers and the package gguf\n\n"
        "Any causal language model with a chat template that keeps earlier turns as they are."
    )


@app.command("build")
def build(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("embedded-policy"),
    variant: Annotated[
        str, typer.Option(help="grid (frozenlake, sokoban) or words (bandit, countdown).")
    ] = "grid",
    steps: Annotated[int | None, typer.Option(min=1, help="Warm-start steps.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides everything.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; 1 is reproducible.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of a folder.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the provenance as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Rebuild the embedded policy from its demonstrations.

    Example: ragen2 models build --out my-policy --steps 100
    """
    import json

    from ragen2_cli.errors import UserError, did_you_mean
    from ragen2_cli.training.embedded.files import check_folder
    from ragen2_cli.training.embedded.warm_start import VARIANTS, build, with_steps

    if variant not in VARIANTS:
        near = did_you_mean(variant, VARIANTS)
        raise UserError(f"--variant {variant}: use {' or '.join(VARIANTS)}{near}")
    check_folder(out, force=force)
    config = with_steps(VARIANTS[variant], seed=seed, steps=steps)

    def show(step: int, loss: float) -> None:
        if not (quiet or json_) and (step % 10 == 0 or step == config.steps):
            typer.echo(f"step {step} of {config.steps}  loss {loss:.3f}", err=True)

    provenance = build(out, config, show, threads=threads)
    if json_:
        typer.echo(json.dumps(provenance))
    elif not quiet:
        typer.echo(f"{out}: loss {provenance['loss']}, {provenance['seconds']} s")
        typer.echo(f"Next: ragen2 train --model {shlex.quote(str(out))}")


@app.command("export")
def export(
    run: Annotated[Path | None, typer.Argument(help="A run folder; default: the newest.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; default: RUN/merged.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of a folder.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Merge a run's adapter into its model and write plain safetensors for serving.

    Example: ragen2 models export runs/my-run --out served
    """
    import json

    from ragen2_cli.runs import find
    from ragen2_cli.training.export import export_run

    directory = find(run, lambda line: typer.echo(line, err=True))
    written = export_run(directory, out or directory.path / "merged", force=force)
    if json_:
        typer.echo(json.dumps(written))
    else:
        typer.echo(f"{written['folder']}: {written['bytes'] / 1e6:.1f} MB, merged, safetensors")
        typer.echo(f"Next: {written['next']}")
