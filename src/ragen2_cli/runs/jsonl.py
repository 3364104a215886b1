"""JSON lines: appended in one write call each, read with bounds, cut back on resume."""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ragen2_cli.errors import UserError
from ragen2_cli.records import SCHEMA_VERSION
from ragen2_cli.runs.atomic import replacing, reported

MAX_LINE_BYTES = 64 * 1024 * 1024
_VERSION_KEY = "schema_version"


def finite(value: Any) -> Any:
    """Return a copy in which every NaN and infinity is None, which JSON can hold.

    Args:
        value: Nested dicts, lists and tuples of JSON scalars; named tuples become dicts.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return finite(value._asdict())
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON in ASCII: NaN and infinities become null, lone surrogates survive escaped."""
    return json.dumps(finite(value), allow_nan=False, indent=indent)


def loads(text: str | bytes, where: str) -> Any:
    """Parse JSON from an untrusted place; NaN and Infinity are read as None.

    Raises:
        UserError: Not JSON, nested too deeply, or a number of absurd length.
    """
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except RecursionError:
        raise UserError(f"{where}: JSON nested too deeply; this is not a file of ragen2") from None
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON ({error})") from None


def check_version(row: Any, where: str) -> dict[str, Any]:
    """Return ``row`` when it is an object of a schema version this release can read.

    Raises:
        UserError: Not an object, no version, or a newer version (both numbers are named).
    """
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, found {type(row).__name__}")
    version = row.get(_VERSION_KEY)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UserError(f"{where}: no valid '{_VERSION_KEY}'; this is not a file of ragen2")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{where}: written with schema version {version}, this release reads up to"
            f" {SCHEMA_VERSION}; install a newer ragen2"
        )
    return row


def read_json(path: Path) -> dict[str, Any]:
    """Read one versioned JSON file.

    Raises:
        UserError: Missing, too large, not JSON, or of a newer schema version.
    """
    with reported(f"cannot read {path}"):
        if path.stat().st_size > MAX_LINE_BYTES:
            raise UserError(f"{path}: larger than {MAX_LINE_BYTES} bytes; not a file of ragen2")
        content = path.read_bytes()
    return check_version(loads(content, str(path)), str(path))


def append(path: Path, row: dict[str, Any]) -> None:
    """Append one object as one line, with one write call, so that a kill tears at most this line.

    A torn last line left by a killed writer is removed first.

    Raises:
        UserError: The disk is full or the file cannot be written; a torn line is taken back.
    """
    line = (dumps({_VERSION_KEY: SCHEMA_VERSION, **row}) + "\n").encode("ascii")
    with reported(f"cannot append to {path}"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                size = _end_of_last_whole_line(descriptor, size)
                os.ftruncate(descriptor, size)
            try:
                written = os.write(descriptor, line)
                while written < len(line):
                    written += os.write(descriptor, line[written:])
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def _end_of_last_whole_line(descriptor: int, size: int) -> int:
    """Return the offset just after the last newline; 0 when there is none."""
    block = 65536
    while size > 0:
        start = max(0, size - block)
        found = os.pread(descriptor, size - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        size = start
    return 0


def is_torn(path: Path) -> bool:
    """Whether the file ends in a line without its newline, as a killed writer leaves it."""
    if not path.exists():
        return False
    with reported(f"cannot read {path}"), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each whole line with its row; see ``read``."""
    if not path.exists():
        return
    with reported(f"cannot read {path}"), path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise UserError(f"{path}: line {number} is longer than {MAX_LINE_BYTES} bytes")
            if not line.endswith(b"\n"):
                return
            where = f"{path}: line {number}"
            row = check_version(loads(line, where), where)
            if not isinstance(row.get("step", 0), int):
                raise UserError(f"{where}: 'step' is not an integer")
            yield line, row


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, one at a time; a torn last line is left out (see ``is_torn``).

    A missing file has no rows.

    Raises:
        UserError: A whole line that is not a JSON object of a readable version, or too long.
    """
    for _, row in _lines(path):
        yield row


def truncate_after(path: Path, step: int) -> int:
    """Remove the rows of steps later than ``step`` and a torn last line, in one rename.

    Rows without a step count as step 0.

    Returns:
        How many whole rows were removed. The file is untouched when nothing is to be removed.
    """
    removed = sum(row.get("step", 0) > step for row in read(path))
    if removed == 0 and not is_torn(path):
        return 0
    with (
        reported(f"cannot rewrite {path}"),
        replacing(path) as temporary,
        temporary.open("wb") as out,
    ):
        out.writelines(line for line, row in _lines(path) if row.get("step", 0) <= step)
    return removed


@functools.cache
def _adapter(cls: type) -> Any:
    """Return the validator of a record class, built once."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


@functools.cache
def _required_floats(cls: type) -> frozenset[str]:
    """Return the float fields of a record that may not be None: there null stands for NaN."""
    return frozenset(f.name for f in dataclasses.fields(cls) if f.type in (float, "float"))


def measurements(path: Path) -> list[dict[str, Any]]:
    """Return rows whose ``step`` is a whole number; raises as ``read``, and for any other row.

    Rows of older releases call ``dead_ratio`` by the name of a setting, ``dead_share``.
    """
    rows = list(read(path))
    for number, row in enumerate(rows, start=1):
        if not isinstance(row.get("step"), int):
            raise UserError(f"{path}: line {number}: no 'step' with a whole number")
        if "dead_share" in row:
            row["dead_ratio"] = row.pop("dead_share")
    return rows


def record(cls: type, row: dict[str, Any], where: str) -> Any:
    """Build a record of ``cls`` from a row; unknown keys are ignored, types are checked.

    Null in a field that must be a number is read as NaN, the way it was written.

    Raises:
        UserError: A missing field or a value of the wrong type, with file, line and field.
    """
    from pydantic import ValidationError

    floats = _required_floats(cls)
    filled = {
        key: math.nan
        if value is None and key in floats
        else {k: math.nan if v is None else v for k, v in value.items()}
        if isinstance(value, dict)
        else value
        for key, value in row.items()
    }
    try:
        return _adapter(cls).validate_python(filled)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = first["msg"].removeprefix("Value error, ")
        field = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{where}: field '{field}': {reason}") from None
