"""Log-probabilities of completion tokens only, in chunks of rows of similar length.

Off the GPU, TRL's fused head scores every position of every row, prompts and padding included, and
left-padded rows need an attention mask, which makes attention twice as expensive. Here rows are
grouped by length and moved to the left, so that there is little padding, it comes last, and plain
causal attention is enough; and the hidden states of the wanted positions are picked out before the
head. The values are the same, up to rounding, for every causal model whose positions are relative.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ragen2_cli.training.states import TokenStates, spread

Scores = tuple[Tensor, Tensor | None, Tensor | None]
"""Log-probabilities, entropies (or None) and a scalar loss of the router (or None)."""


def is_contiguous(attention_mask: Tensor) -> bool:
    """Whether each row of the mask is one run of ones, without a hole."""
    edges = nn.functional.pad(attention_mask.bool().int(), (1, 1)).diff(dim=1) == 1
    return bool((edges.sum(1) <= 1).all())


def chunk_by_length(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Group rows of similar length into chunks of at most ``max_tokens`` padded tokens.

    Args:
        lengths: Tokens of each row.
        max_tokens: Bound on rows times longest row; a longer row gets a chunk of its own.

    Returns:
        Row indices of the chunks, shortest rows first, every row once.
    """
    chunks: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if chunks and (len(chunks[-1]) + 1) * lengths[row] <= max_tokens:
            chunks[-1].append(row)
        else:
            chunks.append([row])
    return chunks


def score_in_chunks(
    score: Callable[[Tensor, Tensor, Tensor], Scores],
    input_ids: Tensor,
    attention_mask: Tensor,
    keep: int,
    max_tokens: int,
    states: TokenStates | None = None,
) -> Scores:
    """Score completions chunk by chunk; return the scores in the batch's order and shape.

    Args:
        score: Called with the ids (n, W) of a chunk, whose rows start in column 0, their mask, and
            the mask (n, W - 1) of the wanted next tokens; returns scores of shape (n, W - 1).
        input_ids: (N, S), prompts padded on the left and completions on the right.
        attention_mask: (N, S), without holes.
        keep: Width C of the completion part, the last columns.
        max_tokens: Bound on the padded tokens of a chunk.
        states: Told before each chunk whose hidden states ``score`` is about to catch.

    Returns:
        Log-probabilities (N, C), 0 where there is no token; entropies, the same, or None; and the
        first chunk's scalar. A completion token without anything before it has no score either.
    """
    used = attention_mask.bool()
    lengths = used.sum(1)
    starts = used.int().argmax(1)
    prompts = used[:, :-keep].sum(1).clamp(min=1)
    completions = used[:, -keep:].clone()
    completions[:, 0] &= used[:, :-keep].any(1)
    rows_of, scored = [], []
    for chunk in chunk_by_length(lengths.tolist(), max_tokens):
        rows = torch.tensor(chunk, device=input_ids.device)
        columns = torch.arange(max(2, int(lengths[rows].max())), device=input_ids.device)
        ids = input_ids[rows[:, None], (starts[rows, None] + columns).clamp(max=used.shape[1] - 1)]
        mask = columns < lengths[rows, None]
        wanted = (mask & (columns >= prompts[rows, None]))[:, 1:]
        if states is not None:
            states.expect(rows, completions[rows])
        logps, entropies, scalar = score(ids, mask.to(attention_mask.dtype), wanted)
        values = [None if x is None else spread(x[wanted], completions[rows]) for x in
                  (logps, entropies)]  # fmt: skip
        rows_of.append(rows)
        scored.append((*values, scalar))
    order = torch.argsort(torch.cat(rows_of))
    logps, entropies = (
        None if part[0] is None else torch.cat(part)[order]
        for part in zip(*(scores[:2] for scores in scored), strict=True)
    )
    return logps, entropies, scored[0][2]


class WantedScorer:
    """Stand in for a model with TRL's fused head whose rows are padded on the right only.

    Called like the model (with ``labels``, an ``attention_mask`` and ``fused_lm_head=True``), it
    returns the same output, but only the wanted positions reach the head, on every device.
    ``log_probs`` and ``entropy`` have shape (n, W - 1) and are 0 elsewhere. When nothing is wanted
    the result is still connected to the parameters, with gradient 0.
    """

    def __init__(
        self,
        model: nn.Module,
        backbone: nn.Module,
        wanted: Tensor,
        states: TokenStates | None = None,
    ) -> None:
        """Remember what to call and what for.

        Args:
            model: The model as TRL calls it, wrapped for distribution and PEFT or not.
            backbone: The part of it below the language model head.
            wanted: (n, W - 1), true where the next token's scores are wanted.
            states: Catches the states that have read the wanted tokens.
        """
        self.model = model
        self.backbone = backbone
        self.wanted = wanted
        self.states = states

    def __call__(self, *, labels: Tensor, attention_mask: Tensor, **inputs: Any) -> Any:
        """Score the wanted positions; see the class."""
        picked = self.wanted
        if not picked.any():
            picked = picked.clone()
            picked[:1, :1] = True
        if not inputs.get("output_router_logits"):
            # Padding comes last, where causal attention does not look. A mask of ones lets the
            # model use its causal kernel; the router's loss has to know the padding.
            attention_mask = torch.ones_like(attention_mask)
        targets = labels[:, 1:][picked].clamp(min=0)[None]
        with self._hidden_states_at(picked):
            outputs = self.model(**inputs, attention_mask=attention_mask, shift_labels=targets)
        for name in ("log_probs", "entropy"):
            if name in outputs:
                outputs[name] = spread(outputs[name], picked).masked_fill(~self.wanted, 0.0)
        return outputs

    @contextmanager
    def _hidden_states_at(self, positions: Tensor) -> Iterator[None]:
        """Let the backbone return only the hidden states at ``positions`` (n, W - 1), as one row.

        The state at a position predicts the next token; the one after it has read that token.
        """

        def pick(_module: nn.Module, _args: Any, output: Any) -> Any:
            # Prompt-learning adapters put virtual tokens in front, so count columns from the right.
            hidden = output.last_hidden_state[:, -positions.shape[1] - 1 :]
            if self.states is not None:
                self.states.catch(hidden[:, 1:][self.wanted])
            output["last_hidden_state"] = hidden[:, :-1][positions][None]
            return output

        handle = self.backbone.register_forward_hook(pick)
        try:
            yield
        finally:
            handle.remove()
