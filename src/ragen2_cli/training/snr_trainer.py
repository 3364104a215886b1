"""TRL's GRPO trainer with a group filter, compaction and normalizers over the whole batch.

Every override calls the method it overrides. What changes against ``GRPOTrainer``:

- Groups that the filter drops, and rows without a score, are removed before the reference pass and
  the update; the others are spread evenly over all processes. Dead groups have advantages of 0.
- Every remaining row lands in exactly one micro-batch, whatever ``steps_per_generation`` and
  ``gradient_accumulation_steps`` are; micro-batches may differ in size or be empty.
- Terms that TRL averages within a micro-batch are weighted so that each row (or token) counts the
  same wherever it lands (``microbatches.py``).
- A step with nothing to train on leaves weights and optimizer state untouched.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ragen2_cli.core.filters import GIVEN_SCORES, GroupFilter, Selection
from ragen2_cli.core.groups import LossScaling
from ragen2_cli.errors import UserError
from ragen2_cli.training.checks import (
    require_known_loss,
    require_positive,
    require_reference,
    require_trainable,
    unscored_in_one_line,
    warn_all_masked,
)
from ragen2_cli.training.compaction import Batch, loss_mask, take_rows, trim_padding
from ragen2_cli.training.empty_steps import EmptyStepScaler
from ragen2_cli.training.microbatches import (
    LOSS_NORMALIZERS,
    TOKEN_MEANS,
    Share,
    idle_row,
    is_per_row,
    micro_batches,
)
from ragen2_cli.training.processes import gather
from ragen2_cli.training.rebalancing import rebalance
from ragen2_cli.training.seal_loss import SealLoss
from ragen2_cli.training.seal_trainer import SealTrainer
from ragen2_cli.training.selection import (
    Decision,
    Floats,
    Rules,
    as_written,
    normalized_rewards,
    nothing_left,
    replace_last,
    score_from_rows,
    weighted_rewards,
)
from ragen2_cli.training.states import TokenStates
from ragen2_cli.training.versions import require_supported_trl

require_supported_trl()

from trl import GRPOTrainer  # noqa: E402 - only after the version is accepted
from trl.trainer.utils import use_adapter  # noqa: E402

SpreadRewards = Callable[[list[dict[str, Any]], Floats], Sequence[float]]


class SnrGRPOTrainer(SealTrainer):
    """``GRPOTrainer`` that trains on the groups a filter keeps.

    Attributes:
        rules: The filter and how advantages are scaled.
        last_selection: The filter's decision about the newest generation batch.
        empty_steps: Optimizer steps so far that had nothing to train on.
        empty_batches: Generation batches in a row, up to now, that left nothing to train on.
        stop_reason: Why training was stopped early, empty when it was not.
        rebalances: Whether kept rows are spread evenly over all processes.
    """

    last_selection: Selection | None = None
    empty_steps: int = 0
    empty_batches: int = 0
    stop_reason: str = ""
    rebalances: bool = True

    beta: float  # the parents set these without a type, or with a narrower one
    num_generations: int
    pad_to_multiple_of: int | None
    _buffered_inputs: Any
    _decision: Decision
    _logs: Any

    def __init__(
        self,
        *args: Any,
        group_filter: GroupFilter | None = None,
        loss_scaling: LossScaling = "none",
        soft_weighting: bool = False,
        spread_rewards: SpreadRewards | None = None,
        max_empty_batches: int = 5,
        tokens_per_forward: int | None = None,
        seal: SealLoss | float | None = None,
        separation: bool = False,
        **kwargs: Any,
    ) -> None:
        """Take everything ``GRPOTrainer`` takes, and what is about the filter and SEAL.

        Args:
            *args: Passed on to ``GRPOTrainer``.
            group_filter: Chooses the groups to train on; without one every group stays.
            loss_scaling: Multiply advantages by the kept share of groups (``linear``) or its root.
            soft_weighting: Multiply advantages by a group's spread over the largest spread.
            spread_rewards: Called with the process's inputs and their rewards (N,), returns the
                numbers whose spread the filter judges, such as the outcome without penalties.
            max_empty_batches: Stop after this many generation batches in a row that left nothing
                to train on.
            tokens_per_forward: Padded tokens in one forward pass, within a micro-batch; 4096 on a
                CPU and 32768 elsewhere when not given.
            seal: The SEAL term to add, or its coefficient.
            separation: Log how alike good and bad episodes' states are, also without SEAL.
            **kwargs: Passed on to ``GRPOTrainer``.

        Raises:
            UserError: Nothing to train (a frozen adapter), an unknown loss type, or an argument
                outside its range.
        """
        rules = Rules(group_filter or GroupFilter("none"), loss_scaling, soft_weighting)
        require_positive(max_empty_batches=max_empty_batches, tokens_per_forward=tokens_per_forward)
        given = inspect.signature(GRPOTrainer.__init__).bind(self, *args, **kwargs).arguments
        require_reference(given.get("model"), given.get("args"), given.get("peft_config"))
        super().__init__(*args, **kwargs)
        require_trainable(self.model)
        require_known_loss(self.loss_type, LOSS_NORMALIZERS)
        if type(self.accelerator.scaler) is torch.amp.GradScaler:  # fp16, weights not sharded
            kind = self.accelerator.device.type
            self.accelerator.scaler = EmptyStepScaler.like(self.accelerator.scaler, kind)
        self.rules = rules
        self.spread_rewards = spread_rewards
        self.max_empty_batches = max_empty_batches
        default = 4096 if self.accelerator.device.type == "cpu" else 32768
        self.tokens_per_forward = tokens_per_forward or default
        self._rewards_N: Floats = np.zeros(0)
        self._judged_N: Floats = np.zeros(0)
        self._generated: Batch | None = None
        self._window_tokens = 0
        self._window_sums: defaultdict[str, Floats] = defaultdict(lambda: np.zeros(2))
        self.setup_seal(seal, separation)

    def on_selection(
        self,
        selection: Selection,
        advantages_N: Floats,
        rewards_N: Floats,
        inputs: list[dict[str, Any]],
    ) -> None:
        """Observe a selection; subclasses override it. Called once per generation batch.

        Args:
            selection: The filter's decision over the batch of all processes.
            advantages_N: Final advantages of all rows, dropped ones included.
            rewards_N: Raw weighted rewards of all rows; NaN is unscored.
            inputs: The inputs of this process's rows, with the rollout function's extra fields.
        """

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        with unscored_in_one_line():
            rewards_N_F: Tensor = super()._calculate_rewards(
                inputs, prompts, completions, completion_ids_list
            )
        scores, weights = rewards_N_F.cpu().numpy(), self.reward_weights.numpy()
        self._rewards_N = self._judged_N = weighted_rewards(scores, weights)
        if self.multi_objective_aggregation == "normalize_then_sum" and self.model.training:
            self._judged_N = normalized_rewards(scores, weights, self.num_generations)
        return rewards_N_F

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        beta, training = self.beta, self.model.training
        self.beta = 0.0 if training else beta  # the reference pass can wait for the filter
        try:
            batch: Batch = super()._generate_and_score_completions(inputs)
        finally:
            self.beta = beta
        if not training:
            self._logs["extra"]["kept"].extend([None] * len(self._rewards_N))
            return batch
        if batch.get("num_images") is not None or "pixel_values" in batch:
            raise UserError("SnrGRPOTrainer: images are not supported yet; use GRPOTrainer")
        kept = trim_padding(self._filter(batch, inputs), self.pad_to_multiple_of or 1)
        if self.rebalances:
            kept = rebalance(kept, self.accelerator)
        if self.beta != 0.0:
            kept["ref_per_token_logps"] = self._reference_logps(kept)
        self._generated = kept
        return kept

    def _filter(self, batch: Batch, inputs: list[dict[str, Any]]) -> Batch:
        """Select groups over all processes; return this process's kept rows and new counts."""
        rewards_N, spread_N = self._rewards_N, self._judged_N
        start = self.accelerator.process_index * len(inputs)
        mine = slice(start, start + len(inputs))
        if self.spread_rewards is not None:
            own = as_written(self.spread_rewards(inputs, rewards_N[mine]))
            spread_N = np.array(gather(own.tolist()))  # unrounded, so that ties stay ties
        decision = self.rules.decide(
            self._judged_N,
            spread_N,
            self._gather(batch["advantages"]),
            self.num_generations,
            self._given_score(batch),
        )
        advantages = torch.as_tensor(decision.advantages_N[mine]).to(batch["advantages"])
        rows_kept = torch.as_tensor(np.flatnonzero(decision.kept_N[mine]))
        kept = take_rows(batch | {"advantages": advantages}, rows_kept)
        kept["num_items_in_batch"] = self.accelerator.gather(loss_mask(kept).sum()).sum()
        self.last_selection, self._decision = decision.selection, decision
        self._record(batch, kept, decision)
        self.on_selection(decision.selection, decision.advantages_N, rewards_N, inputs)
        return kept

    def _given_score(self, batch: Batch) -> Floats | None:
        """Compute the group score that rewards cannot give: completion length or token entropy."""
        score = self.rules.group_filter.score
        if score not in GIVEN_SCORES:
            return None
        mask = loss_mask(batch)
        values_N = mask.sum(1)
        if score != "length":
            entropies = self._score_tokens(self.model, batch, compute_entropy=True)
            values_N = (entropies * mask).sum(1) / values_N  # no token: NaN
        return score_from_rows(self._gather(values_N), self.num_generations, score)

    def _record(self, batch: Batch, kept: Batch, decision: Decision) -> None:
        """Log counts, put the final advantages into the completions table, count empty batches."""
        before, after = int(batch["num_items_in_batch"]), int(kept["num_items_in_batch"])
        metrics = decision.metrics() | {"kept_tokens_ratio": after / before if before else 0.0}
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)
        # The parent has just put its own values there.
        replace_last(self._logs["advantages"], decision.advantages_N.tolist())
        self._logs["extra"]["kept"].extend(decision.kept_N.tolist())
        if before == 0:
            warn_all_masked(self._metrics["train"]["completions/clipped_ratio"][-1])
        self.empty_batches = 0 if after else self.empty_batches + 1

    def _gather(self, values: Tensor | Floats) -> Floats:
        """Values of all processes, in the order of the global batch."""
        local = torch.as_tensor(values, dtype=torch.float32, device=self.accelerator.device)
        gathered: Floats = self.accelerator.gather(local).cpu().double().numpy()
        return gathered

    def _reference_logps(self, batch: Batch) -> Tensor:
        """Log-probabilities of the kept completions under the reference model.

        A process without rows scores an idle one, because sharded models (FSDP) compute together.
        """
        rows = len(batch["completion_ids"])
        if not rows and self.accelerator.num_processes == 1:
            return torch.zeros_like(batch["completion_ids"], dtype=torch.float32)
        batch = batch if rows else idle_row(batch)
        if self.ref_model is not None:
            return self._score_tokens(self.ref_model, batch)[:rows]
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, "ref" if "ref" in model.peft_config else None):
            return self._score_tokens(self.model, batch)[:rows]

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        inputs: Batch = super()._prepare_inputs(generation_batch)
        if self._generated is not None:
            # The parent has split this batch as well, but dropped the remainder.
            self._buffered_inputs = micro_batches(
                self._generated,
                slots=self.args.steps_per_generation,
                accumulation=self.args.gradient_accumulation_steps,
                multiple=self.pad_to_multiple_of or 1,
                gather=self.accelerator.gather,
            )
            self._generated = None
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return inputs

    def _compute_loss(self, model: nn.Module, inputs: Batch) -> Tensor:
        share: Share | None = inputs.get("share")
        if share is None:  # evaluation, or a caller's own batch
            loss: Tensor = super()._compute_loss(model, inputs)
            return loss
        self._window_tokens += share.all_tokens
        if self._window_tokens == 0:
            # Nothing yet in this optimizer step, on any process. A loss that no parameter is part
            # of leaves the gradients None, and optimizers skip parameters without a gradient.
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        self._entropy_weight = share.entropy_weight(self.loss_type)
        states = self._states = TokenStates() if self.separation else None
        metrics = self._metrics["train"]
        before = {name: len(values) for name, values in metrics.items()}  # reward functions log too
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self._entropy_weight, self._states = 1.0, None
        own = {name for name, values in metrics.items() if len(values) > before.get(name, 0)}
        for name in TOKEN_MEANS & own:
            per_row = is_per_row(name, self.importance_sampling_level, inputs["advantages"])
            self._window_sums[name] += share.behind(name, metrics[name].pop(), per_row)
        policy, parts = None, self.current_gradient_accumulation_steps
        if "policy_loss" in own:
            policy = metrics["policy_loss"].pop()
            self._window_sums["policy_loss"] += share.logged(policy, self.loss_type, parts), 0
        loss = share.scaled(loss, self.loss_type, policy, parts)
        return loss if states is None else loss + self.seal_term(states, inputs, share)

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Run one micro-batch as TRL does, and close the optimizer step after its last one."""
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            for name, (total, count) in self._window_sums.items():
                self._metrics["train"][name].append(float(total / max(1, count)))
            self.empty_steps += self._window_tokens == 0
            self._window_tokens = 0
            self._window_sums.clear()
            self._metrics["train"]["empty_steps"] = [float(self.empty_steps)]
            if self.empty_batches >= self.max_empty_batches:
                self.stop_reason = nothing_left(self.empty_batches, self.last_selection)
                self.control.should_training_stop = True
        return loss
