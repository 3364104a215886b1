"""From a run's config to its critic and to where its rewards go."""

from pathlib import Path

from ragen2_cli.config import Config
from ragen2_cli.core.advantages import Discounts
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory, step_name
from ragen2_cli.runs.directory import CRITIC
from ragen2_cli.training.checkpoints import read_tensors, write_tensors
from ragen2_cli.training.credit import CreditRules
from ragen2_cli.training.critic import Critic, build_critic, load_weights
from ragen2_cli.training.critic_learner import CriticSettings
from ragen2_cli.training.models import LoadedPolicy, load_policy
from ragen2_cli.training.resume import read_extra


def credit_rules(config: Config) -> CreditRules:
    """Translate ``[algorithm]`` and ``[critic]``."""
    algorithm, critic = config.algorithm, config.critic
    settings = CriticSettings(
        lr=critic.lr,
        clip=critic.clip,
        epochs=critic.epochs,
        warmup_steps=critic.warmup_steps,
        beta2=config.optimizer.beta2,
        max_grad_norm=critic.max_grad_norm,
        whiten=algorithm.whiten,
    )
    return CreditRules(
        algorithm.credit,
        Discounts(algorithm.gamma, algorithm.lam, algorithm.turn_gamma),
        settings if algorithm.advantage == "gae" else None,
    )


def critic_for(config: Config, loaded: LoadedPolicy) -> Critic | None:
    """Build the critic of a run; None where advantages are group-relative.

    It stands on the policy's own base model, in memory only once, or on ``critic.model``. Call it
    before the policy gets its adapter: what is in the tree by then would be trained along.

    Raises:
        UserError: ``critic.model`` cannot be loaded, or reads other tokens than the policy writes.
    """
    if config.algorithm.advantage != "gae":
        return None
    chosen, base = config.critic, loaded.model
    if chosen.model is not None:
        other = load_policy(
            chosen.model,
            device=config.model.device,
            dtype=config.model.dtype,
            env=config.env.name,
        )
        if other.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
            raise UserError(
                f"--critic-model {chosen.model}: its tokens are not those of {config.model.name};"
                " use a model of the same family"
            )
        base = other.model
    return build_critic(
        base,
        rank=chosen.lora_rank,
        alpha=chosen.lora_alpha,
        share=chosen.lora_share,
        seed=config.seed,
        checkpointing=config.model.gradient_checkpointing,
    )


def save_critic(critic: Critic, folder: Path) -> None:
    """Write adapter and head to ``critic.safetensors``, apart from the policy's."""
    write_tensors(folder / CRITIC, critic.trained())


def critic_of_run(
    config: Config, loaded: LoadedPolicy, run: RunDirectory, checkpoint: int | None
) -> Critic | None:
    """Return a run's critic as it was at a checkpoint, or at the end; None without one.

    Args:
        config: The run's config.
        loaded: Its policy, with or without an adapter.
        run: Its folder.
        checkpoint: The step of a complete checkpoint; None for the end.

    Raises:
        UserError: The file is missing, damaged or of another shape.
    """
    critic = critic_for(config, loaded)
    if critic is None:
        return None
    if checkpoint is None:
        weights = read_tensors(run.path / CRITIC)
    else:
        weights = read_extra(run.checkpoints / step_name(checkpoint))["critic"]["weights"]
    load_weights(critic, weights)
    return critic
