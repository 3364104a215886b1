"""Who may write where: new names, existing folders, one writer at a time."""

import errno
import fcntl
import itertools
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ragen2_cli.errors import UserError
from ragen2_cli.runs.atomic import TEMPORARY, remove, reported

CONFIG = "config.json"
LOCK = ".lock"
EARLIER = ".stale-run"
"""Holds the run that is being replaced, until the first step of its successor is written."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def new_named(root: Path, label: str) -> Path:
    """Make the first free ``<root>/<label>-<yyyymmdd>-<n>``; two processes never get the same.

    Raises:
        UserError: The folder cannot be made.
    """
    safe = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "run"
    today = datetime.now(UTC).strftime("%Y%m%d")
    with reported(f"cannot create a run folder under {root}"):
        root.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = root / f"{safe}-{today}-{number}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    raise AssertionError("unreachable: the count never ends")


def folder(path: Path, *, force: bool) -> None:
    """Make the folder, or accept an existing one that is empty, or holds a run under ``force``.

    Raises:
        UserError: It holds a run and ``force`` is off, it holds something else, it is a file, or
            it cannot be made.
    """
    with reported(f"cannot create the run folder {path}"):
        try:
            path.mkdir(parents=True)
            return
        except FileExistsError:
            if not path.is_dir():
                raise UserError(f"{path} is a file; give a folder with --out") from None
        names = [entry.name for entry in os.scandir(path)]
    if all(name == LOCK or TEMPORARY.fullmatch(name) for name in names):
        return
    if CONFIG not in names:
        raise UserError(f"{path} exists and is not a run; give another folder with --out")
    if not force:
        raise UserError(
            f"{path} already holds a run; continue it with --resume, replace it with --force, or"
            " give another folder with --out"
        )


def lock(path: Path) -> int:
    """Hold the folder for writing until the returned descriptor is closed or the process ends.

    File systems without locks are written to without one.

    Raises:
        UserError: Another process holds it, or the folder cannot be written.
    """
    with reported(f"cannot write in the run folder {path}"):
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return descriptor
            os.close(descriptor)
            if error.errno == errno.EWOULDBLOCK:
                raise UserError(
                    f"another process is writing to {path}; wait for it or stop it first"
                ) from None
            raise
    return descriptor


def set_aside(path: Path, names: Sequence[str]) -> None:
    """Move what an earlier run wrote under these names to ``EARLIER``.

    A run that is there already stays: its successor was killed before its first step, and left
    nothing to keep.

    Raises:
        UserError: The disk does not allow it.
    """
    earlier = path / EARLIER
    with reported(f"cannot clear {path}"):
        if not earlier.is_dir():
            earlier.mkdir()
            for name in names:
                if os.path.lexists(path / name):
                    os.rename(path / name, earlier / name)
        for name in names:
            remove(path / name)


def forget_earlier(path: Path) -> None:
    """Remove the run in ``EARLIER``, if there is one.

    Raises:
        UserError: The disk does not allow it.
    """
    with reported(f"cannot clear {path}"):
        remove(path / EARLIER)


def put_back(path: Path, names: Sequence[str]) -> None:
    """Remove what is there under these names; move the run in ``EARLIER``, if any, back."""
    for name in names:
        remove(path / name)
    earlier = path / EARLIER
    if earlier.is_dir():
        for entry in sorted(earlier.iterdir()):
            os.rename(entry, path / entry.name)
        earlier.rmdir()
