"""Files that are either whole or not there: write beside the target, sync, rename.

Readers never see a half-written file under its real name, whatever kills the writer.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ragen2_cli.errors import UserError

TEMPORARY = re.compile(r"\.(?:[^/]*\.tmp|(?:partial|stale)-[^/]*)")
_ADVICE = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the file size limit",
    errno.EACCES: "choose a folder you may write to",
    errno.EPERM: "choose a folder you may write to",
    errno.EROFS: "choose a folder on a writable disk",
    errno.ENOENT: "the folder was removed meanwhile",
    errno.ENOTDIR: "part of the path is a file",
}


def os_error(error: OSError, doing: str) -> UserError:
    """Turn an operating system error into one line: what failed, why, and what would help."""
    advice = _ADVICE.get(error.errno or 0)
    return UserError(f"{doing}: {error.strerror or error}" + (f" ({advice})" if advice else ""))


@contextmanager
def reported(doing: str) -> Iterator[None]:
    """Raise any OSError of the block as a UserError that starts with ``doing``."""
    try:
        yield
    except OSError as error:
        raise os_error(error, doing) from error


def sync_folder(folder: Path) -> None:
    """Make the entries of ``folder`` (creations, renames) survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of one file survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_sibling(path: Path) -> Path:
    """Return the hidden name under which ``path`` is written before it is renamed."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path; at the end of the block it becomes ``path`` in one rename.

    When the block raises, the temporary file is removed and ``path`` stays as it was.

    Args:
        path: The file to create or replace.
        sync: Whether to flush content and folder to the disk (off for files that a later
            ``sync_file`` covers).
    """
    temporary = temporary_sibling(path)
    try:
        yield temporary
        if sync:
            sync_file(temporary)
        os.replace(temporary, path)
        if sync:
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically and durably.

    Raises:
        UserError: The disk or the folder does not allow it; ``path`` is unchanged.
    """
    with reported(f"cannot write {path}"), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder; links are never followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
