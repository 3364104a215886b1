"""Episodes as parquet, one file a step: written whole, read as a stream, safe with strangers.

Parquet text must be UTF-8, and a policy can emit lone surrogates, which are not. So in every
text column the character U+241B (the picture of ESCAPE) opens an escape: U+241B and four
hexadecimal digits stand for that code unit; lone surrogates and U+241B itself are written so.

A file from elsewhere is read only when its headers are sound (``parquet_bounds``) and its columns
are exactly those below. Text is kept dictionary-encoded until a batch's true size is known,
so that a small file which repeats one long string cannot fill the memory.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ragen2_cli.errors import UserError
from ragen2_cli.records import SCHEMA_VERSION, STATUSES, Episode, Turn
from ragen2_cli.runs import parquet_bounds
from ragen2_cli.runs.atomic import replacing, reported

ROWS_PER_GROUP = 256
ROWS_PER_BATCH = 32
MAX_BATCH_BYTES = 512 * 1024 * 1024
_VERSION_KEY = b"ragen2.schema_version"
_ESCAPE = "\u241b"
_UNSAFE = re.compile("[\u241b\ud800-\udfff]")
_ESCAPED = re.compile("\u241b([0-9a-f]{4})")


def escape(text: str) -> str:
    """Return ``text`` with lone surrogates and the escape character itself escaped."""
    return _UNSAFE.sub(lambda found: f"{_ESCAPE}{ord(found.group()):04x}", text)


def unescape(text: str) -> str:
    """Undo ``escape`` exactly."""
    if _ESCAPE not in text:
        return text
    return _ESCAPED.sub(lambda found: chr(int(found.group(1), 16)), text)


@cache
def schema() -> Any:
    """Return the arrow schema of a rollout file."""
    import pyarrow as pa

    turn = pa.struct(
        [
            ("observation", pa.string()),
            ("reasoning", pa.string()),
            ("answer", pa.string()),
            ("actions", pa.list_(pa.string())),
            ("reward", pa.float64()),
            ("penalty", pa.float64()),
            ("valid", pa.bool_()),
        ]
    )
    fields = [
        ("step", pa.int64()),
        ("group", pa.int64()),
        ("rollout", pa.int64()),
        ("seed", pa.int64()),
        ("prompt", pa.string()),
        ("turns", pa.list_(turn)),
        ("return", pa.float64()),
        ("outcome", pa.float64()),
        ("success", pa.bool_()),
        ("status", pa.string()),
        ("advantage", pa.float64()),
        ("kept", pa.bool_()),
        ("silent", pa.bool_()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("turn_spans", pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())]))),
    ]
    return pa.schema(fields, metadata={_VERSION_KEY: str(SCHEMA_VERSION).encode()})


_TEXT_COLUMNS = [
    "prompt",
    "status",
    "turns.list.element.observation",
    "turns.list.element.reasoning",
    "turns.list.element.answer",
    "turns.list.element.actions.list.element",
]


def _row(episode: Episode) -> dict[str, Any]:
    """Return one episode as a parquet row."""
    return {
        "step": episode.step,
        "group": episode.group,
        "rollout": episode.rollout,
        "seed": episode.seed,
        "prompt": escape(episode.prompt),
        "turns": [
            {
                "observation": escape(turn.observation),
                "reasoning": escape(turn.reasoning),
                "answer": escape(turn.answer),
                "actions": [escape(action) for action in turn.actions],
                "reward": turn.reward,
                "penalty": turn.penalty,
                "valid": turn.valid,
            }
            for turn in episode.turns
        ],
        "return": episode.episode_return,
        "outcome": episode.outcome,
        "success": episode.success,
        "status": episode.status,
        "advantage": episode.advantage,
        "kept": episode.kept,
        "silent": episode.silent,
        "prompt_ids": episode.prompt_ids,
        "completion_ids": episode.completion_ids,
        "loss_mask": episode.loss_mask,
        "turn_spans": [{"start": start, "end": end} for start, end in episode.turn_spans],
    }


def write(path: Path, episodes: Iterable[Episode]) -> int:
    """Write one step's episodes, replacing an earlier file of that step in one rename.

    Memory is bounded by ``ROWS_PER_GROUP`` episodes when ``episodes`` is a generator.

    Returns:
        The number of episodes written; a file without rows is valid.

    Raises:
        UserError: The disk does not allow it; an earlier file is unchanged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    batch: list[dict[str, Any]] = []
    with (
        reported(f"cannot write {path}"),
        replacing(path, sync=False) as temporary,
        pq.ParquetWriter(
            temporary,
            schema(),
            compression="zstd",
            write_page_checksum=True,
            write_statistics=False,
        ) as writer,
    ):
        for episode in episodes:
            batch.append(_row(episode))
            count += 1
            if len(batch) == ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema()))
                batch.clear()
        if batch:
            writer.write_table(pa.Table.from_pylist(batch, schema=schema()))
    return count


