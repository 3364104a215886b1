"""Exact resume for TRL's GRPO trainer, with our checkpoints instead of pickled ones.

``SafeCheckpointMixin`` goes before the trainer in the bases. The trainer's own saving runs as
ever, into the hidden folder of a checkpoint; only the parts that would pickle are written by us.
``trainer.train(resume_from_checkpoint=folder)`` then continues as if it had never stopped.
"""

import logging
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from trl import GRPOConfig, GRPOTrainer

from ragen2_cli.errors import UserError
from ragen2_cli.runs.jsonl import read_json
from ragen2_cli.training import checkpoints
from ragen2_cli.training.state_codec import generators, pack, restore_generators, unpack

logger = logging.getLogger(__name__)


class SafeCheckpointMixin(GRPOTrainer):
    """Complete, pickle-free checkpoints under ``<output_dir>/checkpoints`` and exact resume.

    Saves when the trainer's arguments say so (``save_strategy``, ``save_steps``), but only at
    generation boundaries: rollouts that still wait for their update are not part of a
    checkpoint, so a save that falls between is made at the next boundary. A callback may ask for
    one after the last step too, when there is no next boundary; a run that is given more steps
    goes on from there with new rollouts. ``save_total_limit``
    is how many checkpoints stay. With several processes every one keeps its own generators, and
    a resumed run needs as many.

    Subclasses add what they carry from step to step with ``extra_state`` and
    ``load_extra_state``.
    """

    args: GRPOConfig
    optimizer: Any
    lr_scheduler: Any
    _partial: Path | None = None
    _checkpoint_due = False
    _epochs_done = 0

    # ---- for subclasses ----

    @property
    def checkpoint_root(self) -> Path:
        """Folder of the checkpoints."""
        return Path(str(self.args.output_dir)) / "checkpoints"

    def extra_state(self) -> dict[str, Any]:
        """Return what else must survive, such as a data cursor: anything that ``pack`` takes."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what ``extra_state`` returned, before the first resumed step."""

    def before_commit(self) -> None:
        """Called once the files of a checkpoint are written, before it counts as complete.

        The place to flush logs that must not be behind the checkpoint.
        """

    # ---- saving ----

    @property
    def at_generation_boundary(self) -> bool:
        """Whether every generated batch has been fully trained on."""
        return self._step % self._micro_steps == 0

    @property
    def _micro_steps(self) -> int:
        return (self.args.steps_per_generation or 1) * self.num_iterations

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.control.should_save or self._checkpoint_due:
            self._checkpoint_due = not self.at_generation_boundary
            self.control.should_save = self.at_generation_boundary
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if not (self.at_generation_boundary or self.state.global_step >= self.state.max_steps):
            raise RuntimeError("checkpoints are only possible at generation boundaries")
        root, step = self.checkpoint_root, self.state.global_step
        writes = self.args.should_save
        self._partial = checkpoints.partial_path(root, step)
        try:
            if writes:
                checkpoints.begin(root, step)
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if writes:
                self._save_rest(self._partial / f"checkpoint-{step}")
                self.before_commit()
                checkpoints.commit(self._partial / f"checkpoint-{step}", root, step)
        except (OSError, SafetensorError) as error:
            raise checkpoints.not_written(root, step, error) from error
        finally:
            if writes:
                checkpoints.discard(self._partial)
            self._partial = None
        if writes and self.args.save_total_limit:
            checkpoints.prune(root, self.args.save_total_limit)
        self.accelerator.wait_for_everyone()

    def _save_rest(self, folder: Path) -> None:
        rest = {
            "processes": self.args.world_size,
            "micro_steps": self._step,
            "epochs": int(self.state.epoch or 0),
            "extra": self.extra_state(),
        }
        _write(folder, "trainer", rest)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._partial) if self._partial else super()._get_output_dir(trial)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the card as TRL does, except beside checkpoints."""
        if self._partial is None:
            super().create_model_card(*args, **kwargs)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        if self._partial is None:
            super()._save(output_dir, state_dict)
            return
        # The parent would add the tokenizer, which does not change, and pickled arguments.
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        model.save_pretrained(
            output_dir, state_dict=state_dict, is_main_process=self.args.should_save
        )

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise UserError(
                "checkpoints of sharded optimizers (FSDP, DeepSpeed) are not supported; use DDP or"
                " turn checkpoints off"
            )
        if self.args.should_save:
            state = {
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.lr_scheduler.state_dict(),
            }
            _write(Path(output_dir), "optimizer", state)

    def _save_scaler(self, output_dir: str) -> None:
        if self.accelerator.scaler is not None and self.args.should_save:
            _write(Path(output_dir), "scaler", self.accelerator.scaler.state_dict())

    def _save_rng_state(self, output_dir: str) -> None:
        _write(Path(output_dir), f"generators-{self.args.process_index}", generators())

    # ---- resuming ----

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train; from a checkpoint folder, or with True from the newest complete one.

        Raises:
            UserError: The checkpoint is damaged, there is none, it was written by another number
                of processes, or its steps are all that were asked for.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(self._newest())
        self._epochs_done = 0
        if resume_from_checkpoint:
            folder = Path(resume_from_checkpoint)
            try:
                checkpoints.verify(folder)
            except checkpoints.DamagedError as error:
                raise UserError(f"cannot resume from {folder}: {error}") from None
            self._check_resume(folder)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _newest(self) -> Path:
        found, skipped = checkpoints.newest(self.checkpoint_root)
        for name, reason in skipped:
            logger.warning("skipping checkpoint %s: %s", name, reason)
        if found is None:
            raise UserError(f"no complete checkpoint under {self.checkpoint_root}")
        return found

    def _check_resume(self, folder: Path) -> None:
        step = checkpoints.step_of(folder)
        if 0 < self.args.max_steps <= step:
            raise UserError(
                f"{folder} is at step {step} and {self.args.max_steps} were asked for; nothing is"
                " left to do, ask for more steps"
            )
        if self.args.ignore_data_skip:
            raise UserError("exact resume needs ignore_data_skip=False")
        rest = _read(folder, "trainer")
        self._epochs_done, processes = rest["epochs"], rest["processes"]
        if processes != self.args.world_size:
            raise UserError(
                f"{folder} was written by {processes} processes, this run has"
                f" {self.args.world_size}; start as many"
            )

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        # Every epoch draws an order from one generator: draw those of the epochs gone by.
        if sampler.shuffle:
            for _ in range(self._epochs_done):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        state = _read(folder, "optimizer")
        self.optimizer.load_state_dict(state["optimizer"])
        self.lr_scheduler.load_state_dict(state["scheduler"])
        rest = _read(folder, "trainer")
        batches = math.ceil(rest["micro_steps"] / self._micro_steps)  # rollouts were not saved
        self._step = batches * self._micro_steps
        self.load_extra_state(rest["extra"])

    def _load_scaler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(_read(Path(checkpoint), "scaler"))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            name = f"generators-{self.args.process_index}"
            restore_generators(_read(Path(checkpoint), name))


def read_extra(folder: Path) -> dict[str, Any]:
    """Return the ``extra_state`` that a checkpoint was written with.

    Raises:
        UserError: A file is missing or damaged.
    """
    extra: dict[str, Any] = _read(folder, "trainer")["extra"]
    return extra


def _write(folder: Path, name: str, value: Any) -> None:
    """Write ``name.json`` and ``name.safetensors``."""
    folder.mkdir(parents=True, exist_ok=True)
    packed, tensors = pack(value)
    checkpoints.write_state(folder / f"{name}.json", {"value": packed})
    checkpoints.write_tensors(folder / f"{name}.safetensors", tensors)


def _read(folder: Path, name: str) -> Any:
    """Undo ``_write``."""
    tensors = checkpoints.read_tensors(folder / f"{name}.safetensors")
    return unpack(read_json(folder / f"{name}.json")["value"], tensors)
