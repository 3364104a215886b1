"""Rows from files and the hub: every layout, and errors that say where."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ragen2_cli.envs.rows import field, read_rows
from ragen2_cli.errors import UserError

ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_every_kind_of_file_gives_the_same_rows(tmp_path):
    (tmp_path / "r.jsonl").write_text("\n\n".join(map(json.dumps, ROWS)))
    (tmp_path / "r.json").write_text(json.dumps(ROWS))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "r.parquet")
    for name in ("r.json", "r.parquet", "r.jsonl"):
        assert [row for _, row in read_rows(str(tmp_path / name))] == ROWS
    assert [number for number, _ in read_rows(str(tmp_path / "r.json"))] == [0, 1]
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in ("b.parquet", "a.parquet"):
        pq.write_table(pa.Table.from_pylist([{"part": part}]), folder / part)
    found = [(number, row["part"]) for number, row in read_rows(str(folder))]
    assert found == [(0, "a.parquet"), (1, "b.parquet")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.jsonl", '{"a": 1}\n{"a": ', "row 1: not JSON"),
        ("r.jsonl", "5", "row 0: expected an object, found int"),
        ("r.json", '{"a": 1}', "expected a list of objects, found dict"),
        ("r.json", "[", "not JSON"),
        ("r.parquet", "no parquet at all", "not a readable parquet file"),
        ("r.csv", "a,b", r"unknown kind of file '.csv'; use .jsonl, .json, .parquet"),
    ],
)
def test_a_damaged_file_says_what_and_where(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        list(read_rows(str(path)))


@pytest.mark.parametrize("name", ["r.jsonl", "r.json"])
def test_bytes_that_are_no_text(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b'[{"a": "\xff\xfe"}]')
    with pytest.raises(UserError, match="not UTF-8 text"):
        list(read_rows(str(path)))


def test_nothing_there(tmp_path):
    for source in (str(tmp_path / "absent.jsonl"), "absent", "./owner/name"):
        with pytest.raises(UserError, match="no such file"):
            read_rows(source)
    with pytest.raises(UserError, match=r"holds no \.parquet"):
        read_rows(str(tmp_path))


def test_a_hub_name_that_cannot_be_loaded(monkeypatch):
    import datasets

    def offline(name, config, split):
        assert (name, config, split) == ("owner/name", "part", "train")
        raise ConnectionError("offline\nmore")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(UserError, match=r"owner/name:part: the hub .* \(offline\)"):
        list(read_rows("owner/name:part"))
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, split: ROWS)
    assert [row for _, row in read_rows("owner/name")] == ROWS


def test_fields_are_checked():
    assert field({"a": 1}, "a", int, "here") == 1
    with pytest.raises(UserError, match=r"here: field 'question' is missing \(did you mean 'quest"):
        field({"questions": 1}, "question", str, "here")
    with pytest.raises(UserError, match="field 'a' is int, expected str or list"):
        field({"a": 1}, "a", (str, list), "here")
