"""The trainer of a run: episodes from our engine into TRL, and what it saw kept for the record."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ragen2_cli.core.filters import Selection
from ragen2_cli.core.groups import group_stats
from ragen2_cli.errors import UserError
from ragen2_cli.records import Episode
from ragen2_cli.rollout.engine import Trajectory
from ragen2_cli.rollout.trl_fields import trl_fields
from ragen2_cli.training import checkpoints
from ragen2_cli.training.credit import CreditTrainer
from ragen2_cli.training.player import Player
from ragen2_cli.training.processes import count, gather
from ragen2_cli.training.resampling import Dealt, fill_with_live_groups
from ragen2_cli.training.resume import SafeCheckpointMixin, read_extra
from ragen2_cli.training.seal_loss import SealLoss
from ragen2_cli.training.selection import Floats


@dataclass
class GenerationBatch:
    """The newest batch of rollouts, of all processes, and what the filter made of it.

    ``discarded`` are the rollouts of dead groups that ``filter.strategy`` ``resample`` replaced:
    played and paid for, but not trained on. ``rounds`` is how often it had to draw.
    ``dead_groups`` are those whose returns do not differ, whatever the filter judges.
    """

    step: int
    trajectories: list[Trajectory] = field(default_factory=list)
    rollout_seconds: float = 0.0
    discarded: list[Trajectory] = field(default_factory=list)
    rounds: int = 1
    selection: Selection | None = None
    advantages_N: Floats | None = None
    dead_groups: int = 0
    reward_std: float | None = None
    reward_var: float | None = None
    diagnosis_seconds: float = 0.0

    @property
    def played(self) -> list[Trajectory]:
        """All rollouts of the step, discarded ones last."""
        return [*self.trajectories, *self.discarded]

    @property
    def discarded_groups(self) -> int:
        """Number of groups that were played and replaced."""
        return len({trajectory.episode.group for trajectory in self.discarded})

    def episodes(self) -> list[Episode]:
        """Return the records of all rollouts with advantage and filter decision filled in."""
        if self.selection is None or self.advantages_N is None:
            return [trajectory.episode for trajectory in self.played]
        kept = set(self.selection.kept.tolist())
        return [
            replace(
                trajectory.episode,
                advantage=None if math.isnan(advantage) else float(advantage),
                kept=trajectory.episode.group in kept,
            )
            for trajectory, advantage in zip(self.trajectories, self.advantages_N, strict=True)
        ] + [
            replace(trajectory.episode, advantage=0.0, kept=False) for trajectory in self.discarded
        ]


class PromptSource:
    """TRL's ``rollout_func``: deals the next prompts of the run and plays them.

    The prompts come from a cursor, not from TRL's data loader, whose rows only say how many are
    wanted: a resumed run goes on with exactly the next board. ``observe`` is called with each
    batch once the filter has judged it, before the update.
    """

    def __init__(self, player: Player) -> None:
        """Start at the run's first board."""
        self.player = player
        self.cursor = 0
        self.batch = GenerationBatch(step=0)
        self.observe: Callable[[GenerationBatch], None] = lambda batch: None

    @property
    def wanted_prompts(self) -> int:
        """Prompts of one generation batch, those of all processes together."""
        return self.player.config.rollout.prompts * count()

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play the next ``len(prompts) / group_size`` boards and return TRL's fields."""
        start = time.perf_counter()
        group_size = self.player.config.rollout.group_size
        groups = len(prompts) // group_size
        processes, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        step = trainer.state.global_step + 1
        with trainer.accelerator.autocast():  # so that weights are cast once, not at every token
            if self.player.config.filter.strategy == "resample":
                if processes > 1:
                    raise UserError("filter.strategy: resample works in one process only")
                dealt = self._resample(groups, step)
            else:
                boards, self.cursor = self.player.next_boards(self.cursor, groups * processes)
                played = self.player.play_groups(
                    boards[rank * groups : (rank + 1) * groups], step=step, first=rank * groups
                )
                dealt = Dealt(played, [], 1)
        played = gather(dealt.batch)
        seconds = time.perf_counter() - start
        self.batch = GenerationBatch(
            step, played, seconds, discarded=dealt.discarded, rounds=dealt.rounds
        )
        # vLLM's own probabilities differ a little from the model's; TRL corrects for it.
        drawn = self.player.config.rollout.backend == "vllm"
        return trl_fields(dealt.batch, sampling_logprobs=drawn)

    def _resample(self, groups: int, step: int) -> Dealt:
        """Draw from the same cursor until the batch is live; its first draw is a plain batch."""
        config = self.player.config

        def play(count: int) -> list[list[Trajectory]]:
            boards, self.cursor = self.player.next_boards(self.cursor, count)
            played = self.player.play_groups(boards, step=step)
            size = config.rollout.group_size
            return [played[start : start + size] for start in range(0, len(played), size)]

        return fill_with_live_groups(
            play,
            groups,
            rounds=config.filter.rounds,
            outcome=config.filter.spread_of == "outcome",
        )


