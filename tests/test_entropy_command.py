"""``analyze entropy`` and its figure on runs and on TRL logs, with eruptions that were planted.

The series: 120 steps, 40 a cycle, a descent of 16 steps, a sharp rise of 4, a slow fall (case 25).
"""

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from log_helpers import log, write
from log_helpers import step as one_step
from ragen2_cli.app import app
from ragen2_cli.commands.diagnosis import Scoring, diagnose_path
from ragen2_cli.commands.entropy import read
from ragen2_cli.core.courses import PatternRates, SpokenTurn
from ragen2_cli.core.regimes import Thresholds
from ragen2_cli.errors import UserError
from ragen2_cli.logs import Choice
from ragen2_cli.logs.courses import read_course
from ragen2_cli.logs.spoken import TagRule, of_row
from ragen2_cli.plots import separation
from ragen2_cli.records import Cell, Turn
from ragen2_cli.sweeps.folder import SweepDirectory
from test_eruption import POINTS, SERIES, T, eruptions
from test_runs import an_episode

LOOP = "I should go right because it is right. " * 4
PLAIN = "The goal lies two steps to the east of me. A hole is north of the goal. "
DUPLICATION = "sentence_duplication"


def entropy_of(step: int) -> float:
    return float(0.3 + eruptions()[step])


def state(folder: Path, values, name: str = "trainer_state.json") -> Path:
    """What TRL writes with a checkpoint, evaluations in between."""
    history = [{"step": i + 1, "entropy": float(v), "loss": 0.0} for i, v in enumerate(values)]
    history.insert(3, {"step": 3, "eval_loss": 1.0})
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(json.dumps({"global_step": len(values), "log_history": history}))
    return file


def completions(folder: Path, text_of) -> None:
    """TRL's completion tables, two rows a step."""
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    for step in range(1, POINTS + 1):
        frame = pd.DataFrame(
            {
                "step": [step] * 2,
                "prompt": [f"The {name} board has 2 holes. <think>" for name in ("left", "right")],
                "completion": [f"{text_of(step)}</think><answer>Up</answer>"] * 2,
                "reward": [0.0, 1.0],
                "advantage": [-1.0, 1.0],
            }
        )
        frame.to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")


