"""``CollapseMonitor``: the collapse diagnosis inside any TRL GRPO script.

A ``TrainerCallback`` sees no completions, so the monitor is given the trainer, as TRL's own
callbacks for completions are, and reads the table that ``GRPOTrainer`` keeps of its last generation
batch (what ``log_completions`` prints). It measures right before the optimizer step, at
temperature 1. In the first update on a batch the policy is still the one that sampled it; with
``num_iterations`` above 1, or ``steps_per_generation`` above ``gradient_accumulation_steps``, it
has learned from the batch already in later updates.
"""

import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import (
    ProcessorMixin,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from ragen2_cli.core.alarm import EruptionAlarm
from ragen2_cli.core.batches import PATTERN_ROWS, LogRow, first_words, pattern_text
from ragen2_cli.core.collapse import Marginal
from ragen2_cli.core.degeneration import ungrounded_facts
from ragen2_cli.core.regimes import CollapseWatch, Thresholds
from ragen2_cli.errors import UserError
from ragen2_cli.logs import RawText
from ragen2_cli.logs.grouping import assign_groups, infer_grouping
from ragen2_cli.logs.texts import plain_text, prompt_key, reasoning_of, think_tag, turns_of
from ragen2_cli.training.log_scoring import measure_texts

logger = logging.getLogger(__name__)


class CollapseMonitor(TrainerCallback):
    """Measures, warns early, and stops a run when asked.

    Example::

        trainer = GRPOTrainer(model=..., reward_funcs=..., args=..., train_dataset=...)
        trainer.add_callback(CollapseMonitor(trainer, every=5, stop_on_collapse=True))
        trainer.train()

    Measurements go to ``diagnostics.jsonl`` in the output folder, one JSON object per line with
    the names of ``ragen2_cli.core`` and the regime so far. A resumed run replays the lines up to
    its step and goes on as if it had never stopped; a fresh run starts the file anew. In a
    distributed run the main process measures and all others follow its decision; a model that is
    split over processes is refused.

    Token entropy is watched at every step that the trainer logs, not only where reasoning is
    measured: an eruption (``core.alarm``) is warned of at once, and in the next measurement.

    Attributes:
        watch: The fold over measurements (``core.regimes.CollapseWatch``).
        alarms: Steps at which entropy began to erupt.
        stopped: Why the run was stopped, or None.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        every: int = 5,
        samples: int = 64,
        marginal: Marginal = "token-mean",
        seed: int = 0,
        stop_on_collapse: bool = False,
        limits: Thresholds | None = None,
        path: str | Path | None = None,
    ) -> None:
        """Prepare; nothing is measured before training starts.

        Args:
            trainer: The ``GRPOTrainer`` (or a subclass) that the monitor is added to.
            every: Steps between measurements; step 1 is always measured.
            samples: Reasonings that are cross-scored per measurement.
            marginal: See ``core.collapse``.
            seed: Decides which reasonings are taken.
            stop_on_collapse: Whether a collapse verdict that lasts ends the training; the trainer
                then saves a checkpoint and returns as usual, and ``stopped`` says why.
            limits: Thresholds of verdicts and warnings.
            path: Where measurements go; default ``diagnostics.jsonl`` in the output folder.

        Raises:
            UserError: Not a trainer with a table of completions, or ``every`` below 1.
        """
        if every < 1 or samples < 2:
            raise UserError("CollapseMonitor needs every >= 1 and samples >= 2")
        if "_logs" not in vars(trainer) or "rewards" not in trainer._logs:
            raise UserError(
                f"CollapseMonitor reads the completions that GRPOTrainer keeps, and "
                f"{type(trainer).__name__} keeps none: give it TRL's GRPOTrainer (tested: 1.16)"
            )
        self._trainer = trainer
        self._every = every
        self._options: dict[str, Any] = {"samples": samples, "marginal": marginal, "seed": seed}
        self._stop = stop_on_collapse
        self._path = Path(path) if path is not None else None
        self.watch = CollapseWatch(limits)
        self.stopped: str | None = None
        self.alarms: list[int] = []
        self._alarm = EruptionAlarm()
        self._unsaid: list[str] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse split models; replay the measurements and entropies of a resumed run."""
        if self._trainer.is_fsdp_enabled or (
            self._trainer.is_deepspeed_enabled
            and self._trainer.accelerator.state.deepspeed_plugin.zero_stage == 3
        ):
            raise UserError("CollapseMonitor cannot score a model that is split over processes")
        self._alarm, self._unsaid = EruptionAlarm(), []
        self.alarms = [
            row["step"] for row in state.log_history if self._alarm.update(row.get("entropy"))
        ]
        path = self._file(args)
        self.watch = CollapseWatch(self.watch.limits)
        old = [row for row in _read(path) if row["step"] <= state.global_step]
        for row in old:
            self.watch.update(row)
        if state.is_world_process_zero and path.exists():
            path.write_text("".join(json.dumps(row) + "\n" for row in old), encoding="utf-8")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Warn when the logged token entropy begins to erupt."""
        entropy = (logs or {}).get("entropy")
        if self._alarm.update(entropy):
            self.alarms.append(state.global_step)
            text = f"entropy is erupting at step {state.global_step}, now {entropy:.3g} nats"
            self._unsaid.append(text)
            logger.warning("%s", text)

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        """Measure the batch that this optimizer step learns from."""
        step = state.global_step + 1
        if step != 1 and step % self._every:
            return
        rows: list[dict[str, Any] | None] = [None]
        if state.is_world_process_zero:
            rows = [self._measure(model, processing_class, step)]
        if args.world_size > 1:
            from accelerate.utils import broadcast_object_list

            broadcast_object_list(rows)
        row = self.watch.update(rows[0] or {})
        logged, self._unsaid = self._unsaid, []
        if state.is_world_process_zero:
            _append(self._file(args), row | {"warnings": [*row["warnings"], *logged]})
        for warning in row["warnings"]:
            logger.warning("step %d: %s", step, warning)
        reason = self.watch.stop_reason()
        if reason and self._stop:
            self.stopped = f"step {step}: {reason}"
            logger.warning("stopping after %s", self.stopped)
            control.should_training_stop = control.should_save = True

    def _measure(self, model: Any, tokenizer: Any, step: int) -> dict[str, Any]:
        """Return one measurement with the model as it is now."""
        if isinstance(tokenizer, ProcessorMixin):
            tokenizer = tokenizer.tokenizer
        rows, texts = self._batch(step)
        unwrapped = self._trainer.accelerator.unwrap_model(model)
        row = measure_texts(unwrapped, tokenizer, rows, texts, step=step, **self._options)
        clipped = self._trainer._metrics["train"]["completions/clipped_ratio"]
        row["truncated"] = clipped[-1] if clipped else None
        return row

    def _batch(self, step: int) -> tuple[list[LogRow], list[RawText]]:
        """Return the trainer's last generation batch as rows and texts."""
        table = self._trainer._logs
        prompts, completions = list(table["prompt"]), list(table["completion"])
        weights = self._trainer.reward_weights.tolist()
        columns = [list(values) for values in table["rewards"].values()]
        rewards = [_weighted(values, weights) for values in zip(*columns, strict=True)]
        index: dict[bytes, int] = {}
        keys = [index.setdefault(prompt_key(prompt), len(index)) for prompt in prompts]
        size = self._trainer.num_generations
        groups = assign_groups(keys, infer_grouping([keys], size))
        turns = [turns_of(completion) or [""] for completion in completions]
        told = [plain_text(prompt) for prompt in prompts[:PATTERN_ROWS]]
        rows = list(_rows(step, keys, groups, rewards, turns, told))
        texts = [RawText(p, tuple(t)) for p, t in zip(prompts, turns, strict=True)]
        return rows, texts

    def _file(self, args: TrainingArguments) -> Path:
        return self._path or Path(args.output_dir) / "diagnostics.jsonl"


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of an earlier run; none without a file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines if line]


