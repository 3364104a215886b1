"""Random and damaged input to every reader and parser: a value or one clear line, never a crash.

Guarantees held here:
1. a completion parses whatever it is, in time linear in its length, and credits nothing but itself;
2. records, logs, configs and checkpoint states round-trip, or are refused with ``UserError``;
3. a file with flipped, cut or inserted bytes is refused or read, never anything else.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragen2_cli.config.load import build_config, load_config, parse_set, read_toml
from ragen2_cli.config.schema import Config
from ragen2_cli.envs.parsing import match_actions, parse, split_actions
from ragen2_cli.errors import UserError
from ragen2_cli.logs import Choice, LogData, read_log
from ragen2_cli.records import Episode, Step, Turn
from ragen2_cli.runs import RunDirectory, jsonl, rollouts
from ragen2_cli.training import checkpoints
from ragen2_cli.training.state_codec import pack, unpack

pytestmark = pytest.mark.slow

BOUNDED = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def attempt(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return the value and no text, or None and what the refusal says."""
    try:
        return call(), ""
    except UserError as error:
        said = str(error)
    assert said
    return None, said


ANY_TEXT = st.text(st.characters(codec=None), max_size=60)  # lone surrogates too
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner), max_leaves=12
)
TAGS = st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "||", " ", "\n"])


@given(st.lists(TAGS | ANY_TEXT, max_size=12).map("".join))
@settings(BOUNDED, max_examples=400)
def test_any_completion_parses(completion: str) -> None:
    parsed = parse(completion)
    assert parsed.reasoning in completion
    assert parsed.answer in completion
    assert not any(tag in parsed.answer for tag in ("<think>", "</think>", "<answer>", "</answer>"))
    if parsed.well_formed:
        assert "</think>" in completion
        assert "<answer>" in completion
    words = split_actions(parsed.answer, 5)
    assert len(words) <= 5
    assert all(word and word == word.strip() for word in words)
    known, unknown = match_actions(words, ("Up", "Down"))
    assert len(known) + len(unknown) == len(words)


def test_a_long_completion_of_tags_is_read_at_once() -> None:
    # 200,000 tags: a parser that looks ahead from each of them would need 10^10 steps.
    assert not parse("<think></think>" * 100_000).well_formed


@given(TREES)
@settings(BOUNDED, max_examples=200)
def test_json_lines_round_trip(value: Any) -> None:
    assert jsonl.loads(jsonl.dumps(value), "here") == jsonl.finite(
        json.loads(json.dumps(value), parse_constant=float)
    )


@given(st.binary(max_size=200) | TREES.map(lambda tree: json.dumps(tree).encode()))
@settings(BOUNDED, max_examples=200)
def test_any_line_is_a_record_or_refused(line: bytes) -> None:
    def read() -> Step:
        row = jsonl.check_version(jsonl.loads(line, "here"), "here")
        return jsonl.record(Step, row, "here")

    step, said = attempt(read)
    assert isinstance(step, Step) or said.startswith("here: ")


STEP = {
    "schema_version": 1,
    **{name: 1 for name in Step.__dataclass_fields__ if name != "extra"},
    "extra": {},
}


@given(st.sampled_from(sorted(STEP)), TREES)
@settings(BOUNDED, max_examples=200)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    row = jsonl.loads(jsonl.dumps({**STEP, field: value}), "here")
    found, said = attempt(lambda: jsonl.record(Step, row, "here"))
    assert isinstance(found, Step) or f"field '{field}" in said


NUMBERS = st.none() | st.floats(allow_nan=False)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
TURNS = st.builds(
    Turn,
    observation=ANY_TEXT,
    reasoning=ANY_TEXT,
    answer=ANY_TEXT,
    actions=st.lists(ANY_TEXT, max_size=3).map(tuple),
    reward=NUMBERS,
    penalty=st.floats(allow_nan=False),
    valid=st.booleans(),
    info=st.just({}),
)
EPISODES = st.builds(
    Episode,
    step=st.integers(0, 2**40),
    group=st.integers(0, 2**40),
    rollout=st.integers(0, 2**40),
    seed=st.integers(0, 2**63 - 1),
    prompt=ANY_TEXT,
    turns=st.lists(TURNS, max_size=3).map(tuple),
    episode_return=NUMBERS,
    outcome=NUMBERS,
    success=st.booleans(),
    status=st.sampled_from(["success", "failure"]) | st.just("success"),
    prompt_ids=IDS,
    completion_ids=IDS,
    loss_mask=st.lists(st.integers(0, 1), max_size=5).map(tuple),
    turn_spans=st.just(((0, 1),)),
    advantage=NUMBERS,
    kept=st.none() | st.booleans(),
    silent=st.booleans(),
)


