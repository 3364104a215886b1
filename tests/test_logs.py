"""Reading logs that other programs wrote (cases 11 and 26-29, and broken input)."""

import json
import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from planted import sample, trl_rows
from ragen2_cli.core.batches import PATTERN_ROWS, batch_metrics, episode_row
from ragen2_cli.envs.parsing import parse
from ragen2_cli.errors import UserError
from ragen2_cli.logs import Choice, read_log, texts_of_step
from ragen2_cli.logs.grouping import assign_groups, infer_grouping
from ragen2_cli.logs.layout import parse_columns
from ragen2_cli.logs.texts import prompt_key, reasoning_of, turns_of

RECORDED = Path(__file__).parent / "data" / "logs"


def write(path: Path, table: dict[str, list]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path)
    return path


def rows_of(data):
    return [row for rows in data.steps.values() for row in rows]


@pytest.mark.parametrize("name", ["trl-1.16-plain", "trl-1.16-chat", "trl-0.29-chat"])
def test_logs_that_trl_itself_wrote(name):
    data = read_log(RECORDED / name, Choice())
    assert list(data.steps) == [1, 2, 3]
    assert [len(rows) for rows in data.steps.values()] == [16, 16, 16]
    assert data.said[0].startswith("reward = has_up + length_reward (float columns whose sum")
    assert data.said[1] == "groups of 4 rows: consecutive rows with the same prompt"
    # Row 0 of a batch has no length_reward (null), but has_up: it keeps a score.
    frame = pd.read_parquet(RECORDED / name / "completions_00001.parquet")
    assert math.isnan(frame["length_reward"][0])
    assert data.steps[1][0].reward == frame["has_up"][0]
    assert data.steps[1][1].reward == pytest.approx(frame["has_up"][1] + frame["length_reward"][1])
    assert len({row.group for row in data.steps[1]}) == 4


def test_a_trl_table_gives_what_our_own_episodes_give(tmp_path):
    episodes = sample(True)
    data = read_log(write(tmp_path / "completions_00001.parquet", trl_rows(episodes)), Choice())
    counted = [number < PATTERN_ROWS for number in range(len(episodes))]
    ours = batch_metrics(
        [episode_row(one, patterns=count) for one, count in zip(episodes, counted, strict=True)]
    )
    theirs = batch_metrics(data.steps[1])
    for name in ours:
        if name not in ("response_length", "truncated"):  # tokens against words; unknown to TRL
            assert theirs[name] == pytest.approx(ours[name], abs=1e-12), name


# ---- case 26: which columns are rewards -------------------------------------------------------

BASE = {"step": [1] * 4, "prompt": ["a", "a", "b", "b"], "completion": ["x", "y", "z", "w"]}


def test_extra_text_bool_and_list_columns_are_no_rewards(tmp_path):
    table = BASE | {
        "accuracy": [1.0, 0.0, 0.0, 1.0],
        "note": ["n"] * 4,
        "ok": [True] * 4,
        "ids": [[1.0]] * 4,
        "count": [3, 4, 5, 6],
        "advantage": [0.7, -0.7, -0.7, 0.7],
    }
    data = read_log(write(tmp_path / "a.parquet", table), Choice())
    assert [row.reward for row in rows_of(data)] == [1, 0, 0, 1]


def test_a_float_extra_column_is_told_apart_by_the_logged_advantages(tmp_path):
    table = BASE | {
        "first": [1.0, 0.0, 0.0, 1.0],
        "second": [0.0, 0.5, 0.0, 0.0],
        "extra": [9.0, 1.0, 5.0, 2.0],
        "advantage": [0.5, -0.5, -0.7, 0.7],
    }
    data = read_log(write(tmp_path / "a.parquet", table), Choice())
    assert data.said[0].startswith("reward = first + second (")
    unexplained = table | {"advantage": [-0.5, 0.5, -0.7, 0.7]}
    data = read_log(write(tmp_path / "b.parquet", unexplained), Choice())
    assert data.said[0].startswith("reward = first + second + extra (")
    assert "does not explain" in data.said[0]


