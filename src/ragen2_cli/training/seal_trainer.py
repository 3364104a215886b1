"""SEAL inside the trainer: the head, its gradient, its optimizer, its checkpoints, its metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ragen2_cli.errors import UserError
from ragen2_cli.training.checkpoints import read_tensors, write_tensors
from ragen2_cli.training.compaction import Batch, loss_mask
from ragen2_cli.training.microbatches import Share
from ragen2_cli.training.seal import contrast, seal_loss
from ragen2_cli.training.seal_loss import SealLoss
from ragen2_cli.training.states import TokenStates, row_means, spread
from ragen2_cli.training.token_scores import TokenScoresTrainer

HEAD_FILE = "seal_head.safetensors"


class SealTrainer(TokenScoresTrainer):
    """Adds the SEAL term to the loss of every micro-batch that has a ``Share``.

    The states come from the forward pass that scores the tokens. The head is no part of the model:
    it is saved beside it in checkpoints, and averaged over processes here.

    Attributes:
        seal: The term, or None.
        separation: Whether the similarity of good and bad episodes is logged, with or without
            the term.
    """

    seal: SealLoss | None = None
    separation: bool = False
    _window_closed = True

    def setup_seal(self, seal: SealLoss | float | None, separation: bool) -> None:
        """Build the head for the trainer's model; a coefficient of 0 builds none.

        Raises:
            UserError: A model that is sharded over processes, or a scheduler that was built
                without the head.
        """
        if isinstance(seal, float | int):
            seal = SealLoss(seal, seed=self.args.seed)
        self.separation = separation
        self._rows: list[Tensor] = []
        self._sums = torch.zeros(4, device=self.accelerator.device)
        if seal is None or seal.coefficient == 0:
            return
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise UserError("seal: not with a model sharded over processes (FSDP, DeepSpeed)")
        if self.lr_scheduler is not None:
            raise UserError("seal: pass the optimizer alone, the scheduler must know the head too")
        self.seal = seal.prepare(self.model).for_loss(self.loss_type)
        self.separation = True

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Make the policy's optimizer and let it train the head as well."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if self.seal is not None:
            self.seal.join(optimizer, self.args.weight_decay)
        return optimizer

    def seal_term(self, states: TokenStates, inputs: Batch, share: Share) -> Tensor | float:
        """Return this micro-batch's part of the term; over a generation batch the parts' mean
        is the term of the batch in one piece.

        Also collects what the step's metrics need.
        """
        mask = loss_mask(inputs)
        advantages = inputs["advantages"]
        if advantages.ndim > 1:  # one per token in some subclasses: a row's sign is its mean's
            advantages = (advantages * mask).sum(1)
        states_M_H, places = states.take(mask)
        means = row_means(states_M_H, places)
        counts = torch.stack([places.sum(1).to(means), advantages.to(means)], 1)
        self._rows.append(torch.cat([means, counts], 1))
        if self.seal is None:
            return 0.0
        window = self.args.gradient_accumulation_steps
        moment = self.state.global_step * window + self._step % window  # known to a resumed run
        self.seal.reseed(self.accelerator.process_index, moment)
        logits_M = self.seal.ready(states_M_H)
        logits = spread(logits_M, places)
        loss = seal_loss(logits, advantages, places, self.seal.aggregation)
        of_tokens = self.seal.aggregation == "token-mean"
        parts = places.sum() if of_tokens else places.any(1).sum()
        good = (advantages >= 0)[:, None].expand_as(places)[places]
        right = ((logits_M >= 0) == good.to(logits_M.device)).sum()
        counted = (loss.detach() * parts, parts, right, places.sum())
        self._sums += torch.stack([value.to(self._sums) for value in counted])
        weight = share.tokens if of_tokens else share.filled
        steps = self.current_gradient_accumulation_steps
        return self.seal.coefficient * weight / steps * loss.to(self.accelerator.device)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run one micro-batch; after an optimizer step's last one, average the head's gradient."""
        if self.seal is not None and self._window_closed:
            self.seal.zero_grad()  # also where a scaler has skipped the optimizer
        loss: Tensor = super().training_step(*args, **kwargs)
        self._window_closed = self.accelerator.sync_gradients
        if self._window_closed and self.separation:
            for name, value in self._seal_metrics().items():
                self._metrics["train"][name].append(value)
            if self.seal is not None and self.accelerator.num_processes > 1:
                self._average(self.seal.ready)
        return loss

    def _seal_metrics(self) -> dict[str, float]:
        """Metrics of an optimizer step over all processes; starts the next one's."""
        sums = self.accelerator.reduce(self._sums, "sum").tolist()
        rows, self._rows, self._sums = self._rows, [], torch.zeros_like(self._sums)
        metrics: dict[str, float] = {}
        if sums[1]:
            metrics = {"seal/loss": sums[0] / sums[1], "seal/accuracy": sums[2] / sums[3]}
        if rows:
            # Processes may hold different numbers of rows; rows of zeros are on neither side.
            own = self.accelerator.pad_across_processes(torch.cat(rows))
            metrics |= _separation(self.accelerator.gather(own))
        return metrics

    def _average(self, head: nn.Module) -> None:
        """Mean of the head's gradients over processes, as DDP does for the model's."""
        weights = list(head.parameters())
        flat = torch.cat([_gradient(weight).flatten() for weight in weights])
        known = flat.new_tensor([float(weights[0].grad is not None)])
        flat = self.accelerator.reduce(torch.cat([flat, known]), "mean")
        if not flat[-1]:
            return  # nothing was trained on anywhere: the optimizer skips the head
        parts = flat[:-1].split([weight.numel() for weight in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight).clone()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.seal is not None and self.args.should_save:
            folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
            write_tensors(folder / HEAD_FILE, self.seal.ready.state_dict())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.seal is not None and checkpoint is not None:
            file = Path(checkpoint) / HEAD_FILE
            if not file.is_file():
                raise UserError(f"{checkpoint} was written without SEAL; resume it without")
            self.seal.ready.load_state_dict(read_tensors(file))


def _gradient(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def _separation(rows_N_K: Tensor) -> Mapping[str, float]:
    """Contrast of good rows (advantage above 0) and bad ones (below).

    Args:
        rows_N_K: Mean state, number of tokens, advantage of each row.
    """
    decided = rows_N_K[(rows_N_K[:, -2] > 0) & (rows_N_K[:, -1] != 0)]
    means, ones = decided[:, None, :-2], torch.ones(len(decided), 1, device=decided.device)
    return {f"separation/{k}": v for k, v in contrast(means, ones, decided[:, -1] > 0).items()}
