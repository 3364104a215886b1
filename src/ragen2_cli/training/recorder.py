"""Callbacks of a run: write each step, evaluate now and then, stop by a rule or on Ctrl-C."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ragen2_cli.core.alarm import EruptionAlarm
from ragen2_cli.records import Episode, Evaluation, Step
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training import processes
from ragen2_cli.training.progress import Progress
from ragen2_cli.training.run_trainer import GenerationBatch, PromptSource
from ragen2_cli.training.stopping import StopRules


class Recorder(TrainerCallback):
    """Writes one ``Step`` per optimizer step and the rollouts behind it.

    Works on TRL's ``on_log``, which comes after the update and before the checkpoint, so that a
    checkpoint of step k always has rows up to k. A run that is to stop does so at the first step
    that ``can_stop`` allows (no rollouts wait for a further update), and saves there; one that is
    asked to stop in its last batch saves after the last step, and leaves out the evaluation of the
    step that it stops at, for the resumed run to make up.
    """

    def __init__(
        self,
        run: RunDirectory,
        source: PromptSource,
        rules: StopRules,
        progress: Progress,
        interrupts: "Interrupts",
        evaluate: Callable[[int], Evaluation],
        every: int,
    ) -> None:
        """Write to ``run``; ``evaluate(step)`` is called every ``every`` steps, 0 never."""
        self._run, self._source, self._rules, self._progress = run, source, rules, progress
        self._interrupts = interrupts
        self.can_stop: Callable[[], bool] = lambda: True
        self._evaluate, self._every = evaluate, every
        self._made_up: Evaluation | None = None
        self._resamples = source.player.config.filter.strategy == "resample"
        self._seen: GenerationBatch | None = None
        self._mark = time.perf_counter()
        self.stop_reason = ""
        self._alarm = EruptionAlarm()
        for row in run.iter_steps():  # of a resumed run
            self._alarm.update(row.entropy)

    def stop_after_step(self, reason: str | None) -> None:
        """Ask the run to stop once the step under way is done; None asks for nothing."""
        self.stop_reason = self.stop_reason or reason or ""

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Start the clock of a step."""
        self._mark = time.perf_counter()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Write the step, its rollouts and, when it is time, an evaluation."""
        if logs is None or "loss" not in logs:
            return
        row = self._row(state.global_step, logs)
        if row.groups:
            self._run.write_rollouts(row.step, self._source.batch.episodes())
            self._seen = self._source.batch
        self._run.append_step(row)
        self._progress.step(row)
        if self._alarm.update(row.entropy):
            self._progress.note(f"step {row.step}: entropy is erupting, now {row.entropy:.3g}")
        self.stop_after_step(self._rules.after_step(row))
        last, boundary = state.global_step >= state.max_steps, self.can_stop()
        # Where the state can be saved, a run that is asked to stop makes the evaluation up later.
        if self._due(row.step) and not last and not (boundary and self._interrupts.agreed()):
            with self._interrupts.cutting_short(boundary) as finished:
                finished.append(self._evaluate(row.step))
            for evaluation in finished:
                self._count(evaluation)
        if boundary or last:  # after the last step no boundary comes any more
            asked = self._interrupts.agreed()
            control.should_training_stop |= asked or (boundary and bool(self.stop_reason))
            control.should_save |= asked or (boundary and control.should_training_stop)

    def owes_evaluation(self, step: int) -> bool:
        """Whether the evaluation of a resumed run's step was left out when the run was stopped."""
        return self._due(step) and not any(row.step == step for row in self._run.read_evaluations())

    def make_up(self, step: int) -> None:
        """Evaluate now what was left out then, with the policy and the rules' history of then."""
        self._made_up = self._evaluate(step)
        self._count(self._made_up)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Let the rules, whose history was restored again, know an evaluation that was made up."""
        if self._made_up is not None:
            self._rules.after_evaluation(self._made_up)

    def _due(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def _count(self, evaluation: Evaluation) -> None:
        """Write an evaluation down, and ask to stop where a rule says so."""
        self.record(evaluation)
        self.stop_after_step(self._rules.after_evaluation(evaluation))

    def record(self, evaluation: Evaluation) -> None:
        """Write and show one evaluation."""
        self._run.append_evaluation(evaluation)
        self._progress.evaluation(evaluation)

    def _row(self, step: int, logs: dict[str, Any]) -> Step:
        # A further update on rollouts that an earlier step has counted has no batch of its own.
        batch = GenerationBatch(step) if self._source.batch is self._seen else self._source.batch
        episodes = [trajectory.episode for trajectory in batch.played]
        scored = [episode for episode in episodes if episode.episode_return is not None]
        turns = sum(len(episode.turns) for episode in episodes)
        truncated = sum(
            trajectory.truncated_turns > 0 or trajectory.episode.status == "context_limit"
            for trajectory in batch.played
        )
        tokens = sum(trajectory.sampled_tokens for trajectory in batch.played)
        seconds = time.perf_counter() - self._mark
        selection, replaced = batch.selection, batch.discarded_groups
        return Step(
            step=step,
            success=fmean(episode.success for episode in scored) if scored else None,
            episode_return=fmean(e.episode_return or 0.0 for e in scored) if scored else None,
            groups=0 if selection is None else len(selection.dead_P) + replaced,
            kept_groups=0 if selection is None else len(selection.kept),
            dead_groups=batch.dead_groups,
            reward_std=batch.reward_std,
            reward_var=batch.reward_var,
            invalid_rate=sum(episode.invalid_turns for episode in episodes) / max(turns, 1),
            truncated_rate=truncated / max(len(episodes), 1),
            entropy=logs.get("entropy"),
            kl=logs.get("kl"),
            loss=logs.get("loss"),
            grad_norm=logs.get("grad_norm"),
            learning_rate=logs["learning_rate"],
            response_length=tokens / max(len(episodes), 1),
            tokens=tokens,
            rollout_seconds=batch.rollout_seconds,
            update_seconds=max(seconds - batch.rollout_seconds - batch.diagnosis_seconds, 0.0),
            step_seconds=seconds,
            extra=_extra(logs) | _resampled(batch, self._resamples) | _measured(episodes),
        )


_EXTRA = (
    "empty_steps",
    "kept_tokens_ratio",
    "filter_target",
    "entropy_coef",
    "clip_ratio/region_mean",
    "value_loss",
    "value_mean",
    "explained_variance",
    "critic_grad_norm",
)
_EXTRA_FAMILIES = ("seal/", "separation/")


def _extra(logs: dict[str, Any]) -> dict[str, float]:
    names = [*_EXTRA, *(name for name in logs if name.startswith(_EXTRA_FAMILIES))]
    return {name: float(logs[name]) for name in names if logs.get(name) is not None}


def _measured(episodes: list[Episode]) -> dict[str, float]:
    """Return the mean of each number an environment measured, over the turns that have it."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for turn in episode.turns:
            for name, value in turn.info.items():
                found.setdefault(f"env/{name}", []).append(value)
    return {name: fmean(values) for name, values in sorted(found.items())}


