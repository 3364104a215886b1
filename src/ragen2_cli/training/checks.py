"""What a trainer refuses before its first step."""

import logging
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ragen2_cli.errors import UserError, did_you_mean


def require_trainable(model: nn.Module) -> None:
    """Refuse a model, or a PEFT model's active adapter, whose parameters are all frozen.

    Raises:
        UserError: Nothing would be trained.
    """
    from peft import PeftModel

    trainable = [name for name, weight in model.named_parameters() if weight.requires_grad]
    if isinstance(model, PeftModel):
        marks = [f".{adapter}." for adapter in model.active_adapters]
        trainable = [name for name in trainable if any(mark in f"{name}." for mark in marks)]
        if not trainable:
            raise UserError(
                "model: the adapter is frozen, nothing would be trained; load it with"
                " PeftModel.from_pretrained(..., is_trainable=True)"
            )
    if not trainable:
        raise UserError("model: no parameter requires a gradient, nothing would be trained")


def require_reference(model: object, args: Any, peft_config: object) -> None:
    """Refuse full fine-tuning with a KL term when the start model exists only in memory.

    TRL builds the reference model by loading the start model a second time, by its name.

    Args:
        model: The trainer's model: a name, a model or a PEFT model.
        args: The trainer's ``GRPOConfig``, or None.
        peft_config: The adapter that the trainer will add, or None.

    Raises:
        UserError: The model has no name to load it by.
    """
    from transformers import PreTrainedModel

    in_memory = isinstance(model, PreTrainedModel) and not model.config._name_or_path
    if args is not None and args.beta != 0.0 and in_memory and peft_config is None:
        raise UserError(
            "beta: the KL reference is loaded by the model's name, but this model exists only in"
            " memory; save it and load it from its folder, train an adapter, or set beta to 0"
        )


def require_positive(**counts: int | None) -> None:
    """Refuse a count below 1; None stands for a default.

    Raises:
        UserError: Naming the argument.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UserError(f"{name}: must be 1 or more, got {count}")


def require_known_loss(loss_type: str, known: Collection[str]) -> None:
    """Refuse a loss whose normalizer is unknown.

    Raises:
        UserError: With the nearest known name.
    """
    if loss_type not in known:
        hint = did_you_mean(loss_type, known)
        raise UserError(f"loss_type: '{loss_type}' is not supported{hint}")


def warn_all_masked(clipped: float) -> None:
    """Warn that no token is left to train on; ``clipped`` is the share of rows cut off."""
    warnings.warn(
        f"every completion is masked out: {clipped:.0%} hit the length limit; nothing to"
        " train on. Raise max_completion_length or turn mask_truncated_completions off",
        stacklevel=4,
    )


class _Unscored(logging.Filter):
    """Shortens TRL's message about rows without a reward, which holds all that is known of one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Put one line in its place; let everything else pass as it is."""
        if "All reward functions returned None" in record.getMessage():
            record.msg, record.args = (
                "a completion of this batch has no score (every reward function returned None);"
                " rows without a score train nothing",
                None,
            )
        return True


@contextmanager
def unscored_in_one_line() -> Iterator[None]:
    """Let TRL say in one line that rows have no score."""
    logger, short = logging.getLogger("trl.trainer.grpo_trainer"), _Unscored()
    logger.addFilter(short)
    try:
        yield
    finally:
        logger.removeFilter(short)