def episode_return_reward(
    prompts: list[Any], completions: list[Any], *, episode_return: list[float | None], **_: Any
) -> list[float | None]:
    """TRL reward function: the return of the episode; None where it has no score."""
    return episode_return


def unrounded(inputs: list[dict[str, Any]], rewards_N: Floats, *, of: str) -> list[float]:
    """``outcome`` or ``episode_return`` as it was earned, which TRL rounds; NaN without a score."""
    return [math.nan if row[of] is None else row[of] for row in inputs]


class Carried(Protocol):
    """Something with a history that a resumed run must go on with."""

    def state(self) -> dict[str, Any]:
        """Return the history as JSON values."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state()``."""


class RunTrainer(SafeCheckpointMixin, CreditTrainer):
    """``CreditTrainer`` fed by a ``PromptSource``; its checkpoints carry all histories."""

    def __init__(
        self,
        *args: Any,
        source: PromptSource,
        flush: Callable[[], None],
        carried: Mapping[str, Carried],
        **kwargs: Any,
    ) -> None:
        """Take what ``CreditTrainer`` takes, and the run's own parts.

        Args:
            *args: Passed on to ``CreditTrainer``.
            source: Where episodes come from.
            flush: Brings the run's logs to the disk.
            carried: Histories by name, saved in checkpoints and restored from them.
            **kwargs: Passed on to ``CreditTrainer``.
        """
        self.source = source
        self._flush = flush
        self._carried = carried
        whole = source.player.config
        config, seal = whole.filter, whole.seal
        super().__init__(
            *args,
            reward_funcs=[episode_return_reward],
            rollout_func=source,
            group_filter=config.group_filter(),
            loss_scaling=config.loss_scaling,
            soft_weighting=config.soft,
            spread_rewards=partial(
                unrounded, of="outcome" if config.spread_of == "outcome" else "episode_return"
            ),
            max_empty_batches=whole.stop.empty_steps,
            seal=SealLoss(
                seal.coefficient, layers=seal.layers, dropout=seal.dropout, seed=whole.seed
            ),
            separation=seal.separation,
            **kwargs,
        )

    @property
    def acting_entropy(self) -> float:
        """Coefficient of the entropy term in this step; TRL's adaptive one rests above its target.

        TRL sets it from the entropy of the step before, an attribute without a public name.
        """
        acts = not self.use_adaptive_entropy or self._last_world_entropy <= self.args.entropy_target
        return float(self.entropy_coef) if acts else 0.0

    def on_selection(
        self,
        selection: Selection,
        advantages_N: Floats,
        rewards_N: Floats,
        inputs: list[dict[str, Any]],
    ) -> None:
        """Keep the decision with the rollouts it was made about."""
        batch = self.source.batch
        batch.selection = selection
        batch.advantages_N = advantages_N
        # Discarded groups have a spread of their own where only their outcomes tie.
        discarded = [trajectory.episode.episode_return for trajectory in batch.discarded]
        rewards = np.concatenate([rewards_N, np.array(discarded, dtype=np.float64)])
        stats = group_stats(rewards.reshape(-1, self.num_generations))
        batch.dead_groups = int(stats.dead_P.sum())
        batch.reward_std = float(stats.std_P.mean())
        batch.reward_var = float(stats.var_P.mean())
        start_of_diagnosis = time.perf_counter()
        self.source.observe(batch)
        batch.diagnosis_seconds = time.perf_counter() - start_of_diagnosis

    def on_credit(self, advantages_N: Floats) -> None:
        """Keep what each rollout's tokens got on average."""
        self.source.batch.advantages_N = advantages_N

    def before_commit(self) -> None:
        """Bring the run's logs to the disk before a checkpoint counts."""
        self._flush()

    def load_weights(self, checkpoint: Path) -> None:
        """Take the policy, the critic and the histories of a checkpoint without training on."""
        checkpoints.verify(checkpoint)
        self._load_from_checkpoint(str(checkpoint))
        self.load_extra_state(read_extra(checkpoint))
        self.state.global_step = checkpoints.step_of(checkpoint)

    def extra_state(self) -> dict[str, Any]:
        """Return what a resumed run needs besides weights and generators."""
        return {
            "cursor": self.source.cursor,
            "empty_steps": self.empty_steps,
            "empty_batches": self.empty_batches,
            "carried": {name: part.state() for name, part in self._carried.items()},
            "critic": self.learner.state() if self.learner else None,
        }

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Continue from ``extra_state`` of an earlier run."""
        self.source.cursor = int(state["cursor"])
        self.empty_steps = int(state["empty_steps"])
        self.empty_batches = int(state["empty_batches"])
        for name, part in self._carried.items():
            part.load(state["carried"][name])
        if self.learner is not None:
            self.learner.load(state["critic"])