def _resampled(batch: GenerationBatch, resamples: bool) -> dict[str, float]:
    """What dynamic sampling cost: rounds, and rollouts and tokens beyond one batch."""
    if not resamples:
        return {}
    return {
        "rounds": float(batch.rounds),
        "extra_rollouts": float(len(batch.discarded)),
        "extra_tokens": float(sum(one.sampled_tokens for one in batch.discarded)),
    }


class Interrupts:
    """Ctrl-C and SIGTERM: inside a step finish it, save and stop; elsewhere stop at once.

    A second signal stops at once in any case.
    """

    def __init__(self, progress: Progress) -> None:
        """Say through ``progress`` what happens."""
        self._progress = progress
        self._before: dict[int, Any] = {}
        self._waits = self._cuts = False
        self.asked = False

    def __enter__(self) -> "Interrupts":
        """Take over the signals (where a thread other than the main one runs, leave them)."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @contextmanager
    def finishing_the_step(self) -> Iterator[None]:
        """Inside the block the first signal only sets ``asked``."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    @contextmanager
    def cutting_short(self, allowed: bool) -> Iterator[list[Any]]:
        """Inside the block the first signal also ends the block, and the step goes on behind it.

        Only where that is allowed and there is one process; several end the block together.

        Yields:
            A list for what the block finishes.
        """
        self._cuts = allowed and processes.count() == 1
        try:
            yield []
        except _Cut:
            pass
        finally:
            self._cuts = False

    def agreed(self) -> bool:
        """Whether any process was asked to stop; all of them have to ask at the same point."""
        self.asked = processes.any_of(self.asked)
        return self.asked

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self._waits:
            raise KeyboardInterrupt
        self.asked = True
        self._progress.note("stopping after this step; press Ctrl-C again to stop at once")
        if self._cuts:
            self._cuts = False
            raise _Cut


class _Cut(KeyboardInterrupt):
    """Ends an evaluation that is made up when the run is resumed."""
