"""``start`` and ``resume``: one training run from a config to a finished run directory."""

import json
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PrinterCallback

from ragen2_cli.config import Config
from ragen2_cli.config.load import build_config
from ragen2_cli.core.regimes import CollapseWatch
from ragen2_cli.errors import UserError
from ragen2_cli.records import Evaluation
from ragen2_cli.rollout.policies import VllmPolicy
from ragen2_cli.runs import RunDirectory, step_name
from ragen2_cli.training import checkpoints, processes
from ragen2_cli.training.critic import Critic
from ragen2_cli.training.diagnostics import measure as measure_reasoning
from ragen2_cli.training.evaluation import measure, measure_at_entropy
from ragen2_cli.training.gradient_runs import analyze_batch, with_coefficients
from ragen2_cli.training.grpo_config import grpo_config
from ragen2_cli.training.interrupted import (
    newest_checkpoint,
    remember_steps,
    saying_how_to_go_on,
)
from ragen2_cli.training.models import LoadedPolicy, load_policy
from ragen2_cli.training.player import build_player
from ragen2_cli.training.ppo import credit_rules, critic_for, save_critic
from ragen2_cli.training.preflight import check
from ragen2_cli.training.progress import Progress, progress_for
from ragen2_cli.training.recorder import Interrupts, Recorder
from ragen2_cli.training.run_trainer import GenerationBatch, PromptSource, RunTrainer
from ragen2_cli.training.setup import prepare
from ragen2_cli.training.stopping import StopRules
from ragen2_cli.training.summary import summarize
from ragen2_cli.training.weights import autocasts, save_policy, stored_dtype, trainable