@given(st.lists(EPISODES, max_size=4))
@BOUNDED
def test_episodes_round_trip(tmp_path: Path, episodes: list[Episode]) -> None:
    path = tmp_path / "step-000001.parquet"
    rollouts.write(path, episodes)
    assert list(rollouts.read(path)) == episodes


def damaged(content: bytes, where: float, kind: str, noise: bytes) -> bytes:
    """Flip, cut or insert bytes at a place given as a share of the length."""
    at = int(where * len(content))
    if kind == "cut":
        return content[:at]
    return content[:at] + noise + content[at + (len(noise) if kind == "flip" else 0) :]


DAMAGE = (
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["flip", "cut", "insert"]),
    st.binary(min_size=1, max_size=8),
)


@pytest.fixture(scope="module")
def rollout_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("parquet") / "step-000001.parquet"
    turn = Turn("o" * 200, "r", "Up", ("Up",), 1.0, 0.0, True, {})
    episode = Episode(
        1, 0, 0, 5, "prompt", (turn,) * 3, 1.0, 1.0, True, "success", (1, 2), (3,), (1,), ((0, 1),),
        0.5, True, False,
    )  # fmt: skip
    rollouts.write(path, [episode] * 40)
    return path.read_bytes()


@given(*DAMAGE)
@settings(BOUNDED, max_examples=150)
def test_a_damaged_rollout_file_is_read_or_refused(
    tmp_path: Path, rollout_bytes: bytes, where: float, kind: str, noise: bytes
) -> None:
    path = tmp_path / "step-000001.parquet"
    path.write_bytes(damaged(rollout_bytes, where, kind, noise))
    read, said = attempt(lambda: list(rollouts.read(path)))
    assert str(path) in said or all(isinstance(episode, Episode) for episode in read)


LOG = [
    {
        "step": 1,
        "prompt": f"p{group}",
        "completion": "<think>a</think><answer>b</answer>",
        "reward": r,
    }
    for group in range(2)
    for r in (0.0, 1.0)
]


@given(st.sampled_from([".jsonl", ".csv", ".json"]), *DAMAGE)
@settings(BOUNDED, max_examples=150)
def test_a_damaged_log_is_read_or_refused(
    tmp_path: Path, suffix: str, where: float, kind: str, noise: bytes
) -> None:
    lines = [json.dumps(row) for row in LOG]
    if suffix == ".csv":
        lines = [",".join(LOG[0]), *(",".join(map(str, row.values())) for row in LOG)]
    text = "[" + ",".join(lines) + "]" if suffix == ".json" else "\n".join(lines) + "\n"
    path = tmp_path / f"log{suffix}"
    path.write_bytes(damaged(text.encode(), where, kind, noise))
    data, said = attempt(lambda: read_log(path, Choice()))
    assert said or isinstance(data, LogData)


@given(st.lists(st.dictionaries(st.sampled_from([*LOG[0], "group", "extra"]), TREES), max_size=5))
@settings(BOUNDED, max_examples=150)
def test_any_rows_of_a_log_are_read_or_refused(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, said = attempt(lambda: read_log(path, Choice()))
    assert said or isinstance(data, LogData)


HUGE = st.sampled_from([10**400, -(10**400), 1e308, True, "True", "1e999"])


@given(st.lists(st.fixed_dictionaries({
    "prompt": st.sampled_from(["a", "b"]), "completion": st.just("x"), "reward": HUGE | SCALARS,
    "first": HUGE, "uid": SCALARS, "split": SCALARS, "advantage": HUGE,
}), min_size=1, max_size=6), st.booleans())  # fmt: skip
@settings(BOUNDED, max_examples=150)
def test_any_numbers_and_ids_are_read_or_refused(
    tmp_path: Path, rows: list[dict[str, Any]], named: bool
) -> None:
    for row in rows if named else ():
        row["total"] = row.pop("reward")
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    choice = Choice(rewards=("total", "first")) if named else Choice()
    data, said = attempt(lambda: read_log(path, choice))
    assert said or all(len(found) for found in data.steps.values())


@given(TREES, TREES)
@settings(BOUNDED, max_examples=150)
def test_any_table_of_json_is_read_or_refused(tmp_path: Path, names: Any, lines: Any) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"columns": names, "data": lines}))
    data, said = attempt(lambda: read_log(path, Choice()))
    assert said or isinstance(data, LogData)


