"""Log-probabilities of completion tokens only, in chunks of rows of similar length.

TRL's fused head scores, off the GPU, every position of every row, prompts and padding included.
Here the hidden states of the wanted positions are picked out before the head, and rows are grouped
by length so that the body of the model sees little padding either. Both leave every value as it
was, up to rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Chunk:
    """Some rows of a batch without the padding that they share.

    Attributes:
        rows: Their indices in the batch.
        start: First column in use.
        stop: Column after the last one in use; always past the first completion column.
    """

    rows: Tensor
    start: int
    stop: int


def chunk_by_length(attention_mask: Tensor, keep: int, max_tokens: int) -> list[Chunk]:
    """Group rows of similar length into chunks of at most ``max_tokens`` padded tokens.

    Args:
        attention_mask: (N, S), prompts padded on the left and completions on the right.
        keep: Width of the completion part, the last ``keep`` columns.
        max_tokens: Bound on rows times width of a chunk; a longer row gets a chunk of its own.

    Returns:
        Chunks, shortest rows first, that hold every row once. At least one completion column is
        left in each.
    """
    width = attention_mask.shape[1]
    used = attention_mask.bool()
    columns = torch.arange(width, device=used.device)
    starts = torch.where(used, columns, width - keep).amin(1).clamp(max=width - keep).tolist()
    stops = torch.where(used, columns + 1, 0).amax(1).clamp(min=width - keep + 1).tolist()
    order = sorted(range(len(starts)), key=lambda row: (stops[row] - starts[row], row))
    chunks: list[tuple[list[int], int, int]] = []
    for row in order:
        if chunks:
            rows, start, stop = chunks[-1]
            merged = (min(start, starts[row]), max(stop, stops[row]))
            if (len(rows) + 1) * (merged[1] - merged[0]) <= max_tokens:
                chunks[-1] = ([*rows, row], *merged)
                continue
        chunks.append(([row], starts[row], stops[row]))
    device = attention_mask.device
    return [Chunk(torch.tensor(rows, device=device), *span) for rows, *span in chunks]


def merge_chunks(chunks: list[Chunk], values: list[Tensor], keep: int) -> Tensor:
    """Put per-token values of the chunks back into the batch's row order, (N, ``keep``).

    Args:
        chunks: As returned by ``chunk_by_length``.
        values: For each chunk (rows, columns), the first columns of its completions.
        keep: Width of the result; missing columns are 0.
    """
    padded = [nn.functional.pad(value, (0, keep - value.shape[1])) for value in values]
    order = torch.cat([chunk.rows for chunk in chunks])
    return torch.cat(padded)[torch.argsort(order)]


class CompletionScorer:
    """Stand in for a model with TRL's fused head, but score only the labeled positions.

    Called like the model (``labels`` of -100 where nothing is wanted, ``fused_lm_head=True``), it
    returns the same output, whatever the device. ``log_probs`` and ``entropy`` have shape
    (N, S - 1) and are 0 where there is no label. When no position has a label the result is still
    connected to the parameters, with gradient 0.
    """

    def __init__(self, model: nn.Module, backbone: nn.Module) -> None:
        """Remember what to call.

        Args:
            model: The model as TRL calls it, wrapped for distribution and PEFT or not.
            backbone: The part of it below the language model head.
        """
        self.model = model
        self.backbone = backbone

    def __call__(self, *, labels: Tensor, **inputs: Any) -> Any:
        """Score the labeled positions; see the class."""
        targets = labels[:, 1:]
        wanted = targets != -100
        picked = wanted
        if not wanted.any():
            picked = wanted.clone()
            picked[:1, -1] = True
        with _hidden_states_at(self.backbone, picked):
            outputs = self.model(**inputs, shift_labels=targets[picked].clamp(min=0)[None])
        for name in ("log_probs", "entropy"):
            if name in outputs:
                full = outputs[name].new_zeros(picked.shape).masked_scatter(picked, outputs[name])
                outputs[name] = full.masked_fill(~wanted, 0.0)
        return outputs


@contextmanager
def _hidden_states_at(backbone: nn.Module, positions: Tensor) -> Iterator[None]:
    """Let the backbone return only the hidden states at ``positions`` (N, S - 1), as one row."""

    def pick(_module: nn.Module, _args: Any, output: Any) -> Any:
        # Prompt-learning adapters put virtual tokens in front, so count columns from the right.
        hidden = output.last_hidden_state[:, -positions.shape[1] - 1 : -1]
        output["last_hidden_state"] = hidden[positions][None]
        return output

    handle = backbone.register_forward_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def score_in_chunks(
    score: Callable[..., tuple[Tensor, Tensor | None, Tensor | None]],
    input_ids: Tensor,
    attention_mask: Tensor,
    keep: int,
    max_tokens: int,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Score completions chunk by chunk, and return the scores in the batch's order and shape.

    Args:
        score: Called with the ids, mask and completion width of a chunk; returns its
            log-probabilities, entropies or None (both (rows, width)), and a scalar or None.
        input_ids: (N, S), prompts padded on the left and completions on the right.
        attention_mask: (N, S).
        keep: Width of the completion part.
        max_tokens: Bound on the padded tokens of a chunk.

    Returns:
        Log-probabilities (N, ``keep``), entropies (the same) or None, and the first chunk's scalar.
    """
    chunks = chunk_by_length(attention_mask, keep, max_tokens)
    prompt_width = input_ids.shape[1] - keep
    scored = [
        score(
            input_ids[chunk.rows, chunk.start : chunk.stop],
            attention_mask[chunk.rows, chunk.start : chunk.stop],
            chunk.stop - prompt_width,
        )
        for chunk in chunks
    ]
    logps = merge_chunks(chunks, [part[0] for part in scored], keep)
    entropies = [part[1] for part in scored if part[1] is not None]
    return logps, merge_chunks(chunks, entropies, keep) if entropies else None, scored[0][2]