def _check(path: Path, file: Any) -> None:
    """Refuse a parquet file that is not ours or is newer."""
    version = (file.schema_arrow.metadata or {}).get(_VERSION_KEY)
    if version is None or not version.isdigit() or len(version) > 9:
        raise UserError(f"{path}: no schema version; this is not a rollout file of ragen2")
    if int(version) > SCHEMA_VERSION:
        raise UserError(
            f"{path}: written with schema version {int(version)}, this release reads up to"
            f" {SCHEMA_VERSION}; install a newer ragen2"
        )
    for field in schema():
        index = file.schema_arrow.get_field_index(field.name)
        if index < 0:
            raise UserError(f"{path}: column '{field.name}' is missing")
        found = file.schema_arrow.field(index).type
        if found != field.type:
            raise UserError(f"{path}: column '{field.name}' is {found}, expected {field.type}")
    if len(file.schema_arrow) != len(schema()):
        raise UserError(f"{path}: has columns that a rollout file does not have")
    paths = {file.schema.column(index).path for index in range(len(file.schema))}
    if missing := sorted(set(_TEXT_COLUMNS) - paths):
        raise UserError(f"{path}: stored column '{missing[0]}' is missing")


def _decoded_bytes(array: Any) -> int:
    """Return the size of an arrow array once dictionaries are expanded, without expanding them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        total = pc.sum(lengths.take(array.indices.drop_null())).as_py() or 0
        return int(total) + 64 * len(array)
    if pa.types.is_list(kind):
        return 64 * len(array) + _decoded_bytes(array.flatten())
    if pa.types.is_struct(kind):
        return sum(_decoded_bytes(array.field(i)) for i in range(kind.num_fields))
    return 32 * len(array)


def _turn(row: dict[str, Any]) -> Turn:
    """Return one turn from its parquet struct."""
    return Turn(
        observation=unescape(row["observation"]),
        reasoning=unescape(row["reasoning"]),
        answer=unescape(row["answer"]),
        actions=tuple(unescape(action) for action in row["actions"]),
        reward=row["reward"],
        penalty=row["penalty"],
        valid=row["valid"],
    )


def _episode(row: dict[str, Any]) -> Episode:
    """Return one episode from its parquet row."""
    return Episode(
        step=row["step"],
        group=row["group"],
        rollout=row["rollout"],
        seed=row["seed"],
        prompt=unescape(row["prompt"]),
        turns=tuple(_turn(turn) for turn in row["turns"]),
        episode_return=row["return"],
        outcome=row["outcome"],
        success=row["success"],
        status=row["status"],
        prompt_ids=tuple(row["prompt_ids"]),
        completion_ids=tuple(row["completion_ids"]),
        loss_mask=tuple(row["loss_mask"]),
        turn_spans=tuple((span["start"], span["end"]) for span in row["turn_spans"]),
        advantage=row["advantage"],
        kept=row["kept"],
        silent=row["silent"],
    )


_NULLABLE = frozenset({"return", "outcome", "advantage", "kept", "reward"})


def _check_nulls(path: Path, name: str, array: Any) -> None:
    """Refuse nulls, at any depth, where an episode has none."""
    import pyarrow as pa

    if array.null_count and name not in _NULLABLE:
        raise UserError(f"{path}: column '{name}' holds nulls")
    if pa.types.is_list(array.type):
        _check_nulls(path, name, array.flatten())
    elif pa.types.is_struct(array.type):
        for index, field in enumerate(array.type):
            _check_nulls(path, field.name, array.field(index))


def _episodes(path: Path, batch: Any) -> Iterator[Episode]:
    """Yield a batch's episodes after its true size and its nulls have been checked."""
    batch.validate(full=True)
    size = sum(_decoded_bytes(column) for column in batch.columns)
    if size > MAX_BATCH_BYTES:
        raise UserError(f"{path}: {batch.num_rows} rows hold {size} bytes; too large to read")
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        _check_nulls(path, name, column)
    for row in batch.to_pylist():
        if row["status"] not in STATUSES:
            raise UserError(f"{path}: unknown status '{row['status'][:40]}'")
        yield _episode(row)


def count(path: Path) -> int:
    """Return how many episodes a file says it holds; raises as ``read``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parquet_bounds.check(path)
    try:
        with pq.ParquetFile(path) as file:
            _check(path, file)
            return int(file.metadata.num_rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    return UserError(f"{path}: not a readable rollout file ({reason})")


def read(path: Path) -> Iterator[Episode]:
    """Yield the episodes of one file in file order, in constant memory.

    Raises:
        UserError: Missing, not parquet, of another schema or a newer version, or out of bounds.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parquet_bounds.check(path)
    try:
        with pq.ParquetFile(path) as plain:
            _check(path, plain)
            metadata = plain.metadata
        with pq.ParquetFile(
            path,
            metadata=metadata,
            read_dictionary=_TEXT_COLUMNS,
            page_checksum_verification=True,
        ) as file:
            left = metadata.num_rows
            for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, use_threads=False):
                left -= batch.num_rows
                yield from _episodes(path, batch)
        if left:
            raise UserError(f"{path}: damaged, {left} of {metadata.num_rows} episodes are lost")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
