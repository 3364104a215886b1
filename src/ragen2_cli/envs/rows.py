"""Rows of a data set from a file or a hub name, with errors that say which field of which row.

Used by the environments that can read real data. Heavy readers are imported where they are used.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ragen2_cli.errors import UserError, did_you_mean

Row = Mapping[str, Any]
SUFFIXES = (".jsonl", ".json", ".parquet")


def read_rows(source: str, *, split: str = "train") -> Iterator[tuple[int, Row]]:
    """Yield (row number from 0, row) from a file, a folder of parquet files or a hub data set.

    Args:
        source: Path to ``.jsonl``, ``.json`` (a list of objects) or ``.parquet``; a folder of
            parquet files; or the name of a data set on the hub (``owner/name``), optionally
            ``owner/name:config``.
        split: Split of a hub data set; files ignore it.

    Raises:
        UserError: When nothing is there, the suffix is unknown or a row is no object.
    """
    path = Path(source)
    if path.is_dir():
        files = sorted(path.glob("*.parquet"))
        if not files:
            raise UserError(f"{source}: the folder holds no .parquet file; give a file or a folder")
        return _number(row for file in files for row in _parquet(file))
    if path.is_file():
        if path.suffix == ".jsonl":
            return _number(_jsonl(path))
        if path.suffix == ".json":
            return _number(_json_list(path))
        if path.suffix == ".parquet":
            return _number(_parquet(path))
        raise UserError(
            f"{source}: unknown kind of file {path.suffix!r}; use {', '.join(SUFFIXES)}"
        )
    if path.suffix in SUFFIXES or source.startswith((".", "/", "~")) or "/" not in source:
        raise UserError(f"{source}: no such file; give a path, or a hub data set as owner/name")
    return _number(_hub(source, split))


def field(row: Row, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return ``row[name]``, checked to be of a kind.

    Args:
        row: The row.
        name: Field to read.
        kind: Type or types it must have.
        where: File and row number for the message, for example ``data.jsonl row 7``.

    Raises:
        UserError: When the field is absent or of another kind.
    """
    if name not in row:
        have = ", ".join(sorted(map(str, row))[:12])
        hint = did_you_mean(name, map(str, row))
        raise UserError(f"{where}: field {name!r} is missing{hint}; the row has: {have}")
    value = row[name]
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(k.__name__ for k in kinds)
        raise UserError(f"{where}: field {name!r} is {type(value).__name__}, expected {wanted}")
    return value


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a file of UTF-8 text.

    Raises:
        UserError: When the file turns out to be none while it is read.
    """
    try:
        with path.open(encoding="utf-8") as file:
            yield file
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start} of a block)") from error


def _number(rows: Iterator[Row]) -> Iterator[tuple[int, Row]]:
    return enumerate(rows)


def _jsonl(path: Path) -> Iterator[Row]:
    with open_text(path) as lines:
        for number, line in enumerate(lines):
            if line.strip():
                yield _object(_parse(line, f"{path} row {number}"), f"{path} row {number}")


def _json_list(path: Path) -> Iterator[Row]:
    with open_text(path) as file:
        rows = _parse(file.read(), str(path))
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a list of objects, found {type(rows).__name__}")
    for number, row in enumerate(rows):
        yield _object(row, f"{path} row {number}")


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error.msg} at character {error.pos})") from error


def _object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected an object, found {type(row).__name__}")
    return row


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: not a readable parquet file ({reason})") from error


def _hub(source: str, split: str) -> Iterator[Row]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    name, _, config = source.partition(":")
    try:
        rows = load_dataset(name, config or None, split=split)
    except (DatasetNotFoundError, ConnectionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{source}: the hub data set cannot be loaded ({reason})") from error
    yield from rows
