"""Hidden states that a forward pass leaves behind: read on the way, never computed twice."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def backbone_of(model: nn.Module) -> nn.Module:
    """Part of a language model below its head; ``model`` may be a PEFT model."""
    from peft import PeftModel

    bare: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    backbone: nn.Module = bare.base_model
    return backbone


@contextmanager
def last_hidden_states(backbone: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the last-layer hidden states (B, S, H) of every forward pass inside the block."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        seen.append(output.last_hidden_state)

    handle = backbone.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


class TokenStates:
    """Last-layer states of a micro-batch's completion tokens, each that has read its token.

    Filled part by part while the tokens are scored; states stay connected to the model.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []
        self._expected: tuple[Tensor, Tensor] | None = None

    def expect(self, rows_n: Tensor, completions_n_C: Tensor) -> None:
        """Say whose states the next forward pass brings: rows of the micro-batch, their tokens."""
        local, columns = completions_n_C.nonzero(as_tuple=True)
        self._expected = rows_n[local], columns

    def catch(self, states_M_H: Tensor) -> None:
        """Take the expected tokens' states, row by row."""
        if self._expected is None:
            raise RuntimeError("hidden states came from a forward pass that nobody announced")
        self._parts.append((states_M_H, *self._expected))
        self._expected = None

    def take(self, mask_N_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states (M, H) of the masked tokens, and their places as a mask (N, C).

        States come in the order of the mask's places, row by row. A masked token that was not
        scored (the first of a row without a prompt) has no state and no place.
        """
        states, rows, columns = (torch.cat(part) for part in zip(*self._parts, strict=True))
        width = mask_N_C.shape[1]
        rows, columns = rows.to(mask_N_C.device), columns.to(mask_N_C.device)
        wanted = mask_N_C.bool()[rows, columns].nonzero()[:, 0]
        wanted = wanted[torch.argsort((rows * width + columns)[wanted])]
        places = torch.zeros_like(mask_N_C, dtype=torch.bool)
        places[rows[wanted], columns[wanted]] = True
        return states[wanted.to(states.device)], places


def spread(values_M: Tensor, mask_N_C: Tensor) -> Tensor:
    """Values at the places of the mask, in row order, and 0 elsewhere."""
    return values_M.new_zeros(mask_N_C.shape).masked_scatter(mask_N_C, values_M)


def row_means(states_M_H: Tensor, places_N_C: Tensor) -> Tensor:
    """Mean state of each row (N, H), detached and in float32; a row without a token is 0."""
    rows_M = places_N_C.nonzero()[:, 0].to(states_M_H.device)
    states = states_M_H.detach().float()
    sums = states.new_zeros(len(places_N_C), states.shape[1]).index_add(0, rows_M, states)
    counts = places_N_C.sum(1, keepdim=True).clamp(min=1).to(sums)
    return sums / counts
