"""``ragen2 train``: flags to config, one call, a table or JSON."""

from pathlib import Path
from typing import Annotated, Any

import typer

# The few flags that have a name of their own, and the config key each one sets.
FLAGS = {
    "env": "env.name",
    "dead_share": "env.dead_share",
    "stochasticity": "env.stochasticity",
    "kind": "env.kind",
    "reward": "env.options.reward",
    "retriever": "env.options.retriever",
    "unsafe_sandbox": "env.options.unsafe_sandbox",
    "model": "model.name",
    "adapter": "model.adapter",
    "full": "model.full",
    "device": "model.device",
    "dtype": "model.dtype",
    "gradient_checkpointing": "model.gradient_checkpointing",
    "steps": "steps",
    "seed": "seed",
    "prompts": "rollout.prompts",
    "group_size": "rollout.group_size",
    "algorithm": "algorithm.name",
    "credit": "algorithm.credit",
    "critic_model": "critic.model",
    "kl": "algorithm.kl",
    "entropy": "algorithm.entropy",
    "entropy_target": "algorithm.entropy_target",
    "seal": "seal.coefficient",
    "seal_layers": "seal.layers",
    "lr": "optimizer.lr",
    "filter": "filter.strategy",
    "filter_value": "filter.value",
    "spread_of": "filter.spread_of",
    "eval_episodes": "evaluation.episodes",
    "diagnose_every": "diagnostics.every",
    "gradient_analysis_every": "diagnostics.gradients_every",
    "keep_checkpoints": "checkpoints.keep",
    "stop_on_collapse": "stop.on_collapse",
    "report_to": "report_to",
}


