"""Which weights of a run's policy are trained, and where they end up."""

from pathlib import Path
from typing import Any

from ragen2_cli.config import Config
from ragen2_cli.training.models import LoadedPolicy, attach_lora, train_fully


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