@given(*DAMAGE)
@settings(BOUNDED, max_examples=150)
def test_a_damaged_parquet_log_is_read_or_refused(
    tmp_path: Path, where: float, kind: str, noise: bytes
) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist(LOG * 20), path, compression="none", use_dictionary=False)
    path.write_bytes(damaged(path.read_bytes(), where, kind, noise))
    data, said = attempt(lambda: read_log(path, Choice()))
    assert said or isinstance(data, LogData)


@given(st.dictionaries(st.sampled_from(sorted(Config.model_fields)) | ANY_TEXT, TREES, max_size=3))
@settings(BOUNDED, max_examples=200)
def test_any_settings_are_a_config_or_refused(tree: dict[str, Any]) -> None:
    config, said = attempt(lambda: build_config(tree))
    assert said or build_config(json.loads(config.model_dump_json())) == config


@given(st.binary(max_size=80) | ANY_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(BOUNDED, max_examples=200)
def test_any_toml_file_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    tree, said = attempt(lambda: read_toml(path))
    assert isinstance(tree, dict) or "--config" in said
    config, said = attempt(lambda: load_config(path))
    assert said or isinstance(config, Config)


@given(st.text(max_size=40))
@settings(BOUNDED, max_examples=200)
def test_any_set_option_is_read_or_refused(text: str) -> None:
    tree, said = attempt(lambda: parse_set(text))
    assert isinstance(tree, dict) or "--set" in said


KEYS = st.text(max_size=8) | st.integers()
TENSORS = st.lists(st.floats(width=32), max_size=4).map(torch.tensor)
STATES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=10,
)


def equal(first: Any, second: Any) -> bool:
    """Equality in which NaN equals itself and types count."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(
            first.nan_to_num(7.0), second.nan_to_num(7.0)
        )
    if isinstance(first, float):
        return first == second or (math.isnan(first) and math.isnan(second))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[k], second[k]) for k in first)
    return first == second


@given(STATES)
@settings(BOUNDED, max_examples=200)
def test_states_round_trip(state: Any) -> None:
    packed, tensors = pack(state)
    assert equal(unpack(json.loads(jsonl.dumps(packed)), tensors), state)


@given(TREES | st.dictionaries(st.sampled_from(["$float", "$tuple", "$items", "$tensor"]), TREES))
@settings(BOUNDED, max_examples=200)
def test_any_state_is_unpacked_or_refused(value: Any) -> None:
    plain = jsonl.loads(jsonl.dumps(value), "here")
    unpacked, said = attempt(lambda: (unpack(plain, {}),))
    assert unpacked or "checkpoint state" in said


@given(*DAMAGE)
@BOUNDED
def test_a_damaged_checkpoint_is_never_complete(
    tmp_path: Path, where: float, kind: str, noise: bytes
) -> None:
    root = tmp_path / "checkpoints"
    made = checkpoints.save(root, 1, tensors={"w": torch.arange(8.0)}, state={"x": 1})
    file = made / "state.safetensors"
    whole = file.read_bytes()
    file.write_bytes(damaged(whole, where, kind, noise))
    found, skipped = checkpoints.newest(root)
    if file.read_bytes() == whole:
        assert found == made
    else:
        assert found is None
        assert [name for name, _ in skipped] == ["step-000001"]


@given(st.binary(max_size=300))
@BOUNDED
def test_a_run_with_any_bytes_in_its_logs_is_read_or_refused(tmp_path: Path, noise: bytes) -> None:
    run = RunDirectory.create(tmp_path / "run", {}, force=(tmp_path / "run").exists())
    run.close()
    for name in ("metrics.jsonl", "evaluations.jsonl", "diagnostics.jsonl"):
        (run.path / name).write_bytes(noise)
    for read in (run.read_steps, run.read_evaluations, run.read_diagnostics):
        rows, said = attempt(read)
        assert isinstance(rows, list) or "line" in said