def test_rewards_by_flag_with_weights_and_never_the_advantage(tmp_path):
    table = BASE | {"r1": [1.0, 0, 0, 0], "r2": [0, 2.0, 0, None], "advantage": [0.0] * 4}
    path = write(tmp_path / "a.parquet", table)
    data = read_log(path, Choice(rewards=("r1", "r2"), weights=(1.0, 0.5)))
    assert [row.reward for row in rows_of(data)] == [1, 1, 0, 0]
    assert data.said[0] == "reward = r1 + 0.5 x r2 (as told)"
    with pytest.raises(UserError, match="'advantage' is not a reward"):
        read_log(path, Choice(rewards=("advantage",)))
    with pytest.raises(UserError, match=r"no column 'r3' \(did you mean 'r"):
        read_log(path, Choice(rewards=("r3",)))
    with pytest.raises(UserError, match="3 reward weights for 1 reward columns"):
        read_log(path, Choice(rewards=("r1",), weights=(1, 2, 3)))


def test_a_missing_reward_column_is_named_with_the_columns_seen(tmp_path):
    with pytest.raises(UserError, match="no reward column; columns seen: step, prompt, completion"):
        read_log(write(tmp_path / "a.parquet", BASE), Choice())


def test_mode_folders_are_kept_apart_and_counted(tmp_path):
    table = BASE | {"reward": [1.0, 0, 0, 1.0]}
    write(tmp_path / "train" / "completions_00001.parquet", table)
    write(tmp_path / "eval" / "completions_00001.parquet", table | {"reward": [9.0] * 4})
    assert [r.reward for r in rows_of(read_log(tmp_path, Choice()))] == [1, 0, 0, 1]
    data = read_log(tmp_path, Choice())
    assert data.skipped["files of another mode than train"] == 1
    assert {r.reward for r in rows_of(read_log(tmp_path, Choice(mode="eval")))} == {9}
    assert len(rows_of(read_log(tmp_path, Choice(mode="all")))) == 8


def test_asking_for_evaluation_rows_that_are_not_told_apart_is_refused(tmp_path):
    path = write(tmp_path / "a.parquet", BASE | {"reward": [1.0, 0, 0, 1.0]})
    with pytest.raises(UserError, match="--mode eval, but neither"):
        read_log(path, Choice(mode="eval"))


def test_a_mode_column_is_obeyed(tmp_path):
    table = BASE | {"reward": [1.0, 2, 3, 4], "mode": ["train", "eval", "train", None]}
    data = read_log(write(tmp_path / "a.parquet", table), Choice())
    assert [row.reward for row in rows_of(data)] == [1, 3, 4]
    assert data.skipped["rows of another mode than train"] == 1


# ---- case 27, 28, 29 --------------------------------------------------------------------------


def test_a_column_that_is_null_in_one_file_does_not_break_the_folder(tmp_path):
    write(tmp_path / "c_1.parquet", BASE | {"my_reward": pa.nulls(4)})
    write(tmp_path / "c_2.parquet", BASE | {"step": [2] * 4, "my_reward": [1.0, 0, None, 1]})
    data = read_log(tmp_path, Choice())
    assert [math.isnan(row.reward) for row in data.steps[1]] == [True] * 4
    assert [row.reward for row in data.steps[2]][:2] == [1, 0]
    assert data.skipped["rewards that are no number (row kept without a score)"] == 5


def test_one_prompt_in_two_groups_of_a_step_is_not_one_group_of_double_size(tmp_path):
    chat = [[{"role": "user", "content": name}] for name in "aaaabb"]
    table = {"step": [1] * 6, "prompt": chat, "completion": list("uvwxyz"), "reward": [1.0] * 6}
    data = read_log(write(tmp_path / "a.parquet", table), Choice())
    assert [row.group for row in rows_of(data)] == ["0", "0", "1", "1", "2", "2"]
    assert len({row.prompt for row in rows_of(data)}) == 2


