"""A BM25 index over passages: in memory, or stored once and memory-mapped.

A stored index is a folder: the bm25s files, ``passages.jsonl``, the byte offset of each passage,
and ``index.json`` with the fingerprint of its corpus, written last.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np

from ragen2_cli.envs import bm25
from ragen2_cli.envs.rows import field, read_rows
from ragen2_cli.envs.search_qa.world import Passage
from ragen2_cli.errors import UserError

FORMAT = 1
_HEAD = 1 << 20


class Retriever(Protocol):
    """Finds passages for a query, best first."""

    def search(self, query: str, count: int) -> list[Passage]:
        """Return at most ``count`` passages; fewer when fewer match."""


class MemoryIndex:
    """An index of passages held in memory."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        self._model = bm25.build([f"{p.title} {p.text}" for p in passages])

    def search(self, query: str, count: int) -> list[Passage]:
        """Return at most ``count`` passages, best first."""
        found = bm25.top(self._model, query, count, len(self._passages))
        return [self._passages[number] for number in found]


@dataclass(frozen=True, slots=True)
class _Meta:
    fingerprint: str
    documents: int


class StoredIndex:
    """A memory-mapped index in a folder.

    Args:
        folder: What ``store`` wrote.
        corpus: The corpus it must belong to; empty accepts any.

    Raises:
        UserError: When the folder holds no complete index, or that of another corpus.
    """

    def __init__(self, folder: Path, corpus: str = "") -> None:
        import bm25s

        meta = _read_meta(folder)
        if corpus and meta.fingerprint != fingerprint(corpus):
            raise UserError(
                f"{folder}: the index belongs to another corpus than {corpus}; give another index "
                "folder, or delete this one to build it again"
            )
        self._count = meta.documents
        self._model = bm25s.BM25.load(str(folder), mmap=True, load_corpus=False)
        self._offsets = np.load(folder / "offsets.npy", mmap_mode="r")
        self._file = folder / "passages.jsonl"

    def search(self, query: str, count: int) -> list[Passage]:
        """Return at most ``count`` passages, best first."""
        found = bm25.top(self._model, query, count, self._count)
        passages = []
        with self._file.open("rb") as lines:
            for number in found:
                lines.seek(int(self._offsets[number]))
                passages.append(Passage(*json.loads(lines.readline())))
        return passages


def _read_meta(folder: Path) -> _Meta:
    try:
        meta = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{folder}: no complete search index in it") from error
    except ValueError as error:
        raise UserError(f"{folder}/index.json: not JSON ({error})") from error
    if meta.get("format") != FORMAT:
        raise UserError(f"{folder}: index format {meta.get('format')}, this version reads {FORMAT}")
    return _Meta(meta["fingerprint"], meta["documents"])


def store(passages: Iterable[Passage], folder: Path, corpus_fingerprint: str) -> None:
    """Write an index of passages into a folder; complete only when ``index.json`` is there."""
    folder.mkdir(parents=True, exist_ok=True)
    texts, offsets, at = [], [], 0
    with (folder / "passages.jsonl").open("wb") as file:
        for passage in passages:
            line = json.dumps([passage.title, passage.text]).encode() + b"\n"
            file.write(line)
            offsets.append(at)
            at += len(line)
            texts.append(f"{passage.title} {passage.text}")
    if not texts:
        raise UserError(f"{folder}: the corpus holds no passage")
    np.save(folder / "offsets.npy", np.asarray(offsets, dtype=np.int64))
    bm25.build(texts).save(str(folder))
    meta = {"format": FORMAT, "fingerprint": corpus_fingerprint, "documents": len(texts)}
    partial = folder / "index.json.partial"
    partial.write_text(json.dumps(meta), encoding="utf-8")
    os.replace(partial, folder / "index.json")


def open_index(corpus: str, folder: str) -> StoredIndex:
    """Return the stored index of a corpus, building it at the first call.

    Args:
        corpus: Path of a jsonl or parquet file of passages.
        folder: Where the index is or will be; empty puts it beside the corpus.
    """
    place = Path(folder) if folder else Path(f"{corpus}.bm25")
    if not (place / "index.json").exists():
        store(corpus_passages(corpus), place, fingerprint(corpus))
    return StoredIndex(place, corpus)


def fingerprint(corpus: str) -> str:
    """Return a short hash of a corpus file: its size and its first and last megabyte.

    Raises:
        UserError: When there is no such file.
    """
    path = Path(corpus)
    if not path.is_file():
        raise UserError(f"{corpus}: no such corpus file; give a .jsonl or .parquet of passages")
    size = path.stat().st_size
    digest = blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(_HEAD))
        file.seek(max(0, size - _HEAD))
        digest.update(file.read(_HEAD))
    return digest.hexdigest()


def corpus_passages(corpus: str) -> Iterator[Passage]:
    """Yield the passages of a corpus file.

    A row has ``contents`` (title, line break, text: the Search-R1 layout), or ``title`` and
    ``text``.

    Raises:
        UserError: When a row has neither.
    """
    for number, row in read_rows(corpus):
        where = f"{corpus} row {number}"
        if "contents" in row:
            yield split_contents(field(row, "contents", str, where))
        else:
            yield Passage(field(row, "title", str, where), field(row, "text", str, where))


def split_contents(contents: str) -> Passage:
    """Split a Search-R1 document into title (without its quotes) and text."""
    title, _, text = contents.partition("\n")
    return Passage(title.strip().strip('"'), text.strip())
