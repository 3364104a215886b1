"""Split a generation batch over the micro-batches of TRL's loop, and weight their losses.

TRL cuts a generation batch into equal parts, drops the remainder, and averages most losses within
a part. Here every row is used, parts may differ in size or be empty, and each part's loss gets the
weight that makes a row (or token) count the same wherever it lands. The mean over all parts then
is the loss of the generation batch in one piece.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ragen2_cli.training.compaction import (
    Batch,
    loss_mask,
    row_lengths,
    share_out,
    take_rows,
    trim_padding,
)

LOSS_NORMALIZERS: dict[str, Literal["rows", "tokens", "batch"]] = {
    "grpo": "rows",
    "sapo": "rows",
    "dr_grpo": "rows",
    "luspo": "rows",
    "bnpo": "tokens",
    "dapo": "batch",
    "cispo": "batch",
    "vespo": "batch",
}
"""What TRL divides a micro-batch's policy and KL loss by: its own rows, its own tokens, or already
the tokens of the whole generation batch. The entropy bonus is always divided by its own tokens."""


@dataclass(frozen=True)
class Share:
    """A micro-batch's part of its generation batch, relative to an equal part.

    Attributes:
        rows: Its rows over the rows of an equal part, on average over processes and parts (1 when
            all parts are equal).
        tokens: The same for tokens that the loss is taken over.
        all_tokens: Tokens of this micro-batch on all processes together.
    """

    rows: float
    tokens: float
    all_tokens: int

    def loss_weight(self, loss_type: str) -> float:
        """Factor that turns TRL's loss of this part into one over the generation batch."""
        return {"rows": self.rows, "tokens": self.tokens, "batch": 1.0}[LOSS_NORMALIZERS[loss_type]]

    def entropy_weight(self, loss_type: str) -> float:
        """Factor on the entropy bonus on top of ``loss_weight``; 1 where both are nothing."""
        weight = self.loss_weight(loss_type)
        return self.tokens / weight if weight else 1.0


def micro_batches(
    kept: Batch,
    placeholder: Batch,
    *,
    slots: int,
    accumulation: int,
    multiple: int = 1,
    processes: int = 1,
    reduce_sum: Callable[[Tensor], Tensor] = lambda counts: counts,
) -> list[Batch]:
    """Cut the kept rows of this process into ``slots`` micro-batches.

    Rows are dealt out to optimizer steps at random (torch's global generator, as TRL does) and
    sorted by length within one.

    Args:
        kept: This process's rows; may be none.
        placeholder: One row, masked out and used where this process has no row, so that it takes
            part in collective operations.
        slots: TRL's ``steps_per_generation``.
        accumulation: TRL's ``gradient_accumulation_steps``.
        multiple: Padded widths stay multiples of this.
        processes: Number of processes.
        reduce_sum: Sums a tensor over processes.

    Returns:
        Micro-batches trimmed to their own padding, each with its ``share``.
    """
    window = math.gcd(slots, accumulation)  # slots that always belong to one optimizer step
    lengths_N = row_lengths(kept).cpu()
    rows = len(lengths_N)
    order_N = torch.randperm(rows) if window < slots else torch.arange(rows)
    parts = [
        trim_padding(take_rows(kept, chosen), multiple)
        for chosen in share_out(lengths_N, order_N, slots=slots, window=window)
    ]
    counts_S_2 = [[len(part["completion_ids"]), int(loss_mask(part).sum())] for part in parts]
    device = kept["completion_ids"].device
    totals_S_2 = reduce_sum(torch.tensor(counts_S_2, device=device)).tolist()
    equal_rows, equal_tokens = (
        sum(column) / (slots * processes) for column in zip(*totals_S_2, strict=True)
    )
    for slot, (own_rows, own_tokens) in enumerate(counts_S_2):
        if not own_rows:
            parts[slot] = masked_out(placeholder, kept)
        parts[slot]["share"] = Share(
            rows=own_rows / equal_rows if own_rows else 0.0,
            tokens=own_tokens / equal_tokens if own_tokens else 0.0,
            all_tokens=totals_S_2[slot][1],
        )
    return parts


def masked_out(row: Batch, kept: Batch) -> Batch:
    """Return the row without any token to train on, with the entries that kept rows have."""
    masked: dict[str, Any] = dict(row)
    masked["completion_mask"] = torch.zeros_like(row["completion_mask"])
    masked["num_items_in_batch"] = kept["num_items_in_batch"]
    if "ref_per_token_logps" in kept:
        masked["ref_per_token_logps"] = torch.zeros_like(row["completion_ids"], dtype=torch.float32)
    return trim_padding(masked)