def analyze(*words: str):
    done = CliRunner().invoke(app, ["analyze", "entropy", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def trl(tmp_path_factory) -> Path:
    """A TRL output folder: three eruptions; sentences repeat while entropy is above 0.8."""
    folder = tmp_path_factory.mktemp("trl") / "out"
    state(folder / "checkpoint-60", [entropy_of(i) for i in range(60)])
    state(folder / "checkpoint-120", [entropy_of(i) for i in range(POINTS)])
    completions(folder, lambda step: LOOP if entropy_of(step - 1) > 0.8 else PLAIN)
    return folder


def test_a_trl_folder_without_a_model(trl):
    found = json.loads(analyze(str(trl), "--json"))
    assert found["verdict"] == "cyclical eruption"
    assert found["basis"] == "entropy (trainer_state.json)"
    assert found["points"] == POINTS
    assert found["steps"] == [1, POINTS]
    kinds = [phase["kind"] for phase in found["phases"]]
    assert kinds.count("eruption") == 3
    second = [phase for phase in found["phases"] if phase["kind"] == "eruption"][1]
    # The rise of the second cycle takes positions 56 to 60, so steps 57 to 61.
    assert 56 <= second["start"] <= 58
    assert 60 <= second["end"] <= 62
    assert abs(second["period"] - 40) <= 1
    assert second["alarm"] is not None
    assert second["early"] == second["end"] - second["alarm"] >= 0
    row = found["patterns"][DUPLICATION]
    # LOOP says one sentence of 38 characters four times, PLAIN none twice.
    assert row["before"] == 0.0
    assert row["mean_by_kind"]["subsidence"] > 0.3
    assert row["course"] == "falls back"
    # 2 is on the board; the texts name no other number or name.
    assert found["patterns"]["tag_faults"]["mean_by_kind"]["eruption"] == 0.0


def test_what_stays_after_the_eruption_accumulates(trl, tmp_path):
    folder = tmp_path / "out"
    state(folder, [entropy_of(i) for i in range(POINTS)])
    completions(folder, lambda step: LOOP if step > 18 else PLAIN)
    found = json.loads(analyze(str(folder), "--json"))
    assert found["patterns"][DUPLICATION]["course"] == "accumulates"
    text = analyze(str(folder))
    assert "verdict: cyclical eruption" in text
    assert "accumulates" in text
    assert "a live alarm would have fired at step" in text


@pytest.mark.parametrize("verdict", ["stable", "spike", "sustained rise", "collapse"])
def test_a_state_file_alone_has_a_verdict_and_no_patterns(tmp_path, verdict):
    series = SERIES[verdict][0] + 0.02 * np.random.default_rng(1).normal(size=POINTS)
    found = json.loads(analyze(str(state(tmp_path, series)), "--json"))
    assert found["verdict"] == verdict
    assert found["patterns"] == {}
    assert any("patterns are not counted" in said for said in found["said"])


def test_tables_of_other_tools(tmp_path):
    # A W&B export: the run's name before each column, a step without entropy in between.
    lines = ["Step,demo - train/entropy,demo - train/entropy__MIN"]
    lines += [f"{i},{entropy_of(i) if i % 10 else ''},0" for i in range(POINTS)]
    (tmp_path / "wandb.csv").write_text("\n".join(lines))
    found = json.loads(analyze(str(tmp_path / "wandb.csv"), "--json"))
    assert found["verdict"] == "cyclical eruption"
    assert (found["points"], found["missing"]) == (108, 12)
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({"step": i, "H": entropy_of(i)}) + "\n" for i in range(60)))
    found = json.loads(analyze(str(own), "--entropy", "H", "--json"))
    assert found["verdict"] == "spike"
    with pytest.raises(UserError, match=r"no table with that column.*columns seen: step, H"):
        read_course(own, Choice(), entropy="h2")


def test_other_runs_of_an_export_are_named(tmp_path):
    names = ["a - train/entropy", "b - train/entropy", "b - train/entropy__MAX"]
    lines = [",".join(["Step", *names]), *(f"{i},{entropy_of(i)},1,1" for i in range(POINTS))]
    path = tmp_path / "wandb.csv"
    path.write_text("\n".join(lines))
    found = json.loads(analyze(str(path), "--json"))
    assert found["verdict"] == "cyclical eruption"
    assert "not read: b - train/entropy (--entropy NAME chooses)" in found["said"]
    found = json.loads(analyze(str(path), "--entropy", "b - train/entropy", "--json"))
    assert found["verdict"] == "stable"
    assert not any("not read" in said for said in found["said"])


def test_a_table_that_ends_early_is_refused_alone_and_used_in_a_folder(tmp_path):
    lines = [json.dumps({"step": i, "entropy": entropy_of(i)}) for i in range(POINTS)]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([*lines, "{oh", ""]))
    with pytest.raises(UserError, match=r"log.jsonl: line 121 is not JSON"):
        read_course(path, Choice())
    course = read_course(tmp_path, Choice())
    assert len(course.entropy) == POINTS
    assert "log.jsonl: line 121 is not JSON; rows before it are used" in course.said


def test_a_sweep_without_a_finished_cell_is_one_line(tmp_path):
    record = log()
    cell = Cell("a", {}, 0, record.config, "planned")
    SweepDirectory.create(tmp_path / "sweep", [cell]).close()
    with pytest.raises(UserError, match="no cell of this sweep has finished yet"):
        read([tmp_path / "sweep"])


