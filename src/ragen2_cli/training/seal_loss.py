"""``SealLoss``: the SEAL term of a loss, for our trainers and for anyone's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ragen2_cli.errors import UserError, did_you_mean
from ragen2_cli.training.seal import AGGREGATIONS, Aggregation, SealHead, seal_loss
from ragen2_cli.training.states import backbone_of, last_hidden_states


class SealLoss(nn.Module):
    """``coefficient`` times the SEAL loss, with the head that it trains (``seal.py``).

    Give it to ``SnrGRPOTrainer(seal=...)``, which does the rest; or call it in a trainer of your
    own: ``prepare`` builds the head, ``join`` hands it to the optimizer, ``reading`` catches the
    hidden states of the policy's own forward pass, and calling it returns the term to add.

    Attributes:
        head: None until ``prepare``.
    """

    def __init__(
        self,
        coefficient: float = 0.02,
        *,
        layers: int = 3,
        dropout: float = 0.1,
        aggregation: Aggregation = "token-mean",
        seed: int = 0,
    ) -> None:
        """Choose the term; nothing is built yet.

        Args:
            coefficient: Factor on the loss; with 0 the term is exactly 0.
            layers: Linear layers n of the head.
            dropout: Dropped share of the head's activations.
            aggregation: Mean over tokens, or mean of the rows' means; ``for_loss`` knows which of
                TRL's losses takes which.
            seed: Of the head's weights and dropout, which leave every other generator alone.

        Raises:
            UserError: A number out of its range.
        """
        super().__init__()
        if not 0 <= coefficient < float("inf"):
            raise UserError(f"seal: the coefficient must be 0 or more, got {coefficient}")
        if layers < 1:
            raise UserError(f"seal: layers must be 1 or more, got {layers}")
        if not 0 <= dropout < 1:
            raise UserError(f"seal: dropout must be at least 0 and below 1, got {dropout}")
        self.coefficient = coefficient
        self.layers, self.dropout, self.seed = layers, dropout, seed
        self.aggregation: Aggregation = aggregation
        self.head: SealHead | None = None

    def prepare(self, model: nn.Module) -> "SealLoss":
        """Build the head for a model's hidden size, on its device; done once. Returns itself."""
        if self.head is None:
            bare: Any = backbone_of(model)
            width = bare.config.get_text_config().hidden_size
            device = next(model.parameters()).device
            self.head = SealHead(width, self.layers, self.dropout, self.seed).to(device)
        return self

    def for_loss(self, loss_type: str) -> "SealLoss":
        """Take the mean that belongs to one of TRL's losses. Returns itself.

        Raises:
            UserError: An unknown loss type.
        """
        if loss_type not in AGGREGATIONS:
            hint = did_you_mean(loss_type, AGGREGATIONS)
            raise UserError(f"loss_type: SEAL does not know '{loss_type}'{hint}")
        self.aggregation = AGGREGATIONS[loss_type]
        return self

    def join(self, optimizer: torch.optim.Optimizer, weight_decay: float = 0.0) -> None:
        """Let the policy's optimizer train the head too, at its learning rate.

        The head's gradients are cleared after each of the optimizer's steps, since it is no part of
        the model. ``weight_decay`` spares biases and norms. Joining twice changes nothing.
        """
        joined = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        head = self.ready
        if id(head.out.weight) in joined:
            return
        decayed = [weight for weight in head.parameters() if weight.ndim > 1]
        others = [weight for weight in head.parameters() if weight.ndim <= 1]
        optimizer.add_param_group({"params": decayed, "weight_decay": weight_decay})
        optimizer.add_param_group({"params": others, "weight_decay": 0.0})
        optimizer.register_step_post_hook(lambda *_: head.zero_grad())

    @property
    def ready(self) -> SealHead:
        """The head.

        Raises:
            UserError: Before ``prepare``.
        """
        if self.head is None:
            raise UserError("SealLoss has no head yet: call prepare(model) first")
        return self.head

    def reseed(self, *moment: int) -> None:
        """Start the head's dropout anew from the seed and a moment (process, step, ...).

        So a resumed run drops what an uninterrupted one does, with nothing to save, where the
        moment is counted from its first step on (TRL's own ``_step`` starts at 0 again).
        """
        seed = np.random.SeedSequence((self.seed, *moment)).generate_state(1, np.uint64)[0]
        self.ready.generator.manual_seed(int(seed))

    @contextmanager
    def reading(self, model: nn.Module) -> Iterator[list[Tensor]]:
        """Collect the hidden states (B, S, H) of each forward pass of ``model`` in the block."""
        with last_hidden_states(backbone_of(model)) as seen:
            yield seen

    def forward(self, states_B_S_H: Tensor, advantages_B: Tensor, mask_B_T: Tensor) -> Tensor:
        """Return ``coefficient`` times the loss of one batch.

        Args:
            states_B_S_H: Last-layer states, connected to the policy; the last T of S columns are
                the completions'.
            advantages_B: One advantage per row; its sign is what the head learns.
            mask_B_T: 1 for each token that the model wrote, in rows that have a score.
        """
        mask = mask_B_T.bool()
        logits_M = self.ready(states_B_S_H[:, -mask.shape[1] :][mask])
        logits_B_T = logits_M.new_zeros(mask.shape).masked_scatter(mask, logits_M)
        return self.coefficient * seal_loss(logits_B_T, advantages_B, mask, self.aggregation)
