"""Logs whose columns mislead: ids, booleans, modes, file names, late values; and foreign files."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from log_helpers import log
from log_helpers import write as write_run
from ragen2_cli.core.batches import batch_metrics
from ragen2_cli.errors import UserError
from ragen2_cli.logs import Choice, read_log
from ragen2_cli.runs import RunDirectory

# Two prompts, four rows each, in the order of the file: groups of 4 by their prompts.
ROWS = [
    {"step": 1, "prompt": "aaaabbbb"[i], "completion": f"x{i}", "reward": i % 2} for i in range(8)
]


def written(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, **choice):
    data = read_log(path, Choice(**choice))
    return data, [row for rows in data.steps.values() for row in rows]


@pytest.mark.parametrize(
    ("ids", "groups", "said"),
    [
        ([None] * 8, "00001111", "column 'uid' is empty and was ignored"),
        ([""] * 8, "00001111", "column 'uid' is empty and was ignored"),
        (list(range(8)), "00001111", "column 'uid' differs in every row though prompts repeat"),
        (list("pqpqrsrs"), "pqpqrsrs", "groups by column 'uid'"),
    ],
)
def test_a_group_column_by_name_alone_must_make_groups(tmp_path, ids, groups, said):
    rows = [row | {"uid": one} for row, one in zip(ROWS, ids, strict=True)]
    data, found = read(written(tmp_path / "a.jsonl", rows))
    assert [row.group for row in found] == list(groups)
    assert any(line.startswith(said) for line in data.said)


def test_ids_of_rows_are_obeyed_when_no_prompt_repeats_or_they_are_named(tmp_path):
    rows = [row | {"uid": i} for i, row in enumerate(ROWS)]
    path = written(tmp_path / "a.jsonl", rows)
    assert batch_metrics(read(path, columns={"group": "uid"})[1])["groups"] == 8
    data, _ = read(written(path, [row | {"prompt": f"p{row['uid']}"} for row in rows]))
    assert "groups by column 'uid'" in data.said


def test_rows_without_an_id_are_grouped_by_their_prompts(tmp_path):
    # The second file lacks the column: its two prompts are two groups, not one of 8 rows.
    written(tmp_path / "c_1.jsonl", [row | {"uid": row["prompt"]} for row in ROWS])
    written(
        tmp_path / "c_2.jsonl", [row | {"step": 2, "reward": 1 - row["reward"]} for row in ROWS]
    )
    data, found = read(tmp_path)
    assert [len({row.group for row in rows}) for rows in data.steps.values()] == [2, 2]
    assert len({row.group for row in found}) == 4
    assert any("8 rows without one: groups of 4 rows" in line for line in data.said)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_boolean_rewards_are_one_and_zero(tmp_path, suffix):
    rows = [
        {"prompt": "a", "completion": f"x{i}", "correct": i == 1, "reward": i == 2}
        for i in range(3)
    ]
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == "csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        written(path, rows)
    assert [row.reward for row in read(path, rewards=("correct",))[1]] == [0, 1, 0]
    data, found = read(path)
    assert [row.reward for row in found] == [0, 0, 1]
    assert data.said[0] == "reward = reward (by its name)"
    with pytest.raises(UserError, match="'completion' is no reward: it has a number in no row"):
        read(path, rewards=("completion",))


def test_a_number_of_a_usual_name_comes_before_a_boolean(tmp_path):
    rows = [row | {"score": 0.5, "reward": True} for row in ROWS]
    assert {row.reward for row in read(written(tmp_path / "a.jsonl", rows))[1]} == {0.5}


def test_a_mode_column_is_read_by_the_words_of_file_names(tmp_path):
    words = ["training", "validation", "test", "rollout", None, "Eval", "train", "main"]
    rows = [row | {"split": word} for row, word in zip(ROWS, words, strict=True)]
    path = written(tmp_path / "a.jsonl", rows)

    def of(mode):
        return [row.prefix[0] for row in read(path, mode=mode)[1]]

    assert of("train") == ["x0", "x3", "x4", "x6", "x7"]
    assert of("eval") == ["x1", "x2", "x4", "x5"]
    assert len(of("all")) == 8
    written(path, [row | {"split": "gsm8k"} for row in ROWS])
    assert len(of("train")) == 8
    with pytest.raises(UserError, match="8 rows of another mode than eval"):
        of("eval")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("completions_100_9f3a2b7c1d.table.json", 100),
        ("completions_00020.json", 20),
        ("7.json", 7),
        ("rollout-step12.json", 12),
        ("global_step_30_abc.json", 30),
    ],
)
def test_the_step_is_the_number_that_stands_alone(tmp_path, name, step):
    path = tmp_path / name
    path.write_text(json.dumps([{"prompt": "a", "completion": "x", "reward": 1.0}]))
    assert list(read(path)[0].steps) == [step]


def test_a_reward_that_starts_after_many_rows_and_a_byte_order_mark(tmp_path):
    lines = [f"1,p,c{i},{i if i >= 60 else ''}\n" for i in range(70)]
    path = tmp_path / "a.csv"
    path.write_text("step,prompt,completion,reward\n" + "".join(lines))
    assert sum(row.reward == row.reward for row in read(path)[1]) == 10
    for name, text in (("a.jsonl", json.dumps(ROWS[0]) + "\n"), ("a.json", json.dumps(ROWS))):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert read(tmp_path / name)[1]


def bad_text(path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["aXXb"], "completion": ["x"], "reward": [1.0]}), path)
    path.write_bytes(path.read_bytes().replace(b"aXXb", b"a\xff\xfeb"))


FOREIGN = {
    "text.parquet": (bad_text, "damaged parquet data"),
    "rows.json": ({"columns": ["prompt"], "data": [1, 2, 3]}, "columns and data of this table"),
    "none.json": ({"columns": ["prompt"], "data": None}, "columns and data of this table"),
    "names.json": ({"columns": [["prompt"]], "data": [["a"]]}, "columns and data of this table"),
    # Reading the memory of a process at 0 is an input/output error, whoever asks.
    "memory.jsonl": (lambda path: path.symlink_to("/proc/self/mem"), "cannot be read"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_refused_alone_and_left_out_of_a_folder(tmp_path, name):
    make, message = FOREIGN[name]
    if callable(make):
        make(tmp_path / name)
    else:
        (tmp_path / name).write_text(json.dumps(make))
    with pytest.raises(UserError, match=f"{name}: {message}"):
        read(tmp_path / name)
    written(tmp_path / "a_1.jsonl", ROWS)
    data, found = read(tmp_path)
    assert len(found) == 8
    assert data.skipped["unreadable files"] + data.skipped["files that end early"] == 1


def test_numbers_that_no_float_holds_leave_the_row_unscored(tmp_path):
    # 10^400 is no float; 1e308 + 1e308 is more than the largest one.
    rows = [row | {"reward": big} for row, big in zip(ROWS, [10**400, 1e308], strict=False)]
    path = written(tmp_path / "a.jsonl", [row | {"bonus": 1e308} for row in rows])
    assert read(path)[0].skipped["rewards that are no number (row kept without a score)"] == 1
    scores = [row.reward for row in read(path, rewards=("reward", "bonus"))[1]]
    assert scores[0] == 1e308
    assert scores[1] != scores[1]


def test_a_measurement_without_its_step_is_one_line(tmp_path):
    run = write_run(tmp_path / "run", log(diagnostics=({"step": 1},)))
    with (run.path / "diagnostics.jsonl").open("a") as lines:
        lines.write(json.dumps({"schema_version": 1, "mi_estimate": 0.5}) + "\n")
    with pytest.raises(UserError, match=r"diagnostics.jsonl: line 2: no 'step' with a whole"):
        RunDirectory.open(run.path).read_diagnostics()
