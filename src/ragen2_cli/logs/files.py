"""Find log files and stream their rows as dicts; a file that cannot be read is one line of text."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen2_cli.errors import UserError

SUFFIXES = (".parquet", ".jsonl", ".csv", ".json")
_BATCH_ROWS = 256
_SCHEMA_ROWS = 50
_NUMBER = re.compile(r"\d+")
_WHOLE_NUMBER = re.compile(r"(?<![^\W_])\d+(?![^\W_])")
_MODES = {"train": "train", "training": "train", "eval": "eval", "val": "eval", "test": "eval"}
_MODES |= {"evaluation": "eval", "validation": "eval"}
TRUTH = {"true": 1.0, "false": 0.0}
"""How a CSV writes booleans, in lower case."""

Row = dict[str, Any]


class BrokenFile(Exception):
    """A file that cannot be read; the message is one line without the file's name."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log file: where it is, the step its name tells (or None), the mode its path tells."""

    path: Path
    step: int | None
    mode: str | None


def find_files(path: Path) -> list[LogFile]:
    """Return the log files at a path in natural order of their names.

    In a folder with a subfolder ``completions`` only that one is searched; what lies in folders
    named ``figures``, where ``ragen2 plot`` writes, is no log beside others. The mode is told by a
    folder below ``path`` or a word of the file's name (train, eval, val...), the step by the last
    number of the name that stands alone (``completions_100_9f3a.json``: 100), else by the last.

    Raises:
        UserError: Nothing there, or nothing that is a log.
    """
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise UserError(f"{path}: not a log; {', '.join(SUFFIXES)} files are read")
        return [_log_file(path, path.parent)]
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder; give a log, a folder of logs or a run")
    if (path / "completions").is_dir():
        path = path / "completions"  # an output folder of TRL, which holds other JSON files too
    found = [f for f in path.rglob("*") if f.is_file() and f.suffix in SUFFIXES]
    if not found:
        raise UserError(f"{path}: no {', '.join(SUFFIXES)} file in this folder")
    logs = [file for file in found if "figures" not in file.relative_to(path).parts[:-1]]
    return [_log_file(file, path) for file in sorted(logs or found, key=_natural)]


def _natural(path: Path) -> list[tuple[int, int | str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


def _log_file(path: Path, root: Path) -> LogFile:
    numbers = _WHOLE_NUMBER.findall(path.stem) or _NUMBER.findall(path.stem)
    mode = mode_of(" ".join(path.relative_to(root).with_suffix("").parts))
    return LogFile(path, int(numbers[-1]) if numbers else None, mode)


def mode_of(text: str) -> str | None:
    """Return ``train`` or ``eval`` by the last word of a text that tells it, or None."""
    words = re.split(r"[^a-z]+", text.lower())
    return next((_MODES[word] for word in reversed(words) if word in _MODES), None)


def columns(file: LogFile) -> dict[str, str]:
    """Return the columns and their kinds: float, int, bool, text, other or null.

    Parquet tells them itself; elsewhere the first rows do, and as many more as a column is empty.

    Raises:
        BrokenFile: It cannot be read.
    """
    if file.path.suffix == ".parquet":
        with _parquet(file.path) as parquet:
            return {field.name: _arrow_kind(field.type) for field in parquet.schema_arrow}
    kinds: dict[str, str] = {}
    read = 0
    try:
        for row in rows(file):
            if read >= _SCHEMA_ROWS and "null" not in kinds.values():
                break
            read += 1
            merge_kinds(kinds, {name: _kind(value) for name, value in row.items()})
    except BrokenFile:
        if read < _SCHEMA_ROWS:
            raise  # later, what was read is used, and the full pass reports it
    return kinds


def merge_kinds(kinds: dict[str, str], more: dict[str, str]) -> None:
    """Add the kinds of more rows: a column may be empty in some, and whole numbers in others."""
    for name, kind in more.items():
        if kinds.get(name, "null") in ("null", "int") and kind != "null":
            kinds[name] = kind
        kinds.setdefault(name, kind)


def _arrow_kind(kind: Any) -> str:
    import pyarrow.types as types

    if types.is_null(kind):
        return "null"
    if types.is_floating(kind) or types.is_decimal(kind):
        return "float"
    if types.is_integer(kind):
        return "int"
    if types.is_boolean(kind):
        return "bool"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else "other"


def _kind(value: Any) -> str:
    if value is None or value == "":
        return "null"
    if isinstance(value, bool) or (isinstance(value, str) and value.lower() in TRUTH):
        return "bool"
    if isinstance(value, int | float):
        return "int" if isinstance(value, int) else "float"
    if not isinstance(value, str):
        return "other"
    try:
        float(value)
    except ValueError:
        return "text"
    return "float" if not value.lstrip("+-").isdigit() else "int"


def rows(file: LogFile, wanted: set[str] | None = None) -> Iterator[Row]:
    """Yield the rows of a file, only the wanted columns where the format allows it.

    Raises:
        BrokenFile: It cannot be read, at once or at the row where reading ends.
    """
    reader = {".parquet": _parquet_rows, ".jsonl": _jsonl_rows, ".csv": _csv_rows}
    try:
        yield from reader.get(file.path.suffix, _json_rows)(file.path, wanted)
    except OSError as error:
        raise BrokenFile(f"cannot be read ({error.strerror})") from error


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a parquet file; what its bytes make pyarrow raise is a broken file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    what = "not a whole parquet file"
    try:
        with pq.ParquetFile(path) as parquet:
            what = "damaged parquet data"
            yield parquet
    # ValueError: text that is no UTF-8, times that Python has no value for
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise BrokenFile(f"{what} ({_first_line(error)})") from error


def _parquet_rows(path: Path, wanted: set[str] | None) -> Iterator[Row]:
    with _parquet(path) as parquet:
        names = parquet.schema_arrow.names
        chosen = names if wanted is None else [name for name in names if name in wanted]
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=chosen):
            yield from batch.to_pylist()


def _jsonl_rows(path: Path, wanted: set[str] | None) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith("\n"):
                    return  # the writer is in the middle of this line
                raise BrokenFile(f"line {number} is not JSON") from error
            if not isinstance(row, dict):
                raise BrokenFile(f"line {number} is not a JSON object")
            yield row


def _json_rows(path: Path, wanted: set[str] | None) -> Iterator[Row]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig", errors="surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise BrokenFile("not JSON") from error
    if isinstance(content, dict) and {"columns", "data"} <= content.keys():
        names, lines = content["columns"], content["data"]
        if not (_lists(names, str) and _lists(lines, list)):
            raise BrokenFile("columns and data of this table are no list of names and list of rows")
        content = [dict(zip(names, line, strict=False)) for line in lines]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise BrokenFile("neither a table (columns and data) nor a list of objects")
    yield from content


def _lists(value: Any, of: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, of) for item in value)


def _csv_rows(path: Path, wanted: set[str] | None) -> Iterator[Row]:
    import csv

    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as handle:
        try:
            for row in csv.DictReader(handle):
                row.pop(None, None)  # type: ignore[call-overload]
                yield row
        except csv.Error as error:
            raise BrokenFile(f"not CSV ({_first_line(error)})") from error


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
