"""The trainer of a run: episodes from our engine into TRL, and what it saw kept for the record."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ragen2_cli.core.filters import GroupFilter, Selection
from ragen2_cli.core.groups import group_stats
from ragen2_cli.records import Episode
from ragen2_cli.rollout.engine import Trajectory
from ragen2_cli.rollout.trl_fields import trl_fields
from ragen2_cli.training import checkpoints
from ragen2_cli.training.player import Player
from ragen2_cli.training.resume import SafeCheckpointMixin
from ragen2_cli.training.selection import Floats
from ragen2_cli.training.snr_trainer import SnrGRPOTrainer


@dataclass
class GenerationBatch:
    """The newest batch of rollouts and what the filter made of it."""

    step: int
    trajectories: list[Trajectory] = field(default_factory=list)
    rollout_seconds: float = 0.0
    selection: Selection | None = None
    advantages_N: Floats | None = None
    reward_std: float | None = None
    reward_var: float | None = None

    def episodes(self) -> list[Episode]:
        """Return the records with advantage and filter decision filled in."""
        if self.selection is None or self.advantages_N is None:
            return [trajectory.episode for trajectory in self.trajectories]
        kept = set(self.selection.kept.tolist())
        return [
            replace(trajectory.episode, advantage=float(advantage), kept=group in kept)
            for trajectory, advantage in zip(self.trajectories, self.advantages_N, strict=True)
            for group in (trajectory.episode.group,)
        ]


class PromptSource:
    """TRL's ``rollout_func``: deals the next prompts of the run and plays them.

    The prompts come from a cursor, not from TRL's data loader, whose rows only say how many are
    wanted: a resumed run goes on with exactly the next board.
    """

    def __init__(self, player: Player) -> None:
        """Start at the run's first board."""
        self.player = player
        self.cursor = 0
        self.batch = GenerationBatch(step=0)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play the next ``len(prompts) / group_size`` boards and return TRL's fields."""
        start = time.perf_counter()
        group_size = self.player.config.rollout.group_size
        groups = len(prompts) // group_size
        processes, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        boards, self.cursor = self.player.next_boards(self.cursor, groups * processes)
        step = trainer.state.global_step + 1
        played = self.player.play_groups(
            boards[rank * groups : (rank + 1) * groups], step=step, first=rank * groups
        )
        self.batch = GenerationBatch(step, played, time.perf_counter() - start)
        return trl_fields(played)


def episode_return_reward(
    prompts: list[Any], completions: list[Any], *, episode_return: list[float | None], **_: Any
) -> list[float | None]:
    """TRL reward function: the return of the episode; None where it has no score."""
    return episode_return


def outcomes(inputs: list[dict[str, Any]], rewards_N: Floats) -> list[float]:
    """Spread without the format penalty (``--spread-of outcome``); NaN where there is no score."""
    return [math.nan if row["outcome"] is None else row["outcome"] for row in inputs]


class RunTrainer(SafeCheckpointMixin, SnrGRPOTrainer):
    """``SnrGRPOTrainer`` fed by a ``PromptSource``; its checkpoints carry the cursor."""

    def __init__(
        self, *args: Any, source: PromptSource, flush: Callable[[], None], **kwargs: Any
    ) -> None:
        """Take what ``SnrGRPOTrainer`` takes, where episodes come from and how logs are flushed."""
        self.source = source
        self._flush = flush
        config = source.player.config.filter
        super().__init__(
            *args,
            reward_funcs=[episode_return_reward],
            rollout_func=source,
            group_filter=group_filter(source.player.config.filter),
            loss_scaling=config.loss_scaling,
            soft_weighting=config.soft,
            spread_rewards=outcomes if config.spread_of == "outcome" else None,
            max_empty_batches=source.player.config.stop.empty_steps,
            **kwargs,
        )

    def on_selection(
        self,
        selection: Selection,
        advantages_N: Floats,
        rewards_N: Floats,
        inputs: list[dict[str, Any]],
    ) -> None:
        """Keep the decision with the rollouts it was made about."""
        batch = self.source.batch
        start = self.accelerator.process_index * len(inputs)
        batch.selection = selection
        batch.advantages_N = np.asarray(advantages_N[start : start + len(inputs)])
        stats = group_stats(rewards_N.reshape(-1, self.num_generations))
        batch.reward_std, batch.reward_var = float(stats.std_P.mean()), float(stats.var_P.mean())

    def before_commit(self) -> None:
        """Bring the run's logs to the disk before a checkpoint counts."""
        self._flush()

    def load_weights(self, checkpoint: Path) -> None:
        """Take the policy of a checkpoint without training on."""
        checkpoints.verify(checkpoint)
        self._load_from_checkpoint(str(checkpoint))
        self.state.global_step = checkpoints.step_of(checkpoint)

    def extra_state(self) -> dict[str, Any]:
        """Return what a resumed run needs besides weights and generators."""
        return {"cursor": self.source.cursor, "empty_steps": self.empty_steps}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Continue from ``extra_state`` of an earlier run."""
        self.source.cursor = int(state["cursor"])
        self.empty_steps = int(state["empty_steps"])


def group_filter(config: Any) -> GroupFilter:
    """Build the filter that a config's ``[filter]`` describes."""
    return GroupFilter(
        strategy=config.strategy,
        value=config.value,
        mass=config.mass,
        score=config.score,
        keep=config.keep,
        include_zero=config.include_zero,
        eps=config.eps,
        eps_rel=config.eps_rel,
    )
