"""Episodes as parquet: equal after a round trip, streamed, safe with files from elsewhere."""

import contextlib
import resource
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2_cli.errors import UserError
from ragen2_cli.records import Turn
from ragen2_cli.runs import parquet_bounds, rollouts
from test_runs import an_episode, new_run


def test_round_trip_is_exact(tmp_path):
    run = new_run(tmp_path / "a")
    junk = Turn("\x00\x1b[31m", "lone \ud800\udfff", "[/] [red] 漢字 ␛d800", (), None, -0.1, False)
    episodes = [
        an_episode(3, 0, 0),
        an_episode(3, 0, 1, turns=(junk,), episode_return=None, outcome=None, success=False),
        an_episode(3, 1, 0, turns=(), advantage=None, kept=None, status="context_limit"),
        an_episode(3, 1, 1, prompt_ids=(), completion_ids=(), loss_mask=(), turn_spans=()),
        an_episode(3, 2, 0, silent=True, kept=False, seed=2**62, prompt="x" * 5_000_000),
    ]
    run.write_rollouts(3, episodes)
    assert run.read_rollouts(3) == episodes
    assert pq.read_schema(run.rollouts_path(3)).equals(rollouts.schema())


@given(st.text(st.characters(exclude_categories=()) | st.sampled_from("␛\ud800abcdef0123")))
@settings(max_examples=300, deadline=None)
def test_escape_is_exact_and_valid_utf8(text):
    assert rollouts.unescape(rollouts.escape(text)) == text
    rollouts.escape(text).encode("utf-8")


def test_plain_text_is_stored_as_it_is():
    assert rollouts.escape("\\ud800 <think> 漢 \U0001f600") == "\\ud800 <think> 漢 \U0001f600"


def test_all_steps_are_streamed_in_order(tmp_path):
    run = new_run(tmp_path / "a")
    for step in (2, 1):
        run.write_rollouts(step, (an_episode(step, g, r) for g in range(20) for r in range(15)))
    keys = [(e.step, e.group, e.rollout) for e in run.iter_rollouts()]
    assert keys == [(s, g, r) for s in (1, 2) for g in range(20) for r in range(15)]
    with pytest.raises(UserError, match="no rollouts of step 7; steps 1 to 2 are there"):
        run.read_rollouts(7)


def test_an_empty_step_is_a_valid_file(tmp_path):
    run = new_run(tmp_path / "a")
    run.write_rollouts(1, [])
    assert run.read_rollouts(1) == []


def test_streaming_holds_a_batch_not_the_file(tmp_path):
    path = tmp_path / "x.parquet"
    rollouts.write(path, (an_episode(1, g, r) for g in range(200) for r in range(16)))
    peaks = []
    for consume in (lambda stream: sum(1 for _ in stream), lambda stream: len(list(stream))):
        tracemalloc.start()
        assert consume(rollouts.read(path)) == 3200
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] < 0.2 * peaks[1]


def test_failed_write_leaves_the_earlier_file(tmp_path):
    run = new_run(tmp_path / "a")
    run.write_rollouts(1, [an_episode(1, 0, 0)])

    def breaks():
        yield an_episode(1, 5, 5)
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"step-000001\.parquet: No space left"):
        run.write_rollouts(1, breaks())
    assert run.read_rollouts(1) == [an_episode(1, 0, 0)]
    assert [p.name for p in (run.path / "rollouts").iterdir()] == ["step-000001.parquet"]


# ---- files from elsewhere ----


def stranger(path, *, rows=None, schema=None, **options):
    """Write a file with our schema and the given raw rows."""
    rows = rows if rows is not None else [rollouts._row(an_episode(1, 0, 0))]
    table = pa.Table.from_pylist(rows, schema=schema or rollouts.schema())
    pq.write_table(table, path, **options)
    return path