def start(
    config: Config, out: Path | None = None, *, force: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Train from the beginning.

    Args:
        config: The resolved config.
        out: The run's folder; None for a new readable name under ``runs/``.
        force: Replace an earlier run in ``out``.
        quiet: Show no progress.

    Returns:
        The summary, as written to ``summary.json``, with the run's path under ``run``.

    Raises:
        UserError: Wrong config or model, a folder that exists or cannot be written.
        KeyboardInterrupt: After Ctrl-C, when the state is saved.
    """
    check(config, out, force=force)
    processes.join(config)
    loaded = _load(config)
    label = f"{Path(config.env.name.partition(':')[0]).stem}-{config.filter.strategy}"
    values = config.model_dump(mode="json")
    run = processes.one_run(lambda: RunDirectory.create(out, values, label=label, force=force))
    with (
        saying_how_to_go_on(run.path),
        closing(run),
        closing(_progress(config, quiet)) as progress,
    ):
        try:
            return _Run(config, run, loaded, progress).train(None)
        except Exception:
            if not run.rollout_steps():  # failed before its first step: nothing to go on from
                run.discard()
            raise


def resume(out: Path, *, steps: int | None = None, quiet: bool = False) -> dict[str, Any]:
    """Go on from the newest complete checkpoint, exactly as an uninterrupted run would.

    With another number of steps the run is not one that had that number from the start, unless its
    learning rate is constant: a linear or cosine schedule is stretched over all steps from here on.

    Args:
        out: The run's folder.
        steps: Train up to this many steps; the run's config has this number from now on.
        quiet: Show no progress.

    Raises:
        UserError: No such run, no complete checkpoint, or nothing left to do.
        KeyboardInterrupt: After Ctrl-C; its text says what is saved and how to go on.
    """
    processes.join(RunDirectory.open(out).resolved_config())
    run = processes.one_run(lambda: RunDirectory.create(out, {}, resume=True))
    with saying_how_to_go_on(run.path, steps), closing(run):
        config = run.resolved_config()
        if steps is not None:
            config = build_config(config.model_dump() | {"steps": steps})
        with closing(_progress(config, quiet)) as progress:
            checkpoint = processes.on_first(lambda: newest_checkpoint(run, config, progress))
            processes.on_first(lambda: remember_steps(run, config.steps))
            loaded = _load(config)
            run.truncate_after(-1 if checkpoint is None else checkpoints.step_of(checkpoint))
            return _Run(config, run, loaded, progress).train(checkpoint)


def _progress(config: Config, quiet: bool) -> Progress:
    return progress_for(config.steps, quiet=quiet or not processes.is_first())


def _load(config: Config) -> LoadedPolicy:
    prepare(config)
    model = config.model
    return load_policy(
        model.name,
        device=model.device,
        dtype=stored_dtype(config),
        adapter=model.adapter,
        env=config.env.name,
    )


class _Run:
    """The parts of one run, wired together."""

    def __init__(
        self, config: Config, run: RunDirectory, loaded: LoadedPolicy, progress: Progress
    ) -> None:
        self.config, self.run, self.progress = config, run, progress
        for note in loaded.notes:
            self.progress.note(note)
        critic = critic_for(config, loaded)  # before the policy has an adapter
        model = trainable(config, loaded)
        self.player = build_player(config, model, loaded, fused=not autocasts(config))
        self.boards = self.player.heldout_boards(config.evaluation.episodes)
        self.source = PromptSource(self.player)
        self.rules = StopRules(config.stop)
        self.watch = CollapseWatch()
        self.trainer = self._trainer(model, loaded, critic)
        self.source.observe = self._diagnose
        if config.rollout.backend == "vllm":
            if self.trainer.accelerator.num_processes > 1:
                raise UserError("rollout.backend: vllm works in one process only")
            self.player.policy = VllmPolicy(self.trainer.vllm_generation)

    def _trainer(self, model: Any, loaded: LoadedPolicy, critic: Critic | None) -> RunTrainer:
        config = self.config
        self.interrupts = Interrupts(self.progress)
        self.recorder = Recorder(
            self.run,
            self.source,
            self.rules,
            self.progress,
            self.interrupts,
            self._evaluate,
            config.evaluation.every if self.boards else 0,
        )
        from datasets import Dataset

        trainer = RunTrainer(
            model=model,
            args=grpo_config(
                config,
                self.run.path,
                max_completion_length=self.player.max_completion_length,
            ),
            # The data loader only counts: prompts come from the source's cursor.
            train_dataset=Dataset.from_dict({"prompt": [""] * self.source.wanted_prompts}),
            processing_class=loaded.tokenizer,
            source=self.source,
            flush=self.run.sync,
            carried={"rules": self.rules, "watch": self.watch},
            callbacks=[self.recorder],
            credit=credit_rules(config),
            critic=critic,
        )
        trainer.remove_callback(PrinterCallback)
        self.recorder.can_stop = lambda: trainer.at_generation_boundary
        return trainer

    def _evaluate(self, step: int, temperature: float | None = None) -> Evaluation:
        if self.config.rollout.backend == "vllm":
            self.trainer.vllm_generation.sync_weights()
        chosen = self.config.evaluation.temperature if temperature is None else temperature
        with self.trainer.accelerator.autocast():  # the trainer wraps the model only in train()
            return measure(self.player, self.boards, step=step, temperature=chosen)

    def _diagnose(self, batch: GenerationBatch) -> None:
        """Measure the reasoning of a batch with the policy that wrote it, when it is time."""
        wanted = self.config.diagnostics
        due = wanted.gradients_every and processes.is_first()
        if due and batch.step % wanted.gradients_every == 0:
            self._probe_gradients(batch)
        if not wanted.every or (batch.step != 1 and batch.step % wanted.every):
            return
        measured = processes.on_first(
            lambda: measure_reasoning(
                self.trainer.model,
                self.player.template.tokenizer,
                [trajectory.episode for trajectory in batch.trajectories],
                step=batch.step,
                sampling=wanted.sampling,
                samples=wanted.samples,
                marginal=wanted.marginal,
                seed=self.config.seed,
            )
        )
        row = self.watch.update(measured)
        self.run.append_diagnostics(row)
        for warning in row["warnings"]:
            self.progress.note(f"step {batch.step}: {warning}")
        if self.config.stop.on_collapse:
            self.recorder.stop_after_step(self.watch.stop_reason())

    def _probe_gradients(self, batch: GenerationBatch) -> None:
        """Write the gradient norms of a batch by reward spread; the policy stays as it is."""
        content = analyze_batch(
            self.trainer.accelerator.unwrap_model(self.trainer.model),
            with_coefficients(self.config, entropy=self.trainer.acting_entropy),
            [trajectory.episode for trajectory in batch.trajectories],
            step=batch.step,
            source="training batch",
            max_completion_length=self.player.max_completion_length,
            critic=self.trainer.learner.critic if self.trainer.learner else None,
        )
        self.run.write_json(f"gradients/{step_name(batch.step)}.json", content)

    def _ends(self, step: int) -> dict[str, Any]:
        """Measure sampled (and greedy) success at the start or the end."""
        found: dict[str, Any] = {}
        if not self.boards:
            return found
        # Measured already when a stop rule ended the run here, or a resumed run was killed here.
        rows = processes.on_first(self.run.read_evaluations)
        measured: dict[str, Evaluation] = {row.decoding: row for row in rows if row.step == step}
        wanted = {"sampled": self.config.evaluation.temperature}
        if self.config.evaluation.greedy:
            wanted["greedy"] = 0.0
        for decoding, temperature in wanted.items():
            row = measured.get(decoding)
            if row is None:
                row = self._evaluate(step, temperature)
                self.recorder.record(row)
            found[decoding] = asdict(row)
        return found

    def train(self, checkpoint: Path | None) -> dict[str, Any]:
        """Evaluate, train, evaluate, save the adapter, write the summary.

        Raises:
            KeyboardInterrupt: After Ctrl-C or SIGTERM.
        """
        start = time.perf_counter()
        with self.interrupts:
            before = self._ends(0) if checkpoint is None else self._taken_up(checkpoint)
            with self.interrupts.finishing_the_step():
                self._optimize(checkpoint)
            if self.interrupts.asked:
                raise KeyboardInterrupt
            after = self._ends(self.trainer.state.global_step)
            matched = self._matched(after)
            self._save_adapter()
        ends = {
            "steps": self.trainer.state.global_step,
            "before": before,
            "after": after,
            "start_at_matched_entropy": matched,
            "empty_steps": self.trainer.empty_steps,
            "stopped": self.trainer.stop_reason or self.recorder.stop_reason or None,
            "session_seconds": time.perf_counter() - start,
            "session_from_step": 0 if checkpoint is None else checkpoints.step_of(checkpoint),
        }
        return processes.on_first(lambda: self._summary(ends))

    def _summary(self, ends: dict[str, Any]) -> dict[str, Any]:
        summary = summarize(self.run, ends)
        self.run.write_summary(summary)
        found: dict[str, Any] = json.loads(json.dumps(summary))
        return found

    def _taken_up(self, checkpoint: Path) -> dict[str, Any]:
        """Return the evaluations of the start; make up the one that an interrupted step owes."""
        step = checkpoints.step_of(checkpoint)
        done = step >= self.config.steps  # killed between the last step and the summary
        owes = not done and processes.on_first(lambda: self.recorder.owes_evaluation(step))
        if done or owes:
            self.trainer.load_weights(checkpoint)
        if owes:
            self.recorder.make_up(step)
        rows = processes.on_first(self.run.read_evaluations)
        return {row.decoding: asdict(row) for row in rows if row.step == 0}

    def _optimize(self, checkpoint: Path | None) -> None:
        if checkpoint is None:
            self.trainer.train()
        elif checkpoints.step_of(checkpoint) < self.config.steps and not self.recorder.stop_reason:
            self.trainer.train(resume_from_checkpoint=str(checkpoint))

    def _matched(self, after: dict[str, Any]) -> dict[str, Any] | None:
        """Measure the start policy at the temperature of the final policy's entropy."""
        sampled = after.get("sampled")
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        # vLLM holds adapter and model merged: the start policy is not there any more.
        fresh_adapter = (
            not self.config.model.full
            and self.config.model.adapter is None
            and self.config.rollout.backend == "transformers"
        )
        if not (self.config.evaluation.matched_entropy and sampled and fresh_adapter):
            return None
        with model.disable_adapter():
            return asdict(measure_at_entropy(self.player, self.boards, sampled["entropy"]))

    def _save_adapter(self) -> None:
        if not processes.is_first():
            return
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        tokenizer = self.player.template.tokenizer
        save_policy(model, tokenizer, self.run.adapter, full=self.config.model.full)
        if self.trainer.learner is not None:
            save_critic(self.trainer.learner.critic, self.run.path)
