"""One run's folder: create, append, resume, read.

A folder is a run when its config.json is in place, and finished when its summary.json is; both
are written atomically, so a killed run never looks finished.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ragen2_cli.errors import UserError
from ragen2_cli.records import SCHEMA_VERSION, Episode, Evaluation, Step
from ragen2_cli.runs import claim, jsonl, kinds, provenance, rollouts
from ragen2_cli.runs.atomic import TEMPORARY, remove, reported, sync_file, sync_folder, write_text
from ragen2_cli.runs.claim import CONFIG

if TYPE_CHECKING:
    from ragen2_cli.config import Config

SUMMARY = "summary.json"
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
DIAGNOSTICS = "diagnostics.jsonl"
LOGS = (METRICS, EVALUATIONS, DIAGNOSTICS)
CRITIC = "critic.safetensors"
BY_STEP = ("rollouts", "gradients", "checkpoints", "probes")
WRITTEN = (CONFIG, SUMMARY, *LOGS, CRITIC, *BY_STEP, "adapter", "merged", "figures")
_STEP_NAME = re.compile(r"step-(\d{6,9})(-fresh.*)?(\.parquet|\.json)?")


def step_name(step: int) -> str:
    """Return the name that files and folders of a step carry, such as ``step-000050``."""
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """Return the step of such a name; None for any other name."""
    found = _STEP_NAME.fullmatch(name)
    return int(found[1]) if found else None


@dataclass
class RunDirectory:
    """A run's folder. Made by ``create`` (to write) or ``open`` (to read).

    Attributes:
        path: The folder.
    """

    path: Path
    _lock: int | None = field(default=None, repr=False)
    _unsynced: set[Path] = field(default_factory=set, repr=False)

    # ---- making and finding ----

    @classmethod
    def create(
        cls,
        path: Path | None,
        config: dict[str, Any],
        *,
        label: str = "run",
        root: Path | str = "runs",
        force: bool = False,
        resume: bool = False,
    ) -> Self:
        """Make a run's folder and write its config.json, or take up an existing run.

        Args:
            path: The folder; None for a new readable name, ``<root>/<label>-<yyyymmdd>-<n>``.
            config: The resolved config as JSON values.
            label: What the automatic name starts with, such as ``frozenlake-top-p``.
            root: Where automatic names live.
            force: Replace what an earlier run and the commands about it wrote there, for good with
                the first rollouts. Other files are left alone.
            resume: Continue the run in ``path``; its config.json stays as it is.

        Raises:
            UserError: The folder exists and neither flag is given; it exists and is no run; it
                cannot be written; nothing to resume; another process is writing to it.
        """
        if resume and force:
            raise UserError("--resume and --force exclude each other; give one of them")
        if resume:
            if path is None:
                raise UserError("--resume needs the run's folder; give it with --out")
            run = cls.open(path)
            run._lock = claim.lock(run.path)
            return run
        if path is None:
            run = cls(claim.new_named(Path(root), label))
        else:
            run = cls(Path(path))
            claim.folder(run.path, force=force)
        run._lock = claim.lock(run.path)
        if force:
            claim.set_aside(run.path, WRITTEN)
        content = {"schema_version": SCHEMA_VERSION, **provenance.describe(config)}
        write_text(run.path / CONFIG, jsonl.dumps(content, indent=2) + "\n")
        return run

    def discard(self) -> None:
        """Remove all that the run wrote, and its folder when nothing else is in it; without
        rollouts of its own, bring back the run that it was to replace.

        Raises:
            UserError: The disk does not allow it.
        """
        with reported(f"cannot remove {self.path}"):
            claim.put_back(self.path, (*WRITTEN, claim.LOCK))
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def close(self) -> None:
        """Let another process write to the folder; reading stays possible."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an existing run for reading.

        Raises:
            UserError: No such folder, a sweep, no config.json, or one of a newer schema version.
        """
        run = cls(Path(path))
        kinds.check_run(run.path)
        run.read_config()
        return run

    @classmethod
    def newest(cls, root: Path | str = "runs") -> Self:
        """Return the run under ``root`` that was created last (ties: last by name).

        Raises:
            UserError: There is none.
        """
        found = [(entry.stat().st_mtime_ns, str(entry)) for entry in Path(root).glob(f"*/{CONFIG}")]
        if not found:
            raise UserError(f"no run under {Path(root)}/; give the run's folder")
        return cls.open(Path(max(found)[1]).parent)

    # ---- writing ----

    def append_step(self, step: Step) -> None:
        """Append one line to metrics.jsonl.

        Raises:
            UserError: The disk does not allow it; the file ends with its last whole line.
        """
        jsonl.append(self.path / METRICS, dataclasses.asdict(step))

    def append_evaluation(self, evaluation: Evaluation) -> None:
        """Append one line to evaluations.jsonl; raises as ``append_step``."""
        jsonl.append(self.path / EVALUATIONS, dataclasses.asdict(evaluation))

    def append_diagnostics(self, row: dict[str, Any]) -> None:
        """Append one line to diagnostics.jsonl; ``row`` names its ``step``.

        Raises:
            ValueError: No integer ``step`` in the row.
            UserError: As ``append_step``.
        """
        if not isinstance(row.get("step"), int):
            raise ValueError("a diagnostics row needs an integer 'step'")
        jsonl.append(self.path / DIAGNOSTICS, row)

    def write_rollouts(self, step: int, episodes: Iterable[Episode]) -> Path:
        """Write the episodes of one step; returns the file. Raises as ``rollouts.write``."""
        path = self.rollouts_path(step)
        self.subfolder("rollouts")
        rollouts.write(path, episodes)
        self._unsynced.add(path)
        claim.forget_earlier(self.path)
        return path

    def write_json(self, name: str, content: dict[str, Any]) -> Path:
        """Write a versioned JSON file of the run, such as ``gradients/step-000051.json``.

        Raises:
            UserError: The disk does not allow it; an earlier file is unchanged.
        """
        path = self.path / name
        if path.parent != self.path:
            self.subfolder(path.parent.name)
        body = {"schema_version": SCHEMA_VERSION, **content}
        write_text(path, jsonl.dumps(body, indent=2) + "\n")
        return path

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json, which marks the run as finished; raises as ``write_json``."""
        self.write_json(SUMMARY, summary)

    def subfolder(self, name: str) -> Path:
        """Make and return a folder of the run.

        Raises:
            UserError: It cannot be made, or is a link, which could lead outside the run.
        """
        folder = self.path / name
        with reported(f"cannot create {folder}"):
            folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise UserError(f"{folder} is a link; runs do not write through links")
        return folder

    def sync(self) -> None:
        """Flush all rows and rollouts to the disk; called before a checkpoint is completed."""
        with reported(f"cannot write {self.path}"):
            for path in [*(self.path / name for name in LOGS), *sorted(self._unsynced)]:
                if path.exists():
                    sync_file(path)
            if self._unsynced:
                sync_folder(self.path / "rollouts")
            sync_folder(self.path)
        self._unsynced.clear()

    def truncate_after(self, step: int) -> dict[str, int]:
        """Forget everything later than ``step``, so that redoing it cannot leave a step twice.

        Rows of later steps and torn last lines leave the logs; rollouts, gradients, checkpoints
        and probes of later steps and summary.json are removed. What belongs to ``step`` stays.

        Returns:
            Rows or files removed, by log or folder name; only entries that are not zero.

        Raises:
            UserError: A log holds a damaged row, or the disk does not allow the change.
        """
        removed = {name: jsonl.truncate_after(self.path / name, step) for name in LOGS}
        with reported(f"cannot remove later steps from {self.path}"):
            remove(self.path / SUMMARY)
            for name in BY_STEP:
                folder = self.path / name
                if not folder.is_dir() or folder.is_symlink():
                    continue
                later = [
                    entry
                    for entry in folder.iterdir()
                    if TEMPORARY.fullmatch(entry.name) or (step_of(entry.name) or 0) > step
                ]
                for entry in later:
                    remove(entry)
                removed[name] = sum(step_of(entry.name) is not None for entry in later)
        return {name: count for name, count in removed.items() if count}

    # ---- reading ----

    @property
    def finished(self) -> bool:
        """Whether the run came to its end and wrote its summary."""
        return (self.path / SUMMARY).is_file()

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints, which may not exist yet."""
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        """Folder of the final adapter, which may not exist yet."""
        return self.path / "adapter"

    def read_config(self) -> dict[str, Any]:
        """Return config.json: ``config`` and what the run was made with.

        Raises:
            UserError: Damaged, or of a newer schema version.
        """
        content = jsonl.read_json(self.path / CONFIG)
        if not isinstance(content.get("config"), dict):
            raise UserError(f"{self.path / CONFIG}: no 'config' table; not a run of ragen2")
        return content

    def resolved_config(self) -> "Config":
        """Return the config that the run was made with; raises as ``read_config``, naming keys."""
        from ragen2_cli.config.load import build_config

        return build_config(self.read_config()["config"], where=f"{self.path / CONFIG}: ")

    def read_summary(self) -> dict[str, Any] | None:
        """Return summary.json, or None while the run is not finished."""
        return jsonl.read_json(self.path / SUMMARY) if self.finished else None

    def iter_steps(self) -> Iterator[Step]:
        """Yield the rows of metrics.jsonl one at a time; a torn last line is left out."""
        return self._records(METRICS, Step)

    def read_steps(self) -> list[Step]:
        """Return all rows of metrics.jsonl.

        Raises:
            UserError: A damaged row (file, line and field are named) or a newer schema version.
        """
        return list(self.iter_steps())

    def read_evaluations(self) -> list[Evaluation]:
        """Return all rows of evaluations.jsonl; raises as ``read_steps``."""
        return list(self._records(EVALUATIONS, Evaluation))

    def read_diagnostics(self) -> list[dict[str, Any]]:
        """Return all rows of diagnostics.jsonl under today's names; raises as ``read_steps``."""
        return jsonl.measurements(self.path / DIAGNOSTICS)

    def _records(self, name: str, cls: type) -> Iterator[Any]:
        path = self.path / name
        for number, row in enumerate(jsonl.read(path), start=1):
            yield jsonl.record(cls, row, f"{path}: line {number}")

    def torn_lines(self) -> dict[str, int]:
        """Return, by file name, the half-written last lines that readers leave out (0 or 1)."""
        return {name: int(jsonl.is_torn(self.path / name)) for name in LOGS}

    def rollouts_path(self, step: int) -> Path:
        """Return where the episodes of a step are."""
        return self.path / "rollouts" / f"{step_name(step)}.parquet"

    def rollout_steps(self) -> list[int]:
        """Return the steps whose episodes are there, ascending."""
        folder = self.path / "rollouts"
        if not folder.is_dir():
            return []
        found = (step_of(entry.name) for entry in folder.glob("step-*.parquet"))
        return sorted(step for step in found if step is not None)

    def iter_rollouts(self, step: int | None = None) -> Iterator[Episode]:
        """Yield the episodes of a step (None: of every step) in constant memory.

        Raises:
            UserError: No such step (those that exist are named), or a file that is not ours.
        """
        steps = self.rollout_steps()
        if step is not None:
            if step not in steps:
                known = f"steps {steps[0]} to {steps[-1]} are there" if steps else "there are none"
                raise UserError(f"{self.path}: no rollouts of step {step}; {known}")
            steps = [step]
        for each in steps:
            yield from rollouts.read(self.rollouts_path(each))

    def read_rollouts(self, step: int) -> list[Episode]:
        """Return the episodes of one step; raises as ``iter_rollouts``."""
        return list(self.iter_rollouts(step))
