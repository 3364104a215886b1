"""The trainer with advantages per token: PPO with a critic, or GRPO with credit per turn.

TRL's loss takes one advantage per token as readily as one per row, so this is no other training
loop: the filter has chosen, the rows that are left get their advantages, and all else stays. With
neither a critic nor credit per turn nothing here does anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ragen2_cli.core.advantages import (
    NO_TURN,
    Credit,
    Discounts,
    Floats,
    spread_over_tokens,
    turn_advantages,
    turn_rewards,
)
from ragen2_cli.core.groups import Scale
from ragen2_cli.errors import UserError
from ragen2_cli.records import Episode
from ragen2_cli.training.compaction import Batch, loss_mask
from ragen2_cli.training.critic import Critic
from ragen2_cli.training.critic_learner import CriticLearner, CriticSettings
from ragen2_cli.training.processes import gather
from ragen2_cli.training.selection import replace_last
from ragen2_cli.training.snr_trainer import SnrGRPOTrainer


@dataclass(frozen=True)
class CreditRules:
    """Where rewards go.

    Attributes:
        credit: ``episode``, ``turn`` or, with a critic, ``bi-level``.
        discounts: How far it reaches back; only with a critic.
        settings: How the critic learns; None for group-relative advantages without one.
    """

    credit: Credit = "episode"
    discounts: Discounts = field(default_factory=Discounts)
    settings: CriticSettings | None = None


@dataclass(frozen=True, eq=False)
class Turns:
    """The turns of this process's rows: what they earned, and which tokens they wrote.

    Attributes:
        rewards_N_K: As in ``core.advantages``.
        turn_N_C: As in ``core.advantages``.
    """

    rewards_N_K: Floats
    turn_N_C: Any


def turns_of(episodes: Sequence[Episode], width: int) -> Turns:
    """Read rewards and token spans of the turns of episodes; ``width`` columns C."""
    turn_N_C = np.full((len(episodes), width), NO_TURN)
    for row, episode in enumerate(episodes):
        for index, (start, end) in enumerate(episode.turn_spans):
            turn_N_C[row, start:end] = index
    earned = [[(turn.reward, turn.penalty) for turn in one.turns] for one in episodes]
    return Turns(turn_rewards(earned), turn_N_C)


class CreditTrainer(SnrGRPOTrainer):
    """``SnrGRPOTrainer`` whose advantages may differ from token to token.

    Attributes:
        rules_of_credit: Where rewards go.
        learner: The critic and its optimizer; None without one.
    """

    scale_rewards: Scale

    def __init__(
        self,
        *args: Any,
        credit: CreditRules | None = None,
        critic: Critic | None = None,
        **kwargs: Any,
    ) -> None:
        """Take everything ``SnrGRPOTrainer`` takes, and who gets the credit.

        Args:
            *args: Passed on.
            credit: Where rewards go; one group-relative advantage per row by default.
            critic: Judges the policy's states; needed where ``credit`` has settings for one.
            **kwargs: Passed on.

        Raises:
            UserError: ``bi-level`` without a critic, or a loss without advantages per token.
        """
        super().__init__(*args, **kwargs)
        self.rules_of_credit = credit or CreditRules()
        self.learner: CriticLearner | None = None
        if critic is not None and self.rules_of_credit.settings is not None:
            # Only autocast, where the policy has it: nothing is wrapped for distribution.
            critic.backbone = self.accelerator.prepare_model(critic.backbone, evaluation_mode=True)
            # A GPU's memory holds a micro-batch of the policy; a CPU's is no bound.
            on_cpu = self.accelerator.device.type == "cpu"
            self.learner = CriticLearner(
                critic,
                self.rules_of_credit.settings,
                self.tokens_per_forward,
                self.accelerator.reduce,
                None if on_cpu else self.args.per_device_train_batch_size,
            )
        if self.rules_of_credit.credit == "bi-level" and self.learner is None:
            raise UserError("credit: bi-level needs a critic; use --algorithm ppo")
        if self._per_token and self.loss_type == "vespo":
            raise UserError("loss_type: vespo has no advantages per token; use dapo or grpo")

    @property
    def _per_token(self) -> bool:
        return self.learner is not None or self.rules_of_credit.credit != "episode"

    def turns(self, inputs: list[dict[str, Any]], width: int) -> Turns:
        """Return the turns of this process's rows, from the ``episode`` of each input."""
        return turns_of([row["episode"] for row in inputs], width)

    def on_credit(self, advantages_N: Floats) -> None:
        """Observe the mean advantage of each row's own tokens; subclasses override it.

        Args:
            advantages_N: Of the rows of all processes; NaN where there is none: with a critic, in
                rows that were dropped before it judged them.
        """

    def _filter(self, batch: Batch, inputs: list[dict[str, Any]]) -> Batch:
        if not self._per_token:
            return super()._filter(batch, inputs)
        if len(inputs) % self.num_generations:
            raise UserError("credit: every process must hold whole groups of rollouts")
        own_N_C = loss_mask(batch).cpu().numpy() != 0
        turns = self.turns(inputs, own_N_C.shape[1])
        turn_N_C = np.where(own_N_C, turns.turn_N_C, NO_TURN)
        if ((turn_N_C == NO_TURN) & own_N_C).any():
            raise RuntimeError("a token that is trained on belongs to no turn")
        device = batch["completion_ids"].device
        columns = {
            "turns": torch.as_tensor(turn_N_C, device=device),
            "row": torch.arange(len(inputs), device=device),
        }
        kept = super()._filter(batch | columns, inputs)
        rows = kept.pop("row").cpu().numpy()
        found = Turns(turns.rewards_N_K, turn_N_C)
        if self.learner is not None:
            advantages, means = self._judged(self.learner, kept, found, rows)
        else:
            advantages, means = self._compared(found, rows)
        del kept["turns"]
        kept["advantages"] = torch.as_tensor(advantages).to(kept["advantages"])
        means_N = self._gather(means)
        replace_last(self._logs["advantages"], np.nan_to_num(means_N).tolist())
        self.on_credit(means_N)
        return kept

    def _judged(
        self, learner: CriticLearner, kept: Batch, turns: Turns, rows: Any
    ) -> tuple[Floats, Floats]:
        """Advantages of the kept rows by the critic, and their means over this process's rows."""
        rules = self.rules_of_credit
        judged = learner.judge(kept, turns.rewards_N_K[rows], rules.credit, rules.discounts)
        for name, value in judged.metrics.items():
            self._metrics["train"][name].append(value)
        count = len(turns.turn_N_C)
        advantages = judged.advantages_N_C * self._scale(count)[rows, None]
        means = np.full(count, np.nan)
        means[rows] = _row_means(advantages, turns.turn_N_C[rows])
        return advantages, means

    def _compared(self, turns: Turns, rows: Any) -> tuple[Floats, Floats]:
        """The same from comparisons inside the groups, over the batch of all processes."""
        count = len(turns.rewards_N_K)
        columns = zip_longest(*gather(turns.rewards_N_K.tolist()), fillvalue=math.nan)
        rewards_N_K = np.array(list(columns)).reshape(-1, count * self.accelerator.num_processes).T
        start = self.accelerator.process_index * count
        relative = turn_advantages(rewards_N_K, self.num_generations, self.scale_rewards)
        relative = relative[start : start + count] * self._scale(count, dead=0.0)[:, None]
        advantages = spread_over_tokens(relative, turns.turn_N_C)
        return advantages[rows], _row_means(advantages, turns.turn_N_C)

    def _scale(self, rows: int, dead: float = 1.0) -> Floats:
        """Factor on the advantages of this process's rows: the filter's scaling and weights."""
        decision = self._decision
        start = self.accelerator.process_index * rows
        factor_N = decision.scale_N * np.where(
            np.repeat(decision.stats.dead_P, self.num_generations), dead, 1.0
        )
        return factor_N[start : start + rows]

    def _compute_loss(self, model: nn.Module, inputs: Batch) -> Tensor:
        share = inputs.get("share")
        settings = self.rules_of_credit.settings
        if share is None or settings is None or self.state.global_step >= settings.warmup_steps:
            return super()._compute_loss(model, inputs)
        # Only the critic learns: a loss without a parameter leaves the policy as it is.
        self._window_tokens += share.all_tokens
        return torch.zeros((), device=self.accelerator.device, requires_grad=True)


def _row_means(values_N_C: Floats, turn_N_C: Any) -> Floats:
    """Mean over each row's own tokens; 0 in a row without any."""
    own = turn_N_C != NO_TURN
    means: Floats = np.where(own, values_N_C, 0.0).sum(axis=1) / np.maximum(own.sum(axis=1), 1)
    return means