def test_texts_alone_give_the_entropy_of_the_first_words(tmp_path):
    folder = tmp_path / "out"
    completions(folder, lambda step: f"{PLAIN} Step {step}.")  # a batch logged again is dropped
    course = read_course(folder, Choice())
    assert "texts alone" in course.basis
    assert set(course.entropy) == {0.0}
    assert json.loads(analyze(str(folder), "--json"))["verdict"] == "stable"
    assert "first fifth" in analyze(str(folder))  # without an eruption: how the rates went


def test_one_of_our_runs(tmp_path):
    record = log()
    steps = [one_step(i + 1, entropy=entropy_of(i)) for i in range(POINTS)]
    run = write(tmp_path / "run", replace(record, steps=tuple(steps)))
    for step in (10, 20, 60, 100, 118):
        said = LOOP if entropy_of(step - 1) > 0.8 else PLAIN
        turn = Turn("A board", said, "Up", ("Up",), 0.0, 0.0, True)
        silent = replace(turn, answer="")
        run.write_rollouts(step, [an_episode(step, 0, 0, turns=(turn, silent))])
    found = json.loads(analyze(str(run.path), "--json"))
    # Five measured steps: a fifth is one of them, and only steps 10 and 118 are plain.
    assert found["patterns"][DUPLICATION]["first"] == found["patterns"][DUPLICATION]["last"] == 0.0
    assert found["verdict"] == "cyclical eruption"
    # Steps 20, 60 and 100 are just below a top; of two turns one has no answer.
    assert found["patterns"][DUPLICATION]["during"] > 0.5
    assert found["patterns"]["tag_faults"]["before"] == 0.5
    # What names columns is for logs; beside a log a run is read all the same.
    for option in ({"columns": "prompt=p"}, {"entropy": "e"}):
        with pytest.raises(UserError, match=f"--{next(iter(option))} is for logs; .* is a run"):
            read([run.path], **option)
    (tmp_path / "wandb.csv").write_text("step,e\n1,0.5\n2,0.6\n")
    assert len(read([run.path, tmp_path / "wandb.csv"], entropy="e")) == 2


