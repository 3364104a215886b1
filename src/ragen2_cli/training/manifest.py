"""A checkpoint's list of files: names, lengths and SHA-256, checked before anything is read."""

import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import Any

from ragen2_cli.errors import UserError
from ragen2_cli.records import SCHEMA_VERSION
from ragen2_cli.runs.atomic import replacing, sync_file, sync_folder
from ragen2_cli.runs.jsonl import dumps, read_json

MANIFEST = "manifest.json"
SUFFIXES = frozenset({".safetensors", ".json", ".jinja", ".txt", ".md"})
"""Kinds of file that a checkpoint may hold: none of them can hold code."""
_HEX = re.compile(r"[0-9a-f]{64}")


class DamagedError(UserError):
    """A folder that is not a complete checkpoint; the message is the reason."""


def fingerprints(folder: Path) -> dict[str, dict[str, Any]]:
    """Flush every file below ``folder`` to the disk; return lengths and checksums by name.

    Raises:
        ValueError: A link, or a kind of file that could hold code.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or (path.is_file() and path.suffix not in SUFFIXES):
            raise ValueError(f"{path.name} must not be in a checkpoint")
        if path.is_file():
            sync_file(path)
            found[path.relative_to(folder).as_posix()] = _fingerprint(path)
        else:
            sync_folder(path)
    return found


def _fingerprint(path: Path) -> dict[str, Any]:
    """Return length and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def write(folder: Path, step: int, files: dict[str, dict[str, Any]]) -> None:
    """Write the manifest atomically and durably, which makes the folder a checkpoint."""
    content = {"schema_version": SCHEMA_VERSION, "step": step, "files": files}
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(dumps(content, indent=1) + "\n", encoding="ascii")


def verify(folder: Path, step: int) -> None:
    """Check that ``folder`` holds exactly the files of its manifest, unchanged.

    Raises:
        DamagedError: It does not; the message is the reason.
        UserError: The manifest is of a newer schema version, or no JSON.
    """
    if not folder.is_dir() or folder.is_symlink():
        raise DamagedError("there is no such folder")
    if not (folder / MANIFEST).is_file():
        raise DamagedError("half-written: it has no manifest")
    content = read_json(folder / MANIFEST)
    files = content.get("files")
    if content.get("step") != step or not isinstance(files, dict):
        raise DamagedError("its manifest is damaged or of another step")
    try:
        entries = [entry for entry in folder.rglob("*") if entry.is_symlink() or entry.is_file()]
    except OSError as error:
        raise DamagedError(f"unreadable: {error.strerror}") from None
    present = {entry.relative_to(folder).as_posix() for entry in entries} - {MANIFEST}
    if extra := sorted(present - files.keys()):
        raise DamagedError(f"{extra[0][:80]!r} is not in its manifest")
    for name, expected in files.items():
        _verify_file(folder, name, expected)


def _verify_file(folder: Path, name: str, expected: Any) -> None:
    """Check one file against its manifest entry."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or pure.suffix not in SUFFIXES:
        raise DamagedError(f"its manifest lists {name[:80]!r}, which no checkpoint has")
    file = folder / pure
    if not isinstance(expected, dict) or not _HEX.fullmatch(str(expected.get("sha256"))):
        raise DamagedError("its manifest is damaged")
    try:
        if not file.is_file():
            raise DamagedError(f"{name!r} is missing")
        size = file.stat().st_size
        if size != expected.get("bytes"):
            raise DamagedError(f"{name!r} has {size} bytes instead of {expected.get('bytes')}")
        if _fingerprint(file)["sha256"] != expected["sha256"]:
            raise DamagedError(f"{name!r} is damaged: its checksum differs")
    except OSError as error:
        raise DamagedError(f"{name!r} is unreadable: {error.strerror}") from None
