"""What a parquet file really holds, read from its own headers before a native reader sees it.

The native reader trusts the sizes in a file: a small file can ask for gigabytes, and some
damaged footers end the whole process. So the footer and every page header are parsed here, in
plain Python, and everything they promise is checked against bounds and against the file.

Both are structs of Thrift's compact protocol, see parquet-format's parquet.thrift; a struct is
read as ``{field id: value}``.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ragen2_cli.errors import UserError
from ragen2_cli.runs.atomic import reported

MAGIC = b"PAR1"
MAX_FOOTER_BYTES = 8 * 1024 * 1024
MAX_HEADER_BYTES = 64 * 1024
MAX_DEPTH = 24


class Bounds(NamedTuple):
    """The most that a file may hold."""

    rows: int = 4_000_000
    column_bytes: int = 1 << 30
    column_values: int = 1 << 28
    page_bytes: int = 1 << 28


class _Reader:
    """Reads compact-protocol values from a buffer; anything odd raises ValueError."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise ValueError("a header ends too early")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number is too long")

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise ValueError("a text is longer than its header")
        self.at += count

    def value(self, kind: int, depth: int) -> Any:
        """Read one value of a compact type; texts and doubles are skipped and read as None."""
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self.byte()
        if kind in (4, 5, 6):
            return self.integer()
        if kind == 7:
            return self.skip(8)
        if kind == 8:
            return self.skip(self.varint())
        if kind in (9, 10):
            return self.sequence(depth + 1)
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"unknown type {kind} in a header")

    def sequence(self, depth: int) -> list[Any]:
        head = self.byte()
        count = head >> 4 if head >> 4 < 15 else self.varint()
        if count > len(self.data) - self.at:
            raise ValueError("a list is longer than its header")
        kind = head & 0x0F
        if kind in (1, 2):
            return [self.byte() == 1 for _ in range(count)]
        return [self.value(kind, depth) for _ in range(count)]

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise ValueError("a header is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.integer()
            if number in fields:
                raise ValueError("a header names a field twice")
            fields[number] = self.value(head & 0x0F, depth)
        return fields


def _integer(fields: dict[int, Any], number: int, what: str, most: int) -> int:
    """Return a non-negative integer field within its bound."""
    value = fields.get(number)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{what} is {value}, at most {most} allowed")
    return value


def _structs(fields: dict[int, Any], number: int, what: str) -> list[dict[int, Any]]:
    """Return a field that is a list of structs."""
    value = fields.get(number)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{what} is missing")
    return value


def _footer(file: BinaryIO, size: int) -> dict[int, Any]:
    """Return the file's metadata struct."""
    if size < 12:
        raise ValueError("too short")
    file.seek(size - 8)
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC:
        raise ValueError("no parquet signature, or encrypted")
    if length > min(MAX_FOOTER_BYTES, size - 12):
        raise ValueError(f"its footer claims {length} bytes")
    file.seek(size - 8 - length)
    return _Reader(file.read(length)).struct()


def _chunks(group: dict[int, Any], columns: int) -> Iterator[dict[int, Any]]:
    """Yield the column metadata of a row group."""
    chunks = _structs(group, 1, "a row group's columns")
    if len(chunks) != columns:
        raise ValueError(f"a row group has {len(chunks)} columns, its schema {columns}")
    for chunk in chunks:
        if 1 in chunk:
            raise ValueError("a column lies in another file")
        if 8 in chunk or 9 in chunk or not isinstance(chunk.get(3), dict):
            raise ValueError("a column is encrypted or has no description")
        yield chunk[3]


def _walk(file: BinaryIO, size: int, chunk: dict[int, Any], bounds: Bounds) -> None:
    """Follow the pages of a column chunk and check that they stay within file and bounds."""
    _integer(chunk, 6, "a column's size", bounds.column_bytes)
    values = _integer(chunk, 5, "a column's number of values", bounds.column_values)
    length = _integer(chunk, 7, "a column's stored size", size)
    start = _integer(chunk, 9, "a column's position", size)
    if isinstance(chunk.get(11), int) and 0 < chunk[11] < start:
        start = chunk[11]
    at, end, held, seen = start, start + length, 0, 0
    if end > size - 8:
        raise ValueError("a column lies outside of the file")
    while at < end:
        file.seek(at)
        reader = _Reader(file.read(min(MAX_HEADER_BYTES, end - at)))
        page = reader.struct()
        held += _integer(page, 2, "a page's size", bounds.page_bytes)
        at += reader.at + _integer(page, 3, "a page's stored size", end - at)
        for number in (5, 8):
            if isinstance(page.get(number), dict):
                seen += _integer(page[number], 1, "a page's number of values", values)
        if held > bounds.column_bytes or seen > values:
            raise ValueError(f"a column holds more than it declares, or than {bounds.column_bytes}")
    if seen != values:
        raise ValueError(f"a column declares {values} values and holds {seen}")


def check(path: Path, bounds: Bounds | None = None) -> None:
    """Refuse a parquet file whose headers are damaged, contradictory or out of bounds.

    Time and memory are bounded by the size of the headers, whatever they claim. Compressed
    pages are not opened: a page that unpacks to another size than its header says is refused
    by the native reader.

    Raises:
        UserError: One line that names the file and what is wrong.
    """
    limits = bounds or Bounds()
    with reported(f"cannot read {path}"), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            footer = _footer(file, size)
            rows = _integer(footer, 3, "its number of rows", limits.rows)
            leaves = sum(not item.get(5) for item in _structs(footer, 2, "its schema"))
            groups = _structs(footer, 4, "its list of row groups")
            for group in groups:
                rows -= _integer(group, 3, "a row group's number of rows", limits.rows)
                for chunk in _chunks(group, leaves):
                    _walk(file, size, chunk, limits)
            if rows:
                raise ValueError("its row counts do not agree")
        except ValueError as error:
            raise UserError(f"{path}: not a sound parquet file: {error}") from None
