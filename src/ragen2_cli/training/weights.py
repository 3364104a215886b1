"""Which weights of a run's policy are trained, in which precision, and where they end up.

What an optimizer steps is float32: a step of 1e-6 is less than half the distance of a bfloat16
weight to the next one, and would be rounded away. A frozen base under an adapter may be 16-bit
(PEFT keeps the adapter in float32); where every weight is trained, they are float32 and the
16-bit arithmetic comes from autocast.
"""

from pathlib import Path
from typing import Any

import torch

from ragen2_cli.config import Config
from ragen2_cli.training.devices import Dtype, resolve_device, resolve_dtype
from ragen2_cli.training.models import (
    LoadedPolicy,
    attach_lora,
    train_fully,
)


def stored_dtype(config: Config) -> Dtype:
    """Return the type that the policy's weights are loaded in for training."""
    return "float32" if config.model.full else config.model.dtype


def autocasts(config: Config) -> bool:
    """Whether float32 weights are trained with bfloat16 arithmetic (TRL's ``bf16``)."""
    device = resolve_device(config.model.device)
    return config.model.full and resolve_dtype(config.model.dtype, device) == torch.bfloat16


def trainable(config: Config, loaded: LoadedPolicy) -> Any:
    """Return the policy with what is trained: a given adapter, every weight, or a fresh adapter."""
    if config.model.adapter is not None:
        return loaded.model
    if config.model.full:
        return train_fully(loaded.model)
    return attach_lora(
        loaded.model,
        rank=config.model.lora_rank,
        alpha=config.model.lora_alpha,
        dropout=config.model.lora_dropout,
    )


def save_policy(model: Any, tokenizer: Any, folder: Path, *, full: bool) -> None:
    """Write the adapter, or with ``full`` the whole model and its tokenizer."""
    model.save_pretrained(str(folder), safe_serialization=True)
    if full:
        tokenizer.save_pretrained(str(folder))
