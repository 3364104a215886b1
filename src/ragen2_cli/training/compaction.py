"""Remove rows and padding from a generation batch, and share its rows out over micro-batches.

A batch is the dictionary that TRL's ``_generate_and_score_completions`` returns: tensors with one
row per completion (N rows), and scalars that belong to the whole batch. Prompts are padded on the
left (width Q), completions on the right (width C). Nothing here knows a trainer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Any]

PROMPT_KEYS = ("prompt_ids", "prompt_mask")
COMPLETION_KEYS = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",  # (N,) in TRL itself, (N, C) with a critic or credit per turn
    "turns",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",  # (N, 1) for the sequence-level modes
)
WHOLE_KEYS = ("token_type_ids", "mm_token_type_ids")


def loss_mask(batch: Batch) -> Tensor:
    """Mask (N, C) of the tokens that the loss is taken over: written by the model, not masked."""
    mask: Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def row_lengths(batch: Batch) -> Tensor:
    """Tokens of each row (N,), prompt and completion together, without padding."""
    return batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)


def take_rows(batch: Batch, rows: Tensor) -> Batch:
    """Keep some rows, in the given order, of every entry that has one value per row.

    Scalars and None stay as they are; an empty ``rows`` gives a batch of zero rows.
    """
    count = len(batch["completion_ids"])
    taken: Batch = {}
    for key, value in batch.items():
        if isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == count:
            taken[key] = value[rows.to(value.device)]
        elif isinstance(value, list) and len(value) == count:
            taken[key] = [value[row] for row in rows.tolist()]
        else:
            taken[key] = value
    return taken


def trim_padding(batch: Batch, multiple: int = 1) -> Batch:
    """Cut the columns that are padding in every row: left of prompts, right of completions.

    Args:
        batch: Rows to trim; a batch without rows is returned as it is.
        multiple: Widths stay multiples of this (TRL's ``pad_to_multiple_of``).

    Returns:
        The batch with at least one column (``multiple`` columns) on either side.
    """
    prompt_mask, completion_mask = batch["prompt_mask"], batch["completion_mask"]
    if not len(completion_mask):
        return batch
    prompt_width, completion_width = prompt_mask.shape[1], completion_mask.shape[1]
    prompt = _round_up(_used(prompt_mask.flip(1)), multiple, prompt_width)
    completion = _round_up(_used(completion_mask), multiple, completion_width)
    trimmed = dict(batch)
    for key in PROMPT_KEYS:
        trimmed[key] = batch[key][:, prompt_width - prompt :]
    for key in COMPLETION_KEYS:
        value = batch.get(key)
        if value is not None and value.ndim == 2 and value.shape[1] == completion_width:
            trimmed[key] = value[:, :completion]
    for key in WHOLE_KEYS:
        if batch.get(key) is not None:
            stop = prompt_width + completion
            trimmed[key] = batch[key][:, prompt_width - prompt : stop]
    return trimmed


def _used(mask_N_W: Tensor) -> int:
    """Columns up to the last one that some row uses."""
    columns = mask_N_W.any(0).nonzero()
    return int(columns[-1]) + 1 if len(columns) else 0


def _round_up(width: int, multiple: int, limit: int) -> int:
    return min(limit, -(-max(1, width) // multiple) * multiple)


def even_sizes(total: int, parts: int) -> list[int]:
    """Sizes of ``parts`` parts that differ by at most one, the smaller ones first."""
    small, larger = divmod(total, parts)
    return [small] * (parts - larger) + [small + 1] * larger


def share_out(lengths_N: Tensor, order_N: Tensor, *, slots: int, window: int) -> list[Tensor]:
    """Assign every row to one of ``slots`` micro-batches; no row is lost.

    ``window`` consecutive slots always fall into the same optimizer step, so between them rows may
    move freely: they are sorted by length, which leaves little padding. Which window a row belongs
    to is decided by ``order_N`` alone, never by its length.

    Args:
        lengths_N: Tokens of each row.
        order_N: A permutation of the rows; consecutive runs of it form the windows.
        slots: Number of micro-batches.
        window: Slots per window; divides ``slots``.

    Returns:
        Row indices of each slot. Sizes within a window differ by at most one; slots without rows
        come first in their window.
    """
    assigned: list[Tensor] = []
    for rows in _split(order_N, even_sizes(len(order_N), slots // window)):
        by_length = rows[torch.argsort(lengths_N[rows], stable=True)]
        assigned.extend(_split(by_length, even_sizes(len(rows), window)))
    return assigned


def _split(rows: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    return torch.split(rows, list(sizes))