def refused(path, message):
    with pytest.raises(UserError, match=message) as caught:
        list(rollouts.read(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_is_not_a_rollout_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "x.parquet"
    refused(path, "cannot read .*No such file")
    path.write_bytes(b"")
    refused(path, "too short")
    path.write_bytes(b"PAR1" + bytes(1000) + b"PAR1")
    refused(path, "not a sound parquet file")
    pq.write_table(pa.table({"step": [1]}), path)
    refused(path, "no schema version")


def test_wrong_columns_are_named(tmp_path):
    good = rollouts.schema()
    path = tmp_path / "x.parquet"
    row = rollouts._row(an_episode(1, 0, 0))
    index = good.get_field_index("seed")
    stranger(path, schema=good.remove(index))
    refused(path, "column 'seed' is missing")
    stranger(
        path, rows=[row | {"seed": "7"}], schema=good.set(index, pa.field("seed", pa.string()))
    )
    refused(path, "column 'seed' is string, expected int64")
    stranger(path, schema=good.append(pa.field("payload", pa.binary())))
    refused(path, "columns that a rollout file does not have")
    stranger(path, schema=good.with_metadata({b"ragen2.schema_version": b"3"}))
    refused(path, "schema version 3, this release reads up to 1")


def test_nulls_and_unknown_words_are_named(tmp_path):
    path = tmp_path / "x.parquet"
    row = rollouts._row(an_episode(1, 0, 0))
    stranger(path, rows=[row | {"prompt": None}])
    refused(path, "column 'prompt' holds nulls")
    stranger(path, rows=[row | {"turns": [None]}])
    refused(path, "column 'turns' holds nulls")
    stranger(path, rows=[row | {"turns": [row["turns"][0] | {"answer": None}]}])
    refused(path, "column 'answer' holds nulls")
    stranger(path, rows=[row | {"completion_ids": [1, None]}])
    refused(path, "column 'completion_ids' holds nulls")
    stranger(path, rows=[row | {"status": "won"}])
    refused(path, "unknown status 'won'")


def test_small_file_that_repeats_a_long_text_cannot_fill_the_memory(tmp_path):
    # 20,000 rows of one dictionary entry of 4 MB: 80 GB once expanded, kilobytes on disk.
    row = rollouts._row(an_episode(1, 0, 0, prompt="x" * 4_000_000))
    table = pa.Table.from_pylist([row], schema=rollouts.schema())
    many = [
        pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), column.combine_chunks())
        if name == "prompt"
        else pa.concat_arrays([column.combine_chunks()] * 20_000)
        for name, column in zip(table.schema.names, table.columns, strict=True)
    ]
    path = tmp_path / "bomb.parquet"
    schema = rollouts.schema()
    index = schema.get_field_index("prompt")
    as_dictionary = schema.set(index, pa.field("prompt", pa.dictionary(pa.int32(), pa.string())))
    bomb = pa.Table.from_arrays(many, schema=as_dictionary)
    # The arrow schema would name the dictionary type; without it the column is a plain string.
    pq.write_table(
        bomb,
        path,
        compression="zstd",
        store_schema=False,
        dictionary_pagesize_limit=1 << 26,
    )
    assert path.stat().st_size < 2_000_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError):
        list(rollouts.read(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # kB


def test_headers_that_lie_are_refused_before_the_native_reader(tmp_path):
    path = stranger(tmp_path / "x.parquet")
    whole = path.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little")
    path.write_bytes(whole[:-8] + (footer + 10_000_000).to_bytes(4, "little") + b"PAR1")
    refused(path, "its footer claims")
    path.write_bytes(whole[:-4] + b"PARE")
    refused(path, "no parquet signature, or encrypted")
    path.write_bytes(whole[: len(whole) - footer - 100] + whole[-footer - 8 :])
    refused(path, "not a sound parquet file")


def test_sizes_in_the_pages_themselves_are_bounded(tmp_path):
    # 2 MB of one letter and 5,000 equal ids: a few kilobytes on disk.
    row = rollouts._row(an_episode(1, 0, 0, prompt="x" * 2_000_000, completion_ids=(7,) * 5000))
    path = stranger(tmp_path / "x.parquet", rows=[row], compression="zstd")
    assert path.stat().st_size < 20_000
    parquet_bounds.check(path)
    for bounds, message in [
        ({"rows": 0}, "its number of rows is 1, at most 0"),
        ({"page_bytes": 1_000_000}, r"a page's size is 2\d{6}, at most 1000000"),
        ({"column_bytes": 1_000_000}, r"a column's size is 2\d{6}, at most 1000000"),
        ({"column_values": 4999}, "a column's number of values is 5000, at most 4999"),
    ]:
        with pytest.raises(UserError, match=message):
            parquet_bounds.check(path, parquet_bounds.Bounds(**bounds))


@given(st.binary(max_size=300))
@settings(max_examples=500, deadline=None)
def test_header_parser_ends_on_any_bytes(data):
    reader = parquet_bounds._Reader(data)
    with contextlib.suppress(ValueError):
        reader.struct()
    assert reader.at <= len(data)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_bytes_never_escape_as_another_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "x.parquet"
    stranger(path, rows=[rollouts._row(an_episode(1, g, 0)) for g in range(3)])
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    message = ""
    try:
        episodes = list(rollouts.read(path))
    except UserError as error:
        message = str(error)
    else:
        assert len(episodes) == 3
    assert "\n" not in message
