"""Checkpoints that are complete or not there, without pickle.

A checkpoint is a folder ``step-000050``. It is written as a hidden sibling, flushed to the
disk, renamed, and only then gets its ``manifest.json``: the length and SHA-256 of every file.
Without a manifest that matches, a folder is not a checkpoint: it is skipped, by name. So a kill
at any moment, a full disk or a damaged file costs at most the work since the one before.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ragen2_cli import runs
from ragen2_cli.errors import UserError
from ragen2_cli.records import SCHEMA_VERSION
from ragen2_cli.runs import step_name
from ragen2_cli.runs.atomic import os_error, remove, reported, sync_folder
from ragen2_cli.runs.jsonl import dumps, read_json
from ragen2_cli.training import manifest
from ragen2_cli.training.manifest import MANIFEST, DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

TENSORS = "state.safetensors"
STATE = "state.json"


class Skipped(NamedTuple):
    """A folder that looked like a checkpoint and is not one, and why."""

    name: str
    reason: str


class Listing(NamedTuple):
    """Complete checkpoints, newest first, and those passed over, newest first."""

    complete: list[Path]
    skipped: list[Skipped]


def step_of(checkpoint: Path) -> int:
    """Return the optimizer steps done at a checkpoint, from its folder's name.

    Raises:
        DamagedError: The folder is not named like a checkpoint.
    """
    step = runs.step_of(checkpoint.name)
    if step is None or checkpoint.suffix:
        raise DamagedError(f"{checkpoint} is not a checkpoint folder")
    return step


def not_written(root: Path, step: int, error: Exception) -> UserError:
    """Return the one line about a failed save: why, and which checkpoint still stands."""
    what = f"checkpoint of step {step} not written to {root}"
    last = next((path.name for _, path in _folders(root) if (path / MANIFEST).is_file()), None)
    stands = "there is no earlier checkpoint" if last is None else f"{last} is intact"
    reason = os_error(error, what) if isinstance(error, OSError) else f"{what}: {error}"
    return UserError(f"{reason}; {stands}")


@contextmanager
def _clear_stop(root: Path, step: int) -> "Iterator[None]":
    """Raise what a failing disk raises as ``not_written``."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise not_written(root, step, error) from error


def _folders(root: Path) -> list[tuple[int, Path]]:
    """Return the entries named like checkpoints, newest first."""
    if not root.is_dir():
        return []
    found = [(runs.step_of(entry.name), entry) for entry in root.iterdir()]
    return sorted(
        ((step, path) for step, path in found if step is not None and not path.suffix), reverse=True
    )


def partial_path(root: Path, step: int) -> Path:
    """Return the hidden folder in which a checkpoint is written; the same for every process."""
    return root / f".partial-{step_name(step)}"


def begin(root: Path, step: int) -> Path:
    """Make an empty hidden folder for a checkpoint; left-overs of a killed writer are removed.

    Raises:
        UserError: The folder cannot be written, or the run's folder was deleted meanwhile.
    """
    partial = partial_path(root, step)
    if root.is_symlink():
        raise UserError(f"{root} is a link; checkpoints are not written through links")
    with _clear_stop(root, step):
        root.mkdir(exist_ok=True)
        remove(partial)
        partial.mkdir()
    return partial


def commit(partial: Path, root: Path, step: int) -> Path:
    """Turn a written hidden folder into the checkpoint of ``step``.

    Every file is flushed, the folder renamed, the manifest written last. An earlier folder of the
    same step is replaced.

    Raises:
        UserError: The disk does not allow it; older checkpoints are intact.
        ValueError: The folder holds a link or a kind of file that could hold code.
    """
    final = root / step_name(step)
    stale = root / f".stale-{step_name(step)}"
    with _clear_stop(root, step):
        files = manifest.fingerprints(partial)
        sync_folder(partial)
        remove(stale)
        if final.exists():
            os.replace(final, stale)
        os.replace(partial, final)
        sync_folder(root)
        manifest.write(final, step, files)
        remove(stale)
    return final


