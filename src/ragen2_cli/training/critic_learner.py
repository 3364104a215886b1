"""How the critic of PPO judges a batch and learns from it, in the same passes.

A batch's advantages are computed from the values before the critic's step; the first pass that
trains the critic is the one that gives them, so judging costs nothing extra.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ragen2_cli.core.advantages import (
    NO_TURN,
    Credit,
    Discounts,
    Estimates,
    Floats,
    Moments,
    estimate,
    explained_variance,
    whiten,
)
from ragen2_cli.errors import UserError
from ragen2_cli.training.compaction import Batch, row_lengths, take_rows, trim_padding
from ragen2_cli.training.critic import Critic, load_weights, value_loss
from ragen2_cli.training.logprobs import chunk_by_length


@dataclass(frozen=True)
class CriticSettings:
    """How a critic learns.

    Attributes:
        lr: Constant learning rate of its adapter and head.
        clip: Distance that a value may move from what it was in one batch; 0 for any.
        epochs: Passes over a batch, each one step of its optimizer.
        warmup_steps: First optimizer steps of the run in which only the critic is trained.
        beta2: Adam's second-moment decay.
        max_grad_norm: Bound on its gradient's norm; 0 for none.
        whiten: Shift and scale the advantages of a batch to mean 0 and standard deviation 1.
    """

    lr: float = 1e-3
    clip: float = 0.5
    epochs: int = 1
    warmup_steps: int = 0
    beta2: float = 0.99
    max_grad_norm: float = 1.0
    whiten: bool = True


@dataclass(frozen=True, eq=False)
class Judgment:
    """What the critic makes of a batch.

    Attributes:
        advantages_N_C: Of every completion token, whitened where that is on; 0 at what the policy
            did not write.
        metrics: ``value_loss`` (mean over the policy's tokens, before the step), ``value_mean``,
            ``critic_grad_norm`` and ``explained_variance`` (missing where returns do not vary).
    """

    advantages_N_C: Floats
    metrics: dict[str, float]


class CriticLearner:
    """A critic and its optimizer, taking equal steps on every process."""

    def __init__(
        self,
        critic: Critic,
        settings: CriticSettings,
        tokens_per_forward: int = 4096,
        reduce: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        rows_per_forward: int | None = None,
    ) -> None:
        """Learn with ``settings``.

        Args:
            critic: Whose adapter and head are trained.
            settings: How.
            tokens_per_forward: Padded tokens in one forward pass.
            reduce: Sums a tensor over all processes.
            rows_per_forward: A forward pass has no more tokens than so many of a batch's longest
                rows; None for no such bound.

        Raises:
            UserError: A setting out of its range.
        """
        if settings.epochs < 1:
            raise UserError(f"critic.epochs: at least 1 is needed, got {settings.epochs}")
        self.critic, self.settings, self._reduce = critic, settings, reduce
        self._tokens, self._rows = tokens_per_forward, rows_per_forward
        self._parameters = list(critic.trained().values())
        self._adam = torch.optim.Adam(self._parameters, lr=settings.lr, betas=(0.9, settings.beta2))

    def judge(
        self,
        batch: Batch,
        rewards_N_K: Floats,
        credit: Credit = "episode",
        discounts: Discounts | None = None,
    ) -> Judgment:
        """Estimate the advantages of a batch and train the critic on its returns.

        Args:
            batch: The rows that are trained on, with ``turns`` (N, C): the turn of each token, as
                in ``core.advantages``. May hold none here and some on another process.
            rewards_N_K: What each turn of the rows earned.
            credit: Where the reward goes.
            discounts: How far it reaches back.
        """
        turn_N_C = batch["turns"].cpu().numpy()
        values, found = np.zeros(turn_N_C.shape), np.zeros((2, *turn_N_C.shape))
        own = turn_N_C != NO_TURN
        total = float(self._sum([own.sum()])[0])
        loss_sum, norm = 0.0, 0.0
        lengths = row_lengths(batch).tolist()
        most = self._tokens if self._rows is None else self._rows * max(lengths, default=0)
        chunks = chunk_by_length(lengths, min(self._tokens, most))
        for epoch in range(self.settings.epochs if total else 0):
            for rows in chunks:
                part = trim_padding(take_rows(batch, torch.tensor(rows)))
                said = self.critic.values(part, self._tokens)
                width = said.shape[1]
                if epoch == 0:
                    values[rows, :width] = said.detach().cpu().numpy()
                    new = estimate(
                        rewards_N_K[rows], values[rows], turn_N_C[rows], credit, discounts
                    )
                    found[:, rows] = new.advantages_N_T, new.returns_N_T
                loss = value_loss(
                    said,
                    torch.as_tensor(values[rows, :width]).to(said),
                    torch.as_tensor(found[1, rows, :width]).to(said),
                    torch.as_tensor(own[rows, :width]).to(said),
                    self.settings.clip,
                )
                (loss / total).backward()
                loss_sum += float(loss.detach()) if epoch == 0 else 0.0
            norm = self._step()
        return self._judgment(Estimates(found[0], found[1]), values, own, loss_sum, norm)

    def _judgment(
        self, found: Estimates, values: Floats, own: Any, loss_sum: float, norm: float
    ) -> Judgment:
        parts = [
            Moments.of(numbers, own)
            for numbers in (
                found.advantages_N_T,
                found.returns_N_T,
                found.returns_N_T - values,
                values,
            )
        ]
        sums = self._sum([loss_sum, *(number for one in parts for number in vars(one).values())])
        moments = [Moments(*sums[start : start + 3].tolist()) for start in (1, 4, 7, 10)]
        count = max(moments[0].count, 1.0)
        metrics = {
            "value_loss": float(sums[0]) / count,
            "value_mean": moments[3].mean,
            "critic_grad_norm": norm,
        }
        explained = explained_variance(moments[1], moments[2])
        if np.isfinite(explained):
            metrics["explained_variance"] = explained
        advantages = found.advantages_N_T
        if self.settings.whiten:
            advantages = whiten(advantages, own, moments[0])
        return Judgment(advantages, metrics if moments[0].count else {})

    def _sum(self, numbers: list[Any]) -> Floats:
        """Sums over all processes."""
        device = self._parameters[0].device
        kind = torch.float32 if device.type == "mps" else torch.float64
        summed: Floats = (
            self._reduce(torch.tensor(numbers, dtype=kind, device=device)).cpu().numpy()
        )
        return summed.astype(np.float64)

    def _step(self) -> float:
        """Apply the gradients gathered so far and clear them; returns their norm."""
        gradients = [
            torch.zeros_like(one) if one.grad is None else one.grad for one in self._parameters
        ]
        flat = self._reduce(torch.cat([one.flatten().float() for one in gradients]))
        norm, bound = float(flat.norm()), self.settings.max_grad_norm
        if bound and norm > bound:
            flat = flat * (bound / norm)
        parts = flat.split([one.numel() for one in self._parameters])
        for one, part in zip(self._parameters, parts, strict=True):
            one.grad = part.view_as(one).to(one.dtype)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return norm

    def state(self) -> dict[str, Any]:
        """Return adapter, head and optimizer: all that a resumed run needs."""
        weights = {name: one.detach().clone() for name, one in self.critic.trained().items()}
        return {"weights": weights, "optimizer": self._adam.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state()``.

        Raises:
            UserError: The state is of a critic of another shape.
        """
        load_weights(self.critic, state["weights"])
        self._adam.load_state_dict(state["optimizer"])
