"""Split a generation batch over the micro-batches of TRL's loop, and weight their losses.

TRL cuts a generation batch into equal parts, drops the remainder, and averages most losses within
a part. Here every row is used, parts may differ in size or be empty, and each part's loss gets the
weight that makes a row (or token) count the same wherever it lands. The mean over all parts then
is the loss of the generation batch in one piece.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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

TOKEN_MEANS = {
    "entropy",
    "kl",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "cispo_clip_ratio",
    "vespo/phi_seq_mean",
}
"""Metrics that TRL takes as means over a micro-batch's tokens and then averages over micro-batches.
Parts sorted by length need weights here as well. ``is_per_row`` says which are means over rows."""

_PHI = "vespo/phi_seq_mean"


def is_per_row(name: str, level: str, advantages: Tensor) -> bool:
    """Whether TRL's mean is over rows: phi, and clipping at ``level`` sequence by one advantage."""
    return name == _PHI or ("clip" in name and level == "sequence" and advantages.dim() == 1)


@dataclass(frozen=True)
class Share:
    """A micro-batch's part of its generation batch, relative to an equal part.

    Attributes:
        rows: Its rows, idle ones included, over the real rows of an equal part, on average over
            processes and parts (1 when all parts are equal).
        tokens: Its tokens that the loss is taken over, over those of an equal part.
        filled: Its rows that have such a token, over those of an equal part.
        all_tokens: Tokens of this micro-batch on all processes together.
        all_rows: Its real rows on all processes together.
        idle_rows: Its idle rows on all processes together.
    """

    rows: float
    tokens: float
    filled: float
    all_tokens: int
    all_rows: int
    idle_rows: int

    def loss_weight(self, loss_type: str) -> float:
        """Factor that turns TRL's loss of this part into one over the generation batch."""
        return {"rows": self.rows, "tokens": self.tokens, "batch": 1.0}[LOSS_NORMALIZERS[loss_type]]

    def scaled(
        self,
        loss: Tensor,
        loss_type: str,
        policy_loss: float | None = None,
        accumulation: int = 1,
    ) -> Tensor:
        """Return TRL's loss of this part as its share of the loss of the generation batch.

        The gradient of the entropy bonus has its ``entropy_weight`` already (a hook on the
        entropies gives it); here the value gets it too, exactly in one process.

        Args:
            loss: TRL's loss of this part.
            loss_type: TRL's loss type.
            policy_loss: The loss without the bonus, before TRL's division by ``accumulation``;
                None when there is no bonus.
            accumulation: TRL's accumulation steps of this window.
        """
        if policy_loss is not None:
            bonus = loss.detach() - policy_loss / _parts(loss_type, accumulation)
            loss = loss + (self.entropy_weight(loss_type) - 1) * bonus
        return loss * self.loss_weight(loss_type)

    def logged(self, policy_loss: float, loss_type: str, accumulation: int) -> float:
        """Return a part's policy loss, as in ``scaled``, as its share of the optimizer step's."""
        return policy_loss * self.loss_weight(loss_type) / _parts(loss_type, accumulation)

    def behind(self, name: str, mean: float, per_row: bool) -> tuple[float, int]:
        """Sum and count behind one of ``TOKEN_MEANS``, without idle rows: their phi is 1."""
        if not per_row:
            return mean * self.all_tokens, self.all_tokens
        idle = self.idle_rows if name == _PHI else 0
        return mean * (self.all_rows + self.idle_rows) - idle, self.all_rows

    def entropy_weight(self, loss_type: str) -> float:
        """Factor on the entropy bonus on top of ``loss_weight``; 1 where both are nothing."""
        weight = self.loss_weight(loss_type)
        return self.tokens / weight if weight else 1.0


def micro_batches(
    kept: Batch,
    *,
    slots: int,
    accumulation: int,
    multiple: int = 1,
    gather: Callable[[Tensor], Tensor] = lambda counts: counts,
) -> list[Batch]:
    """Cut the kept rows of this process into ``slots`` micro-batches.

    Rows are dealt out to optimizer steps at random (torch's global generator, as TRL does) and
    sorted by length within one. A micro-batch has as many rows as on the process with most of
    them, at least one, because TRL gathers a value per row: idle rows without a token to train on
    are added.

    Args:
        kept: This process's rows; may be none.
        slots: TRL's ``steps_per_generation``.
        accumulation: TRL's ``gradient_accumulation_steps``.
        multiple: Padded widths stay multiples of this.
        gather: Concatenates a tensor of one row per process over all processes.

    Returns:
        Micro-batches trimmed to their own padding, each with its ``share``.
    """
    window = math.gcd(slots, accumulation)  # slots that always belong to one optimizer step
    rows = len(kept["completion_ids"])
    order_N = torch.randperm(rows) if window < slots else torch.arange(rows)
    chosen = share_out(row_lengths(kept).cpu(), order_N, slots=slots, window=window)
    tokens_N = loss_mask(kept).sum(1).cpu()
    counts_S_3 = torch.tensor(
        [[len(rows), int(tokens_N[rows].sum()), int((tokens_N[rows] > 0).sum())] for rows in chosen]
    )
    everywhere = gather(counts_S_3[None].to(kept["completion_ids"].device)).cpu()
    equal = (everywhere.sum((0, 1)) / (slots * len(everywhere))).tolist()
    widest_S = everywhere[:, :, 0].amax(0).clamp(min=1).tolist()
    all_rows_S, all_tokens_S, _ = everywhere.sum(0).T.tolist()
    with_idle = _append(kept, idle_row(kept))
    parts = []
    for slot, (own_rows, own_tokens, own_filled) in enumerate(counts_S_3.tolist()):
        idle = torch.full((widest_S[slot] - own_rows,), rows)
        part = trim_padding(take_rows(with_idle, torch.cat([chosen[slot], idle])), multiple)
        part["share"] = Share(
            rows=widest_S[slot] / equal[0] if equal[0] else 0.0,
            tokens=own_tokens / equal[1] if equal[1] else 0.0,
            filled=own_filled / equal[2] if equal[2] else 0.0,
            all_tokens=all_tokens_S[slot],
            all_rows=all_rows_S[slot],
            idle_rows=widest_S[slot] * len(everywhere) - all_rows_S[slot],
        )
        parts.append(part)
    return parts


def idle_row(batch: Batch) -> Batch:
    """One row in the shape of the batch's, with a prompt of one token and nothing to train on."""
    rows = len(batch["completion_ids"])
    idle: Batch = {
        key: value.new_zeros((1, *value.shape[1:]))
        for key, value in batch.items()
        if isinstance(value, Tensor) and value.ndim and len(value) == rows
    }
    idle["prompt_mask"][:, -1:] = 1
    if "importance_sampling_ratio" in idle:
        idle["importance_sampling_ratio"] += 1
    return idle


def _parts(loss_type: str, accumulation: int) -> int:
    """By how many parts TRL divides its policy loss after it took ``policy_loss``."""
    return 1 if LOSS_NORMALIZERS[loss_type] == "batch" else accumulation


def _append(batch: Batch, row: Batch) -> Batch:
    return {
        key: torch.cat([value, row[key]]) if key in row else value for key, value in batch.items()
    }
