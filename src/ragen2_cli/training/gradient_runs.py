"""Gradient analysis of a run: of a fresh batch from a checkpoint, or of a batch in training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ragen2_cli.config import Config
from ragen2_cli.core.filters import SPREAD_SCORES, GroupFilter
from ragen2_cli.core.gradients import Remainder
from ragen2_cli.core.groups import Scale
from ragen2_cli.errors import UserError, counted
from ragen2_cli.records import Episode, Step
from ragen2_cli.runs import RunDirectory, step_name
from ragen2_cli.training.critic import Critic
from ragen2_cli.training.evaluate_target import load_run_policy, step_of_policy
from ragen2_cli.training.gradient_batch import ProbeSettings
from ragen2_cli.training.gradient_critic import CriticProbe
from ragen2_cli.training.gradient_probe import probe, report_json
from ragen2_cli.training.player import build_player
from ragen2_cli.training.ppo import credit_rules, critic_of_run
from ragen2_cli.training.preflight import require_analyzed
from ragen2_cli.training.setup import prepare

_DEFAULTS = {"groups": 128, "buckets": 6, "remainder": "spread"}
FRESH_CURSOR = 1_000_000_000
"""Where fresh batches draw their training boards from: far behind any run's own cursor."""


def analyze_run(
    run: RunDirectory,
    *,
    checkpoint: int | None = None,
    groups: int = 128,
    buckets: int = 6,
    remainder: Remainder = "spread",
    entropy: float | None = None,
    kl: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[dict[str, Any], Path]:
    """Roll out a fresh batch with a checkpoint's policy, measure its gradients, write them down.

    Args:
        run: The run; neither its policy nor its optimizer state is changed.
        checkpoint: The step of the checkpoint; None for the final adapter.
        groups: Prompt groups of the batch, of the run's own group size.
        buckets: Most buckets.
        remainder: Where groups go that do not divide evenly.
        entropy: Coefficient of the entropy term; None for the run's own, after that step where it
            adapts to a target.
        kl: Coefficient of the KL term; None for the run's own.
        say: Called with what was decided, one line each.

    Returns:
        The content of the written file, and the file, whose name tells what is not the default.

    Raises:
        UserError: No such checkpoint, too few groups, a loss that is not analyzed, or a KL term
            without a reference policy.
    """
    config = run.resolved_config()
    if groups < 1:
        raise UserError(f"--groups: at least 1 is needed, got {groups}")
    changes = {key: value for key, value in (("entropy", entropy), ("kl", kl)) if value is not None}
    require_analyzed(with_coefficients(config, **changes), "gradients")
    prepare(config)
    loaded = load_run_policy(config, run, checkpoint)
    step = step_of_policy(run, checkpoint)
    critic = critic_of_run(config, loaded, run, checkpoint)
    for note in loaded.notes:
        say(note)
    if config.model.adapter is not None:
        loaded.model.load_adapter(config.model.adapter, adapter_name="ref")
    asked = {"groups": groups, "buckets": buckets, "remainder": remainder}
    asked = {key: value for key, value in asked.items() if value != _DEFAULTS[key]}
    changed = "".join(f"-{key}-{value}" for key, value in {**asked, **changes}.items())
    if entropy is None and config.algorithm.entropy_target is not None:
        changes["entropy"] = adapted_entropy(config, run.read_steps(), step)
        say(f"entropy coefficient {changes['entropy']:g}, as adapted by step {step}")
    config = with_coefficients(config, **changes)
    player = build_player(config, loaded.model, loaded)
    size = config.rollout.group_size
    say(f"playing {counted(groups, 'group')} of {counted(size, 'rollout')}")
    boards, _ = player.next_boards(FRESH_CURSOR, groups)
    episodes = [trajectory.episode for trajectory in player.play_groups(boards, step=step)]
    if groups < buckets:
        say(f"{counted(groups, 'group')} cannot fill {buckets} buckets, only {groups}")
    content = analyze_batch(
        loaded.model,
        config,
        episodes,
        step=step,
        source="fresh batch",
        max_completion_length=player.max_completion_length,
        buckets=buckets,
        remainder=remainder,
        critic=critic,
        progress=lambda done, total: say(f"measuring the gradients of bucket {done + 1}/{total}"),
    )
    return content, run.write_json(f"gradients/{step_name(step)}-fresh{changed}.json", content)


def with_coefficients(config: Config, **changes: float) -> Config:
    """Return a config whose algorithm has other coefficients: ``entropy``, ``kl``."""
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update=changes)})