def test_separation_is_drawn_where_it_was_measured(tmp_path):
    names = ("within_correct", "within_incorrect", "across", "contrast")
    steps = [one_step(n, extra={f"separation/{name}": -0.1 * n for name in names}) for n in (1, 2)]
    measured = replace(log(), steps=tuple(steps))
    rows = separation.data([measured])
    assert {row["quantity"] for row in rows} == set(names)
    # Trailing mean at step 2: (-0.1 - 0.2) / 2.
    assert rows[1]["median"] == pytest.approx(-0.15)
    write(tmp_path / "run", measured)
    done = CliRunner().invoke(app, ["plot", "separation", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert separation.data([log()]) == []


def test_nothing_to_read_is_one_line(tmp_path):
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="no entropy was found, and no texts"):
        read_course(tmp_path, Choice())
    with pytest.raises(UserError, match="no such file"):
        read_course(tmp_path / "none", Choice())
    (tmp_path / "trainer_state.json").write_text("[]")
    with pytest.raises(UserError, match="not a trainer state"):
        read_course(tmp_path / "trainer_state.json", Choice())


def test_csv_and_figure(trl, tmp_path):
    analyze(str(trl), "--csv", str(tmp_path / "e.csv"))
    rows = list(csv.DictReader((tmp_path / "e.csv").open()))
    assert len(rows) == POINTS
    assert {row["phase"] for row in rows} >= {"descent", "eruption", "subsidence"}
    assert float(rows[0][DUPLICATION]) == 0.0
    done = CliRunner().invoke(app, ["plot", "entropy", str(trl), "-o", str(tmp_path / "e.png")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "e.png").stat().st_size > 10_000


def test_what_was_drawn_into_a_log_is_no_part_of_it(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    for step in range(1, 13):
        rows = [
            {"input": f"board {i // 2}", "output": f"<think>go {i} {step}</think>", "score": i % 2}
            for i in range(4)
        ]
        (logs / f"rollouts_{step}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    shown = ("steps", "verdict", "said", "skipped", "rows_read")

    def told() -> dict:
        report = asdict(diagnose_path(logs, Choice(), Scoring(), Thresholds()))
        return {name: report[name] for name in shown}

    before = told()
    result = CliRunner().invoke(app, ["plot", "entropy", str(logs)])
    assert result.stdout.split() == [str(logs / "figures" / "entropy.png")], result.output
    assert told() == before
    # Written elsewhere in the folder, its table and its JSON are left out with a word.
    for options in (["-o", str(logs / "mine.png")], ["-o", f"{logs / 'more'}/"]):
        assert CliRunner().invoke(app, ["plot", "entropy", str(logs), *options]).exit_code == 0
    after = told()
    assert after["steps"] == before["steps"]
    assert after["skipped"] == {"files without completions": 2, "unreadable files": 2}


def test_a_figure_of_a_file_lies_beside_it(tmp_path, monkeypatch):
    # -o: a folder that is there or ends with a slash, or a file, whose suffix may be missing.
    table = tmp_path / "wandb.csv"
    lines = [f"{step},{entropy_of(step)}" for step in range(1, 61)]
    table.write_text("\n".join(["step,entropy", *lines]))
    (tmp_path / "a.b").mkdir()
    monkeypatch.chdir(tmp_path)
    places = {
        None: table.parent / "figures" / "entropy.png",
        ".": Path("entropy.png"),
        "a.b": Path("a.b/entropy.png"),
        "new/": Path("new/entropy.png"),
        "some/plain": Path("some/plain.png"),
        "x.svg": Path("x.svg"),
    }
    for out, file in places.items():
        options = [] if out is None else ["-o", out]
        result = CliRunner().invoke(app, ["plot", "entropy", str(table), *options])
        assert result.stdout.split() == [str(file)], result.output
        assert file.is_file()


def test_rates_by_hand():
    rates = PatternRates()
    rates.add(
        [
            # Facts 2 and 3: 2 was shown, 3 was not: 1/2. Words: "Two" is no number.
            SpokenTurn("2 holes", "There are 2 holes and 3 goals.", False),
            # 3 was said in the turn before: 0/1. Tags broken.
            SpokenTurn("You moved.", "Now 3 goals.", True),
        ]
    )
    means = rates.means()
    assert means["ungrounded_facts"] == pytest.approx(0.25)
    assert means["tag_faults"] == pytest.approx(0.5)
    # 7 words, all different; 3 words, all different.
    assert means["repeated_words"] == 0.0
    assert means[DUPLICATION] == 0.0
    assert PatternRates().means()[DUPLICATION] is None


def test_tags_are_judged_by_how_the_log_uses_them():
    opened = TagRule(["a</think><answer>Up</answer>"])
    assert opened.fault("cut off") is True
    assert opened.fault("a</think>b") is False
    assert opened.fault("<think>a</think>b") is False
    assert TagRule(["plain text"]).fault("plain") is None
    assert TagRule(["<think>a</think>b"]).fault("b") is True


def test_tool_messages_come_before_the_turn_they_answer():
    conversation = [
        {"role": "assistant", "content": "<think>look</think><answer>a</answer>"},
        {"role": "tool", "content": "7 items"},
        {"role": "assistant", "content": "<think>7 of them</think><answer>b</answer>"},
    ]
    first, second = of_row([{"role": "user", "content": "count"}], conversation, TagRule([]))
    assert (first.before, first.reasoning) == ("count", "look")
    assert (second.before.strip(), second.reasoning) == ("7 items", "7 of them")


def test_the_series_has_its_shape():
    assert entropy_of(0) == pytest.approx(0.7)
    assert entropy_of(20) == pytest.approx(1.3)
    assert T.size == POINTS