def test_grouping_rules():
    both = infer_grouping([[1] * 8 + [2] * 16], None)
    assert both.size == 8
    assert assign_groups([1] * 8 + [2] * 16, both) == [0] * 8 + [1] * 8 + [2] * 8
    shuffled = infer_grouping([[1, 2, 1, 3, 2, 3]], None)
    assert shuffled.size is None
    assert "not consecutive" in shuffled.said
    assert assign_groups([1, 2, 1, 3, 2, 3], shuffled) == [0, 1, 0, 2, 1, 2]
    mixed = infer_grouping([[1] * 4 + [2] * 4 + [3] * 3], None)
    assert mixed.said == "mixed group sizes: 3 (1x), 4 (2x); groups of up to 4 rows"
    assert assign_groups([1] * 4 + [3] * 3, mixed) == [0] * 4 + [1] * 3
    assert infer_grouping([[1] * 8], 4).size == 4
    assert infer_grouping([[1, 2, 3]], None).size == 1


def test_group_ids_make_the_order_of_rows_irrelevant(tmp_path):  # case 11
    table = {
        "step": [1] * 6,
        "prompt": list("aabbcc"),
        "completion": ["p q", "p r", "s t", "s u", "v w", "v x"],
        "reward": [1.0, 0, 1, 1, 0, 0],
        "group_id": [7, 7, 8, 8, 9, 9],
    }
    order = [5, 0, 3, 1, 4, 2]
    shuffled = {name: [values[i] for i in order] for name, values in table.items()}
    one = read_log(write(tmp_path / "a.parquet", table), Choice())
    two = read_log(write(tmp_path / "b.parquet", shuffled), Choice())
    assert one.said[1] == "groups by column 'group_id'"
    names = ("groups", "dead_groups", "reward_std", "reward_f_ratio", "prefix_mi")
    first, second = batch_metrics(one.steps[1]), batch_metrics(two.steps[1])
    assert {n: second[n] for n in names} == pytest.approx({n: first[n] for n in names})
    assert first["dead_groups"] == 2