def adapted_entropy(config: Config, steps: Sequence[Step], step: int) -> float:
    """Return the entropy coefficient that acts after a step where it adapts to a target.

    That is the logged one while the logged entropy is at most the target, else 0. Before the first
    step nothing acts.
    """
    target = config.algorithm.entropy_target
    for row in sorted(steps, key=lambda row: row.step, reverse=True):
        if row.step <= step and row.entropy is not None and "entropy_coef" in row.extra:
            on = target is not None and row.entropy <= target
            return row.extra["entropy_coef"] if on else 0.0
    return 0.0


def analyze_batch(
    model: Any,
    config: Config,
    episodes: Sequence[Episode],
    *,
    step: int,
    source: str,
    max_completion_length: int,
    buckets: int = 6,
    remainder: Remainder = "spread",
    critic: Critic | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure a batch under the run's own loss, filter and coefficients; return the file's content.

    Rewards scaled as the run does and not scaled at all are reported side by side, credited to
    turns where the run does that without a critic; with one, its advantages come first. Soft
    weights are in all of them, loss scaling in what the filter keeps. Groups are sorted by the
    filter's spread, ``reward_var`` where it ranks by something else; such a filter is not applied,
    ``filter`` says so and there are no filtered tables.
    """
    applied = config.filter.score in SPREAD_SCORES
    own: Scale = config.algorithm.scale_rewards
    scales: tuple[Scale, ...] = ("group" if own == "none" else own, "none")
    settings = ProbeSettings(
        entropy=config.algorithm.entropy,
        kl=config.algorithm.kl,
        loss_type=config.algorithm.loss_type,
        max_completion_length=max_completion_length,
        temperature=config.rollout.temperature,
        scales=scales,
        credit=config.algorithm.credit if critic is None else "episode",
        buckets=buckets,
        remainder=remainder,
        score=config.filter.score if applied else "reward_var",
        loss_scaling=config.filter.loss_scaling,
        soft=config.filter.soft and applied,
    )
    chosen: GroupFilter | None = config.filter.group_filter()
    said = f"{config.filter.strategy} {config.filter.value:g}" + ", soft" * settings.soft
    if settings.loss_scaling != "none":
        said += f", {settings.loss_scaling} loss scaling"
    if not applied:
        chosen, said = None, f"none: the score {config.filter.score} needs more than rewards"
    report = probe(
        model,
        episodes,
        config.rollout.group_size,
        settings,
        group_filter=chosen,
        reference=lambda: reference_policy(model),
        spread_of_outcome=config.filter.spread_of == "outcome",
        critic=None if critic is None else CriticProbe(critic, credit_rules(config), episodes),
        progress=progress,
    )
    if chosen is None:
        report = replace(report, filtered={})
    about = {
        "step": step,
        "source": source,
        "env": config.env.name,
        "stochasticity": config.env.stochasticity,
        "dead_share": config.env.dead_share,
        "seed": config.seed,
        "groups": len(episodes) // config.rollout.group_size,
        "group_size": config.rollout.group_size,
        "loss_type": settings.loss_type,
        "score": settings.score,
        "entropy": settings.entropy,
        "entropy_target": config.algorithm.entropy_target,
        "kl": settings.kl,
        "remainder": remainder,
        "filter": said,
        "scale_rewards": own if critic is None else "gae",
        "credit": config.algorithm.credit,
    }
    return report_json(report, about)


@contextmanager
def reference_policy(model: Any) -> Iterator[None]:
    """Let a model with an adapter be the policy that its run started from.

    Raises:
        UserError: The model has no adapter, so its start is not in memory.
    """
    from peft import PeftModel

    if not isinstance(model, PeftModel):
        raise UserError(
            "gradients: the KL term of a run that trains every weight is not analyzed; give --kl 0"
        )
    if "ref" not in model.peft_config:
        with model.disable_adapter():
            yield
        return
    active = model.active_adapter
    model.set_adapter("ref")
    try:
        yield
    finally:
        model.set_adapter(active)
