"""SEAL: a small head that learns, from the policy's own hidden states, which episodes went well.

Its loss pulls the representations of good and bad trajectories apart (arXiv 2605.27954); the
gradient flows through the head into the policy. The head exists only in training.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ragen2_cli.errors import UserError, did_you_mean

Aggregation = Literal["token-mean", "seq-mean-token-mean"]

# Which mean each of TRL's losses takes, so that both terms weigh tokens alike.
AGGREGATIONS: dict[str, Aggregation] = {
    "dapo": "token-mean",
    "bnpo": "token-mean",
    "cispo": "token-mean",
    "vespo": "token-mean",
    "dr_grpo": "token-mean",
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "luspo": "seq-mean-token-mean",
}


def seal_loss(
    logits_B_T: Tensor,
    advantages_B: Tensor,
    mask_B_T: Tensor,
    aggregation: Aggregation = "token-mean",
) -> Tensor:
    """Binary cross-entropy of every token's logit against its episode's sign.

    The label is 0 where the advantage is negative and 1 elsewhere. ``token-mean`` averages over
    all masked tokens; ``seq-mean-token-mean`` over the tokens of each row, then over the rows
    that have any. With no masked token the loss is 0 (and still has a graph).

    Args:
        logits_B_T: The head's output for each token.
        advantages_B: One advantage per row.
        mask_B_T: 1 for each token that counts (written by the model, in a scored row).
        aggregation: Which mean.

    Returns:
        A scalar in nats.

    Raises:
        UserError: For an unknown aggregation.
    """
    labels_B_T = (advantages_B >= 0).to(logits_B_T.dtype).unsqueeze(1).expand_as(logits_B_T)
    mask_B_T = mask_B_T.to(logits_B_T.dtype)
    loss_B_T = functional.binary_cross_entropy_with_logits(logits_B_T, labels_B_T, reduction="none")
    loss_B_T = loss_B_T.masked_fill(mask_B_T == 0, 0.0)
    if aggregation == "token-mean":
        return loss_B_T.sum() / mask_B_T.sum().clamp(min=1.0)
    if aggregation == "seq-mean-token-mean":
        tokens_B = mask_B_T.sum(1)
        mean_B = loss_B_T.sum(1) / tokens_B.clamp(min=1.0)
        return mean_B.sum() / (tokens_B > 0).sum().clamp(min=1)
    known = ("token-mean", "seq-mean-token-mean")
    hint = did_you_mean(aggregation, known)
    raise UserError(f"seal aggregation '{aggregation}' is unknown{hint}")


class SealHead(nn.Module):
    """``layers - 1`` blocks of Linear, GELU, LayerNorm, Dropout, then one logit per token.

    Args:
        width: Size h of the hidden states.
        layers: Number n of linear layers, at least 1.
        dropout: Dropped share; drawn from the head's own generator, so that a run with the head
            leaves every other random stream as it is.
        seed: Decides the initial weights and the dropout.
    """

    def __init__(self, width: int, layers: int = 3, dropout: float = 0.1, seed: int = 0) -> None:
        super().__init__()
        if layers < 1:
            raise UserError(f"seal layers must be at least 1, not {layers}")
        self.dropout = dropout
        self.generator = torch.Generator().manual_seed(seed)
        # skip_init: the default initialization would draw from the global generator.
        self.hidden = nn.ModuleList(
            nn.utils.skip_init(nn.Linear, width, width) for _ in range(layers - 1)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers - 1))
        self.out = nn.utils.skip_init(nn.Linear, width, 1)
        bound = width**-0.5
        for linear in (*self.hidden, self.out):
            for weight in linear.parameters():
                with torch.no_grad():
                    weight.uniform_(-bound, bound, generator=self.generator)

    def forward(self, states_B_T_H: Tensor) -> Tensor:
        """Return one logit per token, shape (B, T), or of any shape (..., H) without its last axis.

        States of another dtype or device are brought to the head's.
        """
        states_B_T_H = states_B_T_H.to(self.out.weight)
        for linear, norm in zip(self.hidden, self.norms, strict=True):
            states_B_T_H = norm(functional.gelu(linear(states_B_T_H)))
            if self.training and self.dropout > 0:
                kept = self._kept(states_B_T_H)
                states_B_T_H = states_B_T_H * kept / (1 - self.dropout)
        logits: Tensor = self.out(states_B_T_H).squeeze(-1)
        return logits

    def _kept(self, like: Tensor) -> Tensor:
        """1 where dropout keeps a value, else 0; drawn on the device that holds the values."""
        if self.generator.device != like.device:
            moved = torch.Generator(like.device)
            self.generator = moved.manual_seed(self.generator.initial_seed())
        drawn = torch.rand(like.shape, generator=self.generator, device=like.device)
        return (drawn >= self.dropout).to(like.dtype)


def contrast(states_B_T_H: Tensor, mask_B_T: Tensor, correct_B: Tensor) -> dict[str, float]:
    """Compare the mean representations of good and bad episodes.

    A row's representation is the mean of its masked states. ``within_correct``,
    ``within_incorrect`` and ``across`` are mean pairwise cosines (a row is never paired with
    itself); ``contrast`` is ``2 * across - (within_correct + within_incorrect)``: lower means
    better separated. A value that has no pair is NaN.

    Args:
        states_B_T_H: Last-layer hidden states.
        mask_B_T: 1 for each token that counts; a row without any is left out.
        correct_B: True for the rows of good episodes.
    """
    mask_B_T = mask_B_T.to(states_B_T_H.dtype)
    filled_B = mask_B_T.sum(1) > 0
    mean_B_H = (states_B_T_H * mask_B_T.unsqueeze(-1)).sum(1)[filled_B]
    unit_B_H = functional.normalize(mean_B_H / mask_B_T.sum(1)[filled_B].unsqueeze(-1), dim=-1)
    good = unit_B_H[correct_B[filled_B]]
    bad = unit_B_H[~correct_B[filled_B]]

    def within(rows: Tensor) -> float:
        n = len(rows)
        total = (rows @ rows.T).sum() - n
        return float(total / (n * (n - 1))) if n > 1 else float("nan")

    across = float((good @ bad.T).mean()) if len(good) and len(bad) else float("nan")
    values = {
        "within_correct": within(good),
        "within_incorrect": within(bad),
        "across": across,
    }
    values["contrast"] = 2 * across - (values["within_correct"] + values["within_incorrect"])
    return values