def _append(path: Path, row: dict[str, Any]) -> None:
    """Append one measurement; what JSON cannot hold becomes null."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(finite, allow_nan=False) + "\n")


def _weighted(values: tuple[float | None, ...], weights: list[float]) -> float:
    """Return the weighted sum of the rewards that are there; NaN when none is, as TRL does."""
    terms = [
        value * weight
        for value, weight in zip(values, weights, strict=True)
        if value is not None and not math.isnan(value)
    ]
    return math.fsum(terms) if terms else math.nan


def _rows(
    step: int,
    keys: list[int],
    groups: list[int],
    rewards: list[float],
    turns: list[list[str]],
    told: list[str],
) -> Iterator[LogRow]:
    answered = any("<answer>" in turn[0] for turn in turns)
    thought = any("</think>" in turn[0] for turn in turns)
    for index, written in enumerate(turns):
        reasoning = reasoning_of(written)
        valid = reasoning.paired if answered else reasoning.closed
        text = pattern_text(reasoning.text) if index < PATTERN_ROWS else None
        yield LogRow(
            step=step,
            group=groups[index],
            prompt=keys[index],
            reward=rewards[index],
            prefix=first_words(reasoning.text),
            reasoning_words=len(reasoning.text.split()),
            valid=valid if answered or thought else None,
            length=float(sum(len(turn.split()) for turn in written)),
            patterns=text,
            tag=None if text is None or not (answered or thought) else think_tag(written[0]),
            ungrounded=None if text is None else ungrounded_facts(text, [told[index]]),
        )
