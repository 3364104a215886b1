"""The one mapping from our config to TRL's ``GRPOConfig``."""

from functools import reduce
from pathlib import Path
from typing import Any

from trl import GRPOConfig

from ragen2_cli.config import Config
from ragen2_cli.errors import UserError, did_you_mean
from ragen2_cli.rollout.template import STOP_TEXT
from ragen2_cli.training.devices import resolve_device
from ragen2_cli.training.weights import autocasts

SETTINGS = {
    "seed": "seed",
    "max_steps": "steps",
    "num_generations": "rollout.group_size",
    "temperature": "rollout.temperature",
    "learning_rate": "optimizer.lr",
    "lr_scheduler_type": "optimizer.schedule",
    "warmup_steps": "optimizer.warmup_steps",
    "weight_decay": "optimizer.weight_decay",
    "adam_beta2": "optimizer.beta2",
    "max_grad_norm": "optimizer.max_grad_norm",
    "beta": "algorithm.kl",
    "loss_type": "algorithm.loss_type",
    "scale_rewards": "algorithm.scale_rewards",
    "epsilon": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "num_iterations": "algorithm.iterations",
    "entropy_coef": "algorithm.entropy",
    "activation_checkpointing": "model.gradient_checkpointing",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep",
}
"""TRL's arguments that are one of our settings under another name."""

_INSTEAD = SETTINGS | {
    "output_dir": "--out",
    "gradient_accumulation_steps": "optimizer.micro_batches",
    "steps_per_generation": "optimizer.micro_batches",
    "per_device_train_batch_size": "rollout.prompts, rollout.group_size",
    "generation_batch_size": "rollout.prompts, rollout.group_size",
    "max_completion_length": "rollout.context_limit or algorithm.length_norm",
    "use_vllm": "rollout.backend",
    "use_cpu": "model.device",
    "bf16": "model.dtype",
    "fp16": "model.dtype",
    "gradient_checkpointing": "model.gradient_checkpointing",
    "use_adaptive_entropy": "algorithm.entropy_target",
    "entropy_target": "algorithm.entropy_target",
    "report_to": "report_to",
    "num_train_epochs": "steps",
    "eval_strategy": "evaluation.every",
    "eval_steps": "evaluation.every",
}
"""What to set instead of an argument of TRL's that ``[trl]`` may not set."""

_FREE = {"dataloader_pin_memory", "vllm_mode"}
"""Written by the mapping as a default only."""

_SAMPLING = {"top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs"}
"""How TRL or vLLM samples, which our own sampling does not read."""


def grpo_config(config: Config, folder: Path, *, max_completion_length: int) -> GRPOConfig:
    """Translate a run's config into TRL's arguments.

    One generation batch is P x G rollouts, split into ``config.micro_batches`` accumulation parts,
    so that one generation makes one optimizer step (times ``algorithm.iterations``).

    Args:
        config: The run's config.
        folder: Where TRL may write its own files (tracker logs); not the run's contract.
        max_completion_length: Dr. GRPO's constant length.

    Raises:
        UserError: For a ``[trl]`` key that does not exist or that another section sets.
    """
    rollout, algorithm = config.rollout, config.algorithm
    values: dict[str, Any] = {
        trl: reduce(getattr, ours.split("."), config) for trl, ours in SETTINGS.items()
    }
    values |= {
        "output_dir": str(folder),
        "gradient_accumulation_steps": config.micro_batches,
        "steps_per_generation": config.micro_batches,
        "per_device_train_batch_size": rollout.prompts * rollout.group_size // config.micro_batches,
        "max_completion_length": max_completion_length,
        "shuffle_dataset": False,
        "remove_unused_columns": False,
        "logging_steps": 1,
        "save_strategy": "steps",
        "report_to": list(config.report_to) or "none",
        "disable_tqdm": True,
        "use_cpu": resolve_device(config.model.device) == "cpu",
        "dataloader_pin_memory": False,
        "bf16": autocasts(config),
        "fp16": False,
    }
    if rollout.backend == "vllm":
        stops = {"stop": [STOP_TEXT], "include_stop_str_in_output": True}
        values |= {"use_vllm": True, "vllm_mode": "colocate", "generation_kwargs": stops}
    if algorithm.entropy_target is not None:
        values |= {"use_adaptive_entropy": True, "entropy_target": algorithm.entropy_target}
    _require_free(config, set(values))
    return GRPOConfig(**(values | config.trl))


def _require_free(config: Config, written: set[str]) -> None:
    """Refuse ``[trl]`` keys that do not exist, that we set, or that nothing would read."""
    known = GRPOConfig.__dataclass_fields__
    owned = (written | _INSTEAD.keys() | {"logging_strategy"}) - _FREE
    for key in sorted(config.trl):
        if key not in known:
            raise UserError(f"trl.{key}: GRPOConfig has no such argument{did_you_mean(key, known)}")
        if key in owned:
            hint = f"set {_INSTEAD[key]}" if key in _INSTEAD else "leave it out of [trl]"
            raise UserError(f"trl.{key}: is set by the other sections; {hint}")
        if key in _SAMPLING and config.rollout.backend != "vllm":
            raise UserError(f"trl.{key}: only vLLM reads it; rollout.backend is not vllm")
    if config.trl.get("mask_truncated_completions"):
        raise UserError(
            "trl.mask_truncated_completions: episodes end at </answer>, which TRL takes for cut"
            " off, so it would mask those that went well"
        )
    if config.trl.get("trust_remote_code"):
        raise UserError("trl.trust_remote_code: models never run code of their own here")