def save(
    root: Path,
    step: int,
    *,
    tensors: "Mapping[str, Tensor]",
    state: Mapping[str, Any],
    write_files: Callable[[Path], None] | None = None,
    keep: int | None = None,
) -> Path:
    """Write a complete checkpoint from one process.

    Args:
        root: Folder of the checkpoints, made when missing.
        step: Optimizer steps done.
        tensors: Named tensors, written to ``state.safetensors``.
        state: JSON values, written to ``state.json``.
        write_files: Writes further files (an adapter) into the folder it is given.
        keep: How many complete checkpoints stay; None for all.

    Raises:
        UserError: The disk does not allow it; older checkpoints are intact.
    """
    partial = begin(root, step)
    try:
        with _clear_stop(root, step):
            write_tensors(partial / TENSORS, tensors)
            write_state(partial / STATE, state)
            if write_files is not None:
                write_files(partial)
        checkpoint = commit(partial, root, step)
    except BaseException:
        discard(partial)
        raise
    if keep is not None:
        prune(root, keep)
    return checkpoint


def discard(partial: Path) -> None:
    """Remove a failed attempt where the disk still allows it; the next ``begin`` does otherwise."""
    import shutil

    shutil.rmtree(partial, ignore_errors=True)


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Write tensors to a safetensors file; tensors that share memory are written apart."""
    from safetensors.torch import save_file

    seen: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        value = tensor.detach().to("cpu").contiguous()
        start = value.untyped_storage().data_ptr()
        shared = start in seen or value.untyped_storage().nbytes() != value.nbytes
        plain[name] = value.clone() if shared else value
        seen.add(start)
    save_file(plain, path, metadata={"schema_version": str(SCHEMA_VERSION)})


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a versioned JSON file."""
    path.write_text(dumps({"schema_version": SCHEMA_VERSION, **state}), encoding="ascii")


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Read a safetensors file onto the CPU.

    Raises:
        UserError: Missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with reported(f"cannot read {path}"):
        try:
            return load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path}: not a readable safetensors file ({error})") from None


def load(checkpoint: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Return the tensors and the state of a checkpoint made by ``save``, verified first.

    Raises:
        DamagedError: The folder is not a complete checkpoint.
    """
    verify(checkpoint)
    return read_tensors(checkpoint / TENSORS), read_json(checkpoint / STATE)


def verify(checkpoint: Path) -> Path:
    """Return ``checkpoint`` when it is complete: every file listed, whole, of a safe kind.

    Raises:
        DamagedError: It is not; the message is the reason.
        UserError: Its manifest is of a newer schema version.
    """
    manifest.verify(checkpoint, step_of(checkpoint))
    return checkpoint


def list_complete(root: Path) -> Listing:
    """Return every complete checkpoint under ``root``, newest first, and those skipped.

    Reads all files once, to compare checksums. A missing ``root`` has none.
    """
    complete, skipped = [], []
    for _, path in _folders(root):
        try:
            complete.append(verify(path))
        except UserError as error:
            skipped.append(Skipped(path.name, str(error)))
    return Listing(complete, skipped)


def newest(root: Path) -> tuple[Path | None, list[Skipped]]:
    """Return the newest complete checkpoint, and the newer folders that had to be skipped.

    Reads only as many checkpoints as it takes. None when there is no complete one.
    """
    skipped: list[Skipped] = []
    for _, path in _folders(root):
        try:
            return verify(path), skipped
        except UserError as error:
            skipped.append(Skipped(path.name, str(error)))
    return None, skipped


def prune(root: Path, keep: int) -> list[str]:
    """Remove checkpoints older than the ``keep`` newest ones; returns their names.

    Half-written folders do not count, and go when they are older.

    Raises:
        UserError: ``keep`` is below 1, or a folder cannot be removed.
    """
    if keep < 1:
        raise UserError(f"cannot keep {keep} checkpoints; give 1 or more")
    folders = _folders(root)
    with_manifest = [step for step, path in folders if (path / MANIFEST).is_file()]
    if len(with_manifest) <= keep:
        return []
    oldest = with_manifest[keep - 1]
    old = [path for step, path in folders if step < oldest]
    with reported(f"cannot remove old checkpoints from {root}"):
        for path in old:
            (path / MANIFEST).unlink(missing_ok=True)
            remove(path)
    return [path.name for path in old]