def train(
    env: Annotated[
        str | None, typer.Option(help="Environment: a name (`ragen2 envs list`) or FILE.py:CLASS.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Policy: embedded, a hub id, a folder or a .gguf file.")
    ] = None,
    adapter: Annotated[str | None, typer.Option(help="Start from this PEFT adapter.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps; with --resume the run's new number.")
    ] = None,
    prompts: Annotated[int | None, typer.Option(help="Prompt groups P in a batch.")] = None,
    group_size: Annotated[int | None, typer.Option(help="Rollouts G of each prompt.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="grpo, dapo, dr-grpo or ppo.")] = None,
    credit: Annotated[
        str | None, typer.Option(help="Credit by episode, turn or (ppo) bi-level.")
    ] = None,
    critic_model: Annotated[
        str | None, typer.Option(help="ppo: the critic's model; default: the policy's own base.")
    ] = None,
    filter: Annotated[
        str | None, typer.Option(help="top-p, top-k, top-k-abs, min-p, resample or none.")
    ] = None,
    filter_value: Annotated[
        float | None, typer.Option(help="The filter's p, fraction, count or ratio.")
    ] = None,
    spread_of: Annotated[
        str | None, typer.Option(help="Spread of the return or of the outcome alone.")
    ] = None,
    kl: Annotated[float | None, typer.Option(help="KL coefficient.")] = None,
    entropy: Annotated[float | None, typer.Option(help="Entropy bonus coefficient.")] = None,
    entropy_target: Annotated[
        float | None, typer.Option(help="Adapt the entropy coefficient to this many nats.")
    ] = None,
    seal: Annotated[
        float | None, typer.Option(help="SEAL coefficient: part good from bad episodes' states.")
    ] = None,
    seal_layers: Annotated[int | None, typer.Option(help="Linear layers of SEAL's head.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    full: Annotated[
        bool | None, typer.Option("--full/--lora", help="Train every weight, or a LoRA adapter.")
    ] = None,
    stochasticity: Annotated[
        float | None, typer.Option(help="Percent of noise in the environment.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Noise: slip, action or reward.")] = None,
    dead_share: Annotated[
        float | None, typer.Option(help="Share of training prompts that never pay.")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="web_shop: dense or binary.")] = None,
    retriever: Annotated[
        str | None, typer.Option(help="search_qa: address of a retrieval server.")
    ] = None,
    unsafe_sandbox: Annotated[
        bool | None,
        typer.Option("--unsafe-sandbox", help="deep_coder: run programs without isolation."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides boards, noise and sampling.")] = None,
    eval_episodes: Annotated[
        int | None, typer.Option(help="Held-out episodes per evaluation; 0 skips it.")
    ] = None,
    diagnose_every: Annotated[
        int | None, typer.Option(help="Steps between reasoning diagnostics; 0: off.")
    ] = None,
    gradient_analysis_every: Annotated[
        int | None, typer.Option(help="Steps between gradient analyses by spread; 0: off.")
    ] = None,
    keep_checkpoints: Annotated[int | None, typer.Option(help="Checkpoints that stay.")] = None,
    stop_on_collapse: Annotated[
        bool | None, typer.Option("--stop-on-collapse", help="Stop by a rule; exit code 3.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    gradient_checkpointing: Annotated[
        bool | None,
        typer.Option("--gradient-checkpointing", help="Trade compute for memory."),
    ] = None,
    report_to: Annotated[
        list[str] | None, typer.Option(help="Also log to wandb, tensorboard or trackio.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A sparse TOML file.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="ppo, starpo-s, ragen2-code, ragen2-main-table or paper.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other setting: section.key=value.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: a name in runs/.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint of --out (or newest).")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run folder.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print the resolved config, and stop.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Train an agent with GRPO and keep only prompt groups whose rewards differ.

    Example: ragen2 train --env frozenlake --filter top-p --filter-value 0.9 --steps 50
    """
    given = locals()
    flags = {key: given[name] for name, key in FLAGS.items() if given[name] is not None}
    from ragen2_cli.config import load_config

    try:
        if resume:
            others = bool(config or preset or set_ or force or dry_run)
            run = _chosen(out, flags, others, quiet=quiet)
            summary = _resume(run, flags.get("steps"), quiet=quiet or json_)
        else:
            resolved = load_config(config, preset=preset, flags=flags, sets=set_ or ())
            if dry_run:
                from ragen2_cli.training.preflight import check

                check(resolved, out, force=force)
                typer.echo(resolved.model_dump_json(indent=2))
                return
            summary = _start(resolved, out, force=force, quiet=quiet or json_)
    except KeyboardInterrupt as interrupt:
        # Also under --quiet.
        typer.echo(str(interrupt) or "interrupted; nothing was written", err=True)
        raise
    from ragen2_cli.training.processes import is_first

    if json_ and is_first():
        import json

        typer.echo(json.dumps(summary))
    elif not quiet and is_first():
        from ragen2_cli.commands.tables import train_summary

        typer.echo(train_summary(summary))
    if summary["stopped"]:
        from ragen2_cli.errors import CollapseStop

        raise CollapseStop(f"{summary['stopped']}; its state is saved in {summary['run']}")


def _start(config: Any, out: Path | None, *, force: bool, quiet: bool) -> dict[str, Any]:
    from ragen2_cli.training.preflight import check
    from ragen2_cli.training.versions import require_supported_trl

    require_supported_trl()
    check(config, out, force=force)
    from ragen2_cli.training.processes import ending_together
    from ragen2_cli.training.run import start  # imports torch and trl: only when all is well

    with ending_together():
        return start(config, out, force=force, quiet=quiet)


def _chosen(out: Path | None, flags: dict[str, Any], other: bool, *, quiet: bool) -> Path:
    """Return the run to go on with; say which one when it is the newest."""
    from ragen2_cli.errors import UserError

    if other or set(flags) - {"steps"}:
        raise UserError("--resume: settings come from the run; only --out and --steps go with it")
    from ragen2_cli.runs import find
    from ragen2_cli.training.processes import is_first

    def say(text: str) -> None:
        if is_first() and not quiet:
            typer.echo(text, err=True)

    return find(out, say).path


def _resume(path: Path, steps: int | None, *, quiet: bool) -> dict[str, Any]:
    from ragen2_cli.training.interrupted import saying_how_to_go_on
    from ragen2_cli.training.processes import ending_together
    from ragen2_cli.training.versions import require_supported_trl

    require_supported_trl()
    with saying_how_to_go_on(path, steps), ending_together():
        from ragen2_cli.training.run import resume  # imports torch and trl: only for a run

        return resume(path, steps=steps, quiet=quiet)
