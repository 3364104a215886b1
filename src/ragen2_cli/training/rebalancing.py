"""Spread the rows that a filter kept evenly over all processes.

A filter may keep every group of one process and none of another, and then all wait for the one
with work. Here kept rows are dealt out anew, shortest first and back and forth over the processes,
so that all have as many rows, to one, and about as many tokens. The gradient is the same: shares
(``microbatches.py``) count rows and tokens over all processes, wherever a row lies.
"""

from typing import Protocol

import torch
from torch import Tensor

from ragen2_cli.training.compaction import PROMPT_KEYS, WHOLE_KEYS, Batch, row_lengths


def deal(lengths_N: Tensor, processes: int) -> list[Tensor]:
    """Assign rows to processes, in the order of their lengths: 0, 1, 1, 0, 0, 1, ... for two.

    Args:
        lengths_N: Tokens of each row.
        processes: How many there are.

    Returns:
        Row indices of each process, shortest row first; their numbers differ by at most one.
    """
    order_N = torch.argsort(lengths_N, stable=True)
    turn_N = torch.arange(len(order_N)) % (2 * processes)
    owner_N = torch.minimum(turn_N, 2 * processes - 1 - turn_N)
    return [order_N[owner_N == process] for process in range(processes)]


class Peers(Protocol):
    """What is asked of accelerate's ``Accelerator``."""

    @property
    def process_index(self) -> int:
        """Index of this process."""

    @property
    def num_processes(self) -> int:
        """How many there are."""

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate a tensor of equal shape over all processes along its first dimension."""


def rebalance(kept: Batch, peers: Peers) -> Batch:
    """Return this process's even part of the kept rows of all processes.

    Tensors with a value per row are exchanged one after the other, so that memory holds only one
    of them for all processes. Every process has to call this, one without rows as well.

    Args:
        kept: This process's rows; may be none. With one process they are returned as they are.
        peers: The processes.
    """
    if peers.num_processes == 1:
        return kept
    rows, device = len(kept["completion_ids"]), kept["completion_ids"].device
    by_row = {
        key: value
        for key, value in sorted(kept.items())
        if isinstance(value, Tensor) and value.ndim and len(value) == rows
    }
    own = [value.shape[1] if rows and value.ndim > 1 else 0 for value in by_row.values()]
    counts_W_K = peers.gather(torch.tensor([[rows, *own]], device=device))
    most, *widths = counts_W_K.amax(0).tolist()
    if not most:
        return kept
    width = dict(zip(by_row, widths, strict=True))
    real = torch.arange(most, device=device) < counts_W_K[:, :1]

    def of_all(value: Tensor, start: int, wide: int) -> Tensor:
        """Rows of all processes, put into ``wide`` columns from ``start`` on."""
        full = value.new_zeros((most, *((wide,) if value.ndim > 1 else ()), *value.shape[2:]))
        if rows and value.ndim > 1:
            full[:rows, start : start + value.shape[1]] = value
        elif rows:
            full[:rows] = value
        return peers.gather(full)[real.flatten()]

    dealt = deal(of_all(row_lengths(kept), 0, 0).cpu(), peers.num_processes)
    mine = dealt[peers.process_index].to(device)
    before = width["prompt_ids"] - kept["prompt_ids"].shape[1]  # columns that prompts lack here
    spread = dict(kept)
    for key, value in by_row.items():
        start = before if key in PROMPT_KEYS + WHOLE_KEYS else 0
        wide = width[key]
        if key in WHOLE_KEYS:
            wide = width["prompt_ids"] + width["completion_ids"]
        spread[key] = of_all(value, start, wide)[mine]
    return spread
