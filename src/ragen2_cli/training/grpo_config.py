"""The one mapping from our config to TRL's ``GRPOConfig``."""

from pathlib import Path
from typing import Any

from trl import GRPOConfig

from ragen2_cli.config import Config
from ragen2_cli.errors import UserError, did_you_mean
from ragen2_cli.rollout.template import STOP_TEXT
from ragen2_cli.training.weights import autocasts

# Set by the mapping below or by the run itself; [trl] must not contradict them.
_OWNED = {
    "output_dir",
    "max_steps",
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "shuffle_dataset",
    "seed",
    "use_vllm",
    "save_strategy",
    "save_steps",
    "save_total_limit",
    "logging_steps",
    "logging_strategy",
    "eval_strategy",
    "remove_unused_columns",
}


def grpo_config(config: Config, folder: Path, *, max_completion_length: int) -> GRPOConfig:
    """Translate a run's config into TRL's arguments.

    One generation batch is P x G rollouts, split into ``optimizer.micro_batches`` accumulation
    parts, so that one generation makes one optimizer step (times ``algorithm.iterations``).

    Args:
        config: The run's config.
        folder: Where TRL may write its own files (tracker logs); not the run's contract.
        max_completion_length: Tokens of the longest episode, Dr. GRPO's constant length.

    Raises:
        UserError: For a ``[trl]`` key that does not exist or that another section sets.
    """
    rollout, algorithm, optimizer = config.rollout, config.algorithm, config.optimizer
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "seed": config.seed,
        "max_steps": config.steps,
        "num_generations": rollout.group_size,
        "per_device_train_batch_size": rollout.prompts
        * rollout.group_size
        // optimizer.micro_batches,
        "gradient_accumulation_steps": optimizer.micro_batches,
        "steps_per_generation": optimizer.micro_batches,
        "max_completion_length": max_completion_length,
        "temperature": rollout.temperature,
        "learning_rate": optimizer.lr,
        "lr_scheduler_type": optimizer.schedule,
        "warmup_steps": optimizer.warmup_steps,
        "weight_decay": optimizer.weight_decay,
        "adam_beta2": optimizer.beta2,
        "max_grad_norm": optimizer.max_grad_norm,
        "beta": algorithm.kl,
        "loss_type": algorithm.loss_type,
        "scale_rewards": algorithm.scale_rewards,
        "epsilon": algorithm.clip_low,
        "epsilon_high": algorithm.clip_high,
        "num_iterations": algorithm.iterations,
        "entropy_coef": algorithm.entropy,
        "activation_checkpointing": config.model.gradient_checkpointing,
        "shuffle_dataset": False,
        "remove_unused_columns": False,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": config.checkpoints.every,
        "save_total_limit": config.checkpoints.keep,
        "report_to": list(config.report_to) or "none",
        "disable_tqdm": True,
        "use_cpu": config.model.device == "cpu",
        "dataloader_pin_memory": False,
        "bf16": autocasts(config),
        "fp16": False,
    }
    if rollout.backend == "vllm":
        stops = {"stop": [STOP_TEXT], "include_stop_str_in_output": True}
        values |= {"use_vllm": True, "vllm_mode": "colocate", "generation_kwargs": stops}
    if algorithm.entropy_target is not None:
        values |= {"use_adaptive_entropy": True, "entropy_target": algorithm.entropy_target}
    owned = sorted(set(config.trl) & _OWNED)
    if owned:
        raise UserError(f"trl.{owned[0]}: is set by the other sections; leave it out of [trl]")
    known = GRPOConfig.__dataclass_fields__
    for key in config.trl:
        if key not in known:
            raise UserError(f"trl.{key}: GRPOConfig has no such argument{did_you_mean(key, known)}")
    if config.trl.get("trust_remote_code"):
        raise UserError("trl.trust_remote_code: models never run code of their own here")
    return GRPOConfig(**(values | config.trl))