def test_hostile_text_passes_through_literally(tmp_path):
    texts = ["[/] [red] list[int]", "lone \ud800 surrogate", "目标在右边", "!!!!", "x " * 2_500_000]
    lines = [
        {"step": 1, "prompt": text[:30], "completion": f"<think>{text}</think>", "reward": 1}
        for text in texts
        for _ in range(2)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    data = read_log(path, Choice())
    assert len(rows_of(data)) == 10
    assert rows_of(data)[0].prefix == ("[/]", "[red]", "list[int]")
    assert rows_of(data)[8].reasoning_words == 2_500_000
    assert texts_of_step(path, Choice(), 1)[2].turns[0] == f"<think>{texts[1]}</think>"
    json.dumps(batch_metrics(data.steps[1]), allow_nan=False)


# ---- other layouts ----------------------------------------------------------------------------


def test_ragen_and_verl_rollout_jsonl(tmp_path):
    for step in (1, 2):
        lines = [
            {"input": f"system\nq{i // 2}\nassistant\n", "output": f"<think>go {i} {step}</think>"
             "<answer>Up</answer>", "score": float(i % 2), "step": step, "gts": None}
            for i in range(8)
        ]  # fmt: skip
        (tmp_path / f"{step}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    data = read_log(tmp_path, Choice())
    assert data.said == [
        "reward = score (by its name)",
        "groups of 2 rows: consecutive rows with the same prompt",
    ]
    assert [row.valid for row in data.steps[2]] == [True] * 8
    assert data.steps[1][3].prefix == ("go", "3", "1")


def test_ragen_rollouts_with_the_prompt_inside_the_output(tmp_path):
    output = "system\nYou play.\nuser\nboard {}\nassistant\n<think>up</think><answer>Up</answer>"
    lines = [{"input": "", "output": output.format(i // 2), "score": 1.0} for i in range(4)]
    (tmp_path / "7.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    data = read_log(tmp_path, Choice())
    assert list(data.steps) == [7]
    assert len({row.prompt for row in rows_of(data)}) == 2
    assert rows_of(data)[0].prefix == ("up",)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_wandb_completion_tables(tmp_path, kind):
    chat = str([{"role": "user", "content": "it's a"}])
    answer = str([{"role": "assistant", "content": "<think>so</think><answer>Up</answer>"}])
    rows = [["12", chat, answer, 0.5], ["12", chat, answer, 1.5]]
    names = ["step", "prompt", "completion", "reward"]
    path = tmp_path / f"completions_12.table.{kind}"
    if kind == "csv":
        pd.DataFrame(rows, columns=names).to_csv(path, index=False)
    else:
        path.write_text(json.dumps({"columns": names, "data": rows}))
    data = read_log(path, Choice())
    assert [row.reward for row in data.steps[12]] == [0.5, 1.5]
    assert data.steps[12][0].prefix == ("so",)
    assert data.steps[12][0].valid
    assert len({row.group for row in data.steps[12]}) == 1


def test_foreign_columns_by_flag(tmp_path):
    table = {"q": ["a", "a"], "answer_text": ["x", "y"], "points": [1, 2], "iter": [3, 3]}
    path = write(tmp_path / "mine.parquet", table)
    columns = parse_columns("prompt=q, completion=answer_text, reward=points, step=iter")
    data = read_log(path, Choice(columns=columns))
    assert [row.reward for row in data.steps[3]] == [1, 2]
    with pytest.raises(UserError, match="no prompt column; columns seen: q, answer_text"):
        read_log(path, Choice())
    with pytest.raises(UserError, match=r"prompt=Q: no such column"):
        read_log(path, Choice(columns={"prompt": "Q"}))
    with pytest.raises(UserError, match=r"unknown role 'promt' \(did you mean 'prompt'"):
        parse_columns("promt=q")
    with pytest.raises(UserError, match="write role=column"):
        parse_columns("prompt")


def test_messages_reasoning_content_and_parts():
    turns = turns_of(
        [
            {"role": "assistant", "reasoning_content": "why", "content": "<answer>Up</answer>"},
            {"role": "tool", "content": "a wall"},
            {"role": "assistant", "content": [{"type": "text", "text": "again"}]},
        ]
    )
    assert turns == ["<think>why</think><answer>Up</answer>", "again"]
    assert reasoning_of(turns).text == "why"
    assert turns_of(None) == []
    assert turns_of([1, 2]) == []
    assert turns_of("[{not a list") == ["[{not a list"]
    assert prompt_key("a") != prompt_key("b")


def test_reasoning_is_read_as_the_environments_read_it():
    for text in ("a</think><answer>Up</answer>", "<think> b </think>", "free text", "<answer>", ""):
        assert reasoning_of([text]).text == parse(text).reasoning


def test_logs_without_tags_take_the_whole_completion(tmp_path):
    data = read_log(write(tmp_path / "a.parquet", BASE | {"reward": [1.0] * 4}), Choice())
    assert {row.valid for row in rows_of(data)} == {None}
    assert data.said[-1].startswith("no think or answer tags")


# ---- broken and odd input ---------------------------------------------------------------------


def test_a_step_that_logs_the_batch_before_it_again_is_left_out(tmp_path):
    table = BASE | {"reward": [1.0, 0, 0, 1]}
    write(tmp_path / "c_1.parquet", table)
    write(tmp_path / "c_2.parquet", table | {"step": [2] * 4})
    write(tmp_path / "c_3.parquet", table | {"step": [3] * 4, "reward": [0.0] * 4})
    data = read_log(tmp_path, Choice())
    assert list(data.steps) == [1, 3]
    assert data.skipped["steps that log the batch of the step before again"] == 1


def test_a_truncated_parquet_file_is_refused_alone_and_skipped_in_a_folder(tmp_path):
    good = write(tmp_path / "c_1.parquet", BASE | {"reward": [1.0, 0, 0, 1]})
    bad = tmp_path / "c_2.parquet"
    bad.write_bytes(good.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"c_2.parquet: not a whole parquet file"):
        read_log(bad, Choice())
    data = read_log(tmp_path, Choice())
    assert len(rows_of(data)) == 4
    assert data.skipped["unreadable files"] == 1


def test_half_written_and_broken_json_lines(tmp_path):
    line = json.dumps({"step": 1, "prompt": "a", "completion": "x", "reward": 1})
    path = tmp_path / "log.jsonl"
    path.write_text(f"{line}\n\n{line}\n" + line[:20])
    assert len(rows_of(read_log(path, Choice()))) == 2
    path.write_text(f"{line}\n{line[:20]}\n{line}\n")
    with pytest.raises(UserError, match="line 2 is not JSON"):
        read_log(path, Choice())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "empty, no columns"),
        ("a.csv", "", "empty, no columns"),
        ("a.json", "{}", "neither a table"),
        ("a.json", "oh", "not JSON"),
        ("a.parquet", "", "not a whole parquet file"),
        ("a.txt", "x", "not a log"),
        ("a.csv", "prompt,completion,reward\n", "empty, no columns"),
        ("a.jsonl", '{"prompt": null, "completion": null, "reward": 1}\n', "no rows to diagnose"),
    ],
)
def test_empty_and_foreign_files_are_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_log(path, Choice())


def test_missing_path_and_empty_folder(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        read_log(tmp_path / "nowhere", Choice())
    with pytest.raises(UserError, match=r"no .parquet, .jsonl, .csv, .json file"):
        read_log(tmp_path, Choice())


def test_rewards_that_are_no_number_leave_the_row_unscored(tmp_path):
    values = ["1.0", "nan", "inf", ""]
    lines = "".join(f"1,p,c{i},{value}\n" for i, value in enumerate(values))
    path = tmp_path / "a.csv"
    path.write_text("step,prompt,completion,reward\n" + lines)
    data = read_log(path, Choice())
    assert [math.isnan(row.reward) for row in rows_of(data)] == [False, True, True, True]
    assert batch_metrics(rows_of(data))["rows_without_score"] == 3


def test_an_output_folder_of_trl_is_read_through_its_completions(tmp_path):
    write(tmp_path / "completions" / "completions_00001.parquet", BASE | {"reward": [1.0, 0, 0, 1]})
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "trainer_state.json").write_text("{}")
    assert len(rows_of(read_log(tmp_path, Choice()))) == 4


def test_tags_and_facts_of_a_log_are_measured_where_there_are_any(tmp_path):
    # Row 0 is sound and names 4, which the prompt has, and 9, which it has not: 1 of 2. Row 1 was
    # opened by its prompt. Row 2 never closes and states no fact. Row 3 has no tag.
    completions = [
        "<think>4 and 9</think><answer>a</answer>",
        "go on</think><answer>b</answer>",
        "<think>on and on",
        "nothing",
    ]
    table = {
        "step": [1] * 4,
        "prompt": ["from 4"] * 4,
        "completion": completions,
        "reward": [0.0, 1.0, 0.0, 1.0],
    }
    (rows,) = read_log(write(tmp_path / "a.parquet", table), Choice()).steps.values()
    metrics = batch_metrics(rows)
    assert metrics["ungrounded_facts"] == 0.5
    assert metrics["think_missing"] == metrics["think_unclosed"] == 0.25
    plain = {**table, "completion": ["a", "b", "c", "d"]}
    (rows,) = read_log(write(tmp_path / "b.parquet", plain), Choice()).steps.values()
    assert "think_missing" not in batch_metrics(rows)
