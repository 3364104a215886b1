"""The three doors of the diagnosis (live, run folder, foreign log), the command, its live view."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from planted import Planted, sample, tokenizer, trl_rows
from ragen2_cli.commands import diagnosis
from ragen2_cli.commands.diagnose import diagnose
from ragen2_cli.commands.diagnosis import Scoring, diagnose_path
from ragen2_cli.commands.watch import (
    View,
    _screen,
    look,
    look_at,
    sparkline,
    summary,
    watch_run,
)
from ragen2_cli.config.load import build_config
from ragen2_cli.core.regimes import CollapseWatch, Thresholds
from ragen2_cli.errors import UserError
from ragen2_cli.logs import Choice, read_log, texts_of_step
from ragen2_cli.plots.regimes import draw
from ragen2_cli.records import Cell, Evaluation, Step
from ragen2_cli.runs import RunDirectory
from ragen2_cli.sweeps.folder import SweepDirectory
from ragen2_cli.training.diagnostics import measure
from ragen2_cli.training.log_scoring import measure_texts
from tiny_trl import saved_model, tiny_model, tiny_tokenizer

torch.set_num_threads(1)
STEPS = range(1, 7)
APP = typer.Typer(rich_markup_mode=None)
APP.command()(diagnose)

SECTION_4 = (
    *("rows", "groups", "prompts", "reward_mean", "reward_std", "dead_groups", "dead_ratio"),
    *("reward_f_ratio", "reward_f_pvalue", "prefix_mi", "prefix_mi_zscore"),
    *("prefix_conditional_entropy", "unique_prefix_rate", "reasoning_words", "valid_reasoning"),
    *("sentence_duplication", "repeated_5gram_mass", "unique_token_ratio"),
)
SECTION_3 = (
    *("mi_estimate", "mi_seq_estimate", "mi_zscore", "mi_zscore_seq", "retrieval_accuracy"),
    *("retrieval_chance", "conditional_entropy", "reasoning_entropy", "marginal_std"),
    *("mi_zscore_ema", "mi_zscore_ema_seq", "reasonings", "columns"),
)


def planted_batches():
    """A policy that depends on its prompt for half of the run, then a template of equal entropy."""
    return {step: (Planted(step <= 3), sample(step <= 3, step=step)) for step in STEPS}


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    """The same planted collapse as live rows, as a run folder and as a TRL log."""
    folder = tmp_path_factory.mktemp("doors")
    batches = planted_batches()
    watch = CollapseWatch()
    live = [
        watch.update(measure(model, tokenizer(), episodes, step=step))
        for step, (model, episodes) in batches.items()
    ]
    run = RunDirectory.create(folder / "run", {})
    for row, (step, (_, episodes)) in zip(live, batches.items(), strict=True):
        run.write_rollouts(step, episodes)
        run.append_diagnostics(row)
    run.close()
    table = [trl_rows(episodes) for _, episodes in batches.values()]
    joined = {name: [value for part in table for value in part[name]] for name in table[0]}
    joined["prompt"] = [f"{prompt} <think>" for prompt in joined["prompt"]]
    pq.write_table(pa.table(joined), folder / "completions.parquet")
    return SimpleNamespace(live=live, run=run.path, log=folder / "completions.parquet")


def with_policy(monkeypatch, path):
    """Cross-score each step with the policy that sampled it."""

    def scored(path, data, choice, scoring, *, own_run, say):
        rows = []
        for step in STEPS:
            policy = SimpleNamespace(model=Planted(step <= 3), tokenizer=tokenizer(), notes=())
            monkeypatch.setattr(diagnosis, "_load", lambda *a, policy=policy, **k: policy)
            one = Scoring(model="planted", steps=(step,))
            rows += real(path, data, choice, one, own_run=own_run, say=say)
        return rows

    real = diagnosis._scored
    monkeypatch.setattr(diagnosis, "_scored", scored)
    return diagnose_path(path, Choice(), Scoring(model="planted"), Thresholds())


def same(rows, live, names, tolerance):
    for mine, theirs in zip(rows, live, strict=True):
        for name in names:
            assert mine[name] == pytest.approx(theirs[name], abs=tolerance), (mine["step"], name)


def test_live_door_sees_the_planted_collapse_in_information_not_in_entropy(doors):
    first, last = doors.live[0], doors.live[-1]
    assert last["mi_estimate"] < 0.05 < 0.15 < first["mi_estimate"]
    assert last["conditional_entropy"] == pytest.approx(first["conditional_entropy"], abs=0.01)
    assert last["regime"] == "template collapse"
    assert any("losing its prompt" in text for row in doors.live for text in row["warnings"]) or (
        doors.live[3]["regime"] == "template collapse"
    )


@pytest.mark.parametrize("door", ["run", "log"])
def test_doors_without_a_model_agree_and_see_it(doors, door):
    report = diagnose_path(getattr(doors, door), Choice(), Scoring(), Thresholds())
    same(report.steps, doors.live, SECTION_4, 1e-6)
    assert report.verdict["regime"] == "template collapse"
    assert report.verdict["basis"] == ("cross-scoring" if door == "run" else "text")
    if door == "run":  # what the run measured itself
        same(report.steps, doors.live, SECTION_3, 0)


@pytest.mark.parametrize("door", ["run", "log"])
def test_doors_with_the_policy_agree_and_see_it(doors, door, monkeypatch):
    report = with_policy(monkeypatch, getattr(doors, door))
    same(report.steps, doors.live, SECTION_4, 1e-6)
    same(report.steps, doors.live, SECTION_3, 1e-4)
    assert report.verdict["regime"] == "template collapse"
    assert report.verdict["basis"] == "cross-scoring"
    assert report.verdict["entropy"]["value"] == pytest.approx(np.log(8), abs=0.01)


# ---- the command ------------------------------------------------------------------------------


def invoke(*arguments):
    result = CliRunner().invoke(APP, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_text_names_the_verdict_its_numbers_and_a_command(doors):
    out = invoke(doors.run, "--quiet").stdout
    assert "verdict: template collapse  (cross-scoring, 6 measurements, n = 64" in out
    assert "below 50%" in out
    assert "retrieval 0.1" in out
    assert "Small negative information is noise" in out
    assert "ragen2 train --filter top-p" in out
    assert "\x1b" not in out


def test_json_is_the_only_output_and_csv_and_plot_are_written(doors, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "TkAgg")
    monkeypatch.delenv("DISPLAY", raising=False)
    png, table = tmp_path / "plane.png", tmp_path / "steps.csv"
    result = invoke(doors.log, "--json", "--plot", png, "--csv", table)
    report = json.loads(result.stdout)
    assert report["verdict"]["regime"] == "template collapse"
    assert [row["step"] for row in report["steps"]] == list(STEPS)
    assert report["thresholds"]["share"] == 0.5
    assert png.read_bytes().startswith(b"\x89PNG")
    lines = table.read_text().splitlines()
    assert lines[0].startswith("step,rows,groups,prompts")
    assert len(lines) == 7


def test_csv_and_plot_make_their_folders_and_say_what_was_written(doors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(doors.log, "--csv", "new/m.csv", "--plot", "deep/plane")
    assert result.stderr.splitlines()[-2:] == ["wrote new/m.csv", "wrote deep/plane.png"]
    assert (tmp_path / "deep" / "plane.png").is_file()
    assert "wrote deep/regimes.png" in invoke(doors.log, "--plot", "deep").stderr
    head = (tmp_path / "new" / "m.csv").read_text().splitlines()[0].split(",")
    assert "dead_ratio" in head
    assert "dead_share" not in head


def test_plot_without_data_says_so():
    figure = draw([], {"basis": "text", "regime": "not enough data", "rows": 0})
    assert [text.get_text() for text in figure.axes[0].texts] == ["no data"]
    assert not figure.axes[0].lines


def test_plot_puts_each_measurement_where_it_is(doors):
    report = diagnose_path(doors.run, Choice(), Scoring(), Thresholds())
    figure = draw(report.steps, report.verdict)
    offsets = figure.axes[0].collections[0].get_offsets()
    assert offsets.shape == (6, 2)
    assert offsets[0][1] == pytest.approx(doors.live[0]["mi_estimate"])


def test_one_prompt_is_not_enough_data(tmp_path):
    rows = trl_rows([episode for episode in sample(True) if episode.group == 0])
    path = tmp_path / "one.parquet"
    pq.write_table(pa.table(rows), path)
    out = invoke(path, "--quiet").stdout
    assert "verdict: not enough data" in out
    assert "one prompt only" in out


def test_markup_in_paths_and_columns_is_shown_literally(tmp_path):
    path = tmp_path / "[red]x.jsonl"
    row = {"prompt": "a", "completion": "[/] list[int]", "[bold]reward": 1}
    path.write_text(json.dumps(row) + "\n")
    out = invoke(path, "--quiet", "--reward", "[bold]reward").stdout
    assert "[red]x.jsonl: 1 row," in out
    assert "reward = [bold]reward (as told)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "trian"], r"--mode trian \(did you mean 'train'"),
        (["--sampling", "x"], "--sampling x: use first-turn, trajectory"),
        (["--reward-weights", "a"], "'a' is not a number"),
        (["--watch", "--json", "--low-share", "0.5"], "takes no --low-share, --json"),
        (["--plot", "x.foo"], "--plot x.foo: Format 'foo' is not supported"),
        (["--checkpoint", "5"], "--checkpoint goes with a run folder"),
        (["--model", "embedded", "--step", "99"], "--step 99: not in the log; it has steps 1, 2"),
        (["--model", "x", "--sampling", "trajectory"], "--sampling trajectory is for runs"),
    ],
)
def test_wrong_use_is_one_line(doors, arguments, message):
    with pytest.raises(UserError, match=message):
        invoke(doors.log, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--adapter", "x"], "--adapter goes with --model"),
        (["--adapter", "x", "--checkpoint", "0"], "--adapter goes with --model"),
        (["--checkpoint", "0", "--model", "x"], "--checkpoint and --model name two policies"),
        (["--step", "3"], "--step needs --model or --checkpoint"),
        (["--samples", "64"], "--samples needs"),
        (["--sampling", "trajectory"], "--sampling needs"),
        (["--marginal", "sequence"], "--marginal needs"),
        (["--device", "cpu"], "--device needs"),
        (["--columns", "prompt=p"], "--columns is for logs; .* is a run"),
        (["--reward", "r"], "--reward is for logs"),
        (["--reward-weights", "1"], "--reward-weights is for logs"),
        (["--group-size", "8"], "--group-size is for logs"),
        (["--mode", "train"], "--mode is for logs"),
    ],
)
def test_options_of_a_run_that_nothing_would_read_are_refused(doors, arguments, message):
    with pytest.raises(UserError, match=message):
        invoke(doors.run, *arguments)


def test_the_device_reaches_the_policy_of_a_run(tmp_path):
    # `cuda:99` is on no machine, so the refusal shows who was asked.
    run = RunDirectory.create(tmp_path / "run", build_config({}).model_dump(mode="json"))
    run.write_rollouts(1, planted_batches()[1][1])
    (run.path / "adapter").mkdir()
    run.write_summary({"steps": 1})
    run.close()
    with pytest.raises(UserError, match="--device cuda:99: not on this machine"):
        invoke(run.path, "--checkpoint", "0", "--device", "cuda:99")


OPENING = "Okay, so I need to figure out how to "


@pytest.mark.parametrize("opening", [OPENING, ""])
def test_healthy_texts_that_name_their_prompt_late_are_no_collapse(tmp_path, opening):
    # The same ten words, or eight drawn freely, and then the prompt: the first 8 tell nothing.
    rng = np.random.default_rng(0)
    lines = [
        {"step": step, "prompt": f"p{i // 8}", "reward": float(i % 2),
         "completion": opening + " ".join(f"w{w}" for w in rng.integers(0, 9, 8)) + f" p{i // 8}"}
        for step in range(1, 7)
        for i in range(64)
    ]  # fmt: skip
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = diagnose_path(path, Choice(), Scoring(), Thresholds()).verdict
    assert verdict["regime"] == "not enough data"
    assert "at chance level from the start" in verdict["reasons"][0]
    assert verdict["next_step"].startswith(f"ragen2 diagnose {path} --model NAME")


def test_a_sharp_fall_in_length_and_dead_groups_are_warned_about(tmp_path):
    lines = [
        {"step": step, "prompt": f"p{i // 4}", "completion": "word " * (40 if step < 3 else 5),
         "reward": 1.0}
        for step in range(1, 5)
        for i in range(16)
    ]  # fmt: skip
    for number, line in enumerate(lines):
        line["completion"] += str(number)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = diagnose_path(path, Choice(), Scoring(), Thresholds())
    assert any("fell sharply, 41.0 to 6.0 words" in text for text in report.warnings)
    assert any("100% of the groups are dead" in text for text in report.warnings)


def test_a_log_is_cross_scored_with_a_model_from_a_folder(tmp_path):
    folder = saved_model(tmp_path / "model")
    lines = [
        {
            "step": step,
            "prompt": [{"role": "user", "content": f"w{i // 4}"}],
            "completion": [{"role": "assistant", "content": f"w{i} w{i + step} w5"}],
            "reward": float(i % 2),
        }
        for step in (1, 2)
        for i in range(16)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = invoke(path, "--model", folder, "--samples", "12", "--device", "cpu", "--json")
    report = json.loads(result.stdout)
    data = read_log(path, Choice())
    for row in report["steps"]:
        step = row["step"]
        expected = measure_texts(
            tiny_model(), tiny_tokenizer(), data.steps[step], texts_of_step(path, Choice(), step),
            step=step, samples=12,
        )  # fmt: skip
        assert (row["reasonings"], row["columns"]) == (12, 4)
        for name in ("mi_estimate", "conditional_entropy", "retrieval_accuracy"):
            assert row[name] == pytest.approx(expected[name], abs=1e-5)


# ---- the live view ----------------------------------------------------------------------------


def a_step(step, **changes):
    values = {
        "step": step, "success": 0.1 * step, "episode_return": 0.1, "groups": 8, "kept_groups": 6,
        "dead_groups": 2, "reward_std": 0.3, "reward_var": 0.1, "invalid_rate": 0.05,
        "truncated_rate": 0.0, "entropy": 1.5, "kl": None, "loss": 0.0, "grad_norm": 1.0,
        "learning_rate": 1e-3, "response_length": 20.0, "tokens": 100, "rollout_seconds": 1.0,
        "update_seconds": 1.0, "step_seconds": 2.0,
    }  # fmt: skip
    return Step(**(values | changes))


def test_the_view_follows_a_run_from_nothing_to_its_end(tmp_path, capsys):
    path = tmp_path / "run"
    assert "no run at" in look(path).problem
    run = RunDirectory.create(path, {})
    assert look(path).steps == []
    for step in (1, 2):
        run.append_step(a_step(step))
    run.append_diagnostics({"step": 1, "mi_zscore": 2.5, "conditional_entropy": 1.2})
    with (path / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 3, "succ')  # the writer is in the middle of a line
    view = look(path)
    assert [row.step for row in view.steps] == [1, 2]
    shown = {name: (value, history) for name, value, history in summary(view)}
    assert shown["training success"] == ("20.0%", "▁█")
    assert shown["MI-ZScore"][0] == "2.5"
    assert shown["kept groups"][0] == "75%"
    assert shown["dead groups"][0] == "25%"
    watch_run(path, looks=1)
    out = capsys.readouterr().out
    assert out.startswith("step 2: training success 20.0%")
    assert "verdict: not enough data" in out


def test_the_view_ends_with_the_run_and_survives_a_restart(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ragen2_cli.commands.watch.REFRESH_SECONDS", 0.0)
    path = tmp_path / "run"
    run = RunDirectory.create(path, {})
    for step in (1, 2, 3):
        run.append_step(a_step(step))
    run.truncate_after(1)  # a crash, and a resume that redoes steps 2 and 3
    assert [row.step for row in look(path).steps] == [1]
    run.append_step(a_step(2, success=0.9))
    run.append_evaluation(
        Evaluation(2, "sampled", 1.0, 64, 32, 0.5, 0.38, 0.62, 0.5, 0.0, 20.0, 1.5, 1.0)
    )
    run.write_summary({})
    watch_run(path)  # returns because the run is finished
    out = capsys.readouterr().out
    assert "step 2: training success 90.0%" in out
    assert "held-out success 50.0%" in out


def test_the_screen_shows_everything_literally(tmp_path):
    view = View(
        steps=[a_step(1), a_step(2)],
        diagnostics=[{"step": 1, "mi_zscore": 2.5, "warnings": ["[bold]a warning"]}],
        problem="[red]half a file",
    )
    console = Console(record=True, width=120, force_terminal=True, file=io.StringIO())
    console.print(_screen(tmp_path / "[run]", view))
    text = console.export_text()
    assert "[run]" in text
    assert "waiting: [red]half a file" in text
    assert "warning: [bold]a warning" in text
    assert "training success" in text


def test_a_sweep_is_watched_side_by_side(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ragen2_cli.commands.watch.REFRESH_SECONDS", 0.0)
    cells = [
        Cell(f"filter-{name}", {"filter": name}, 0, {"filter": {"strategy": name}}, "planned")
        for name in ("none", "top-p")
    ]
    sweep = SweepDirectory.create(tmp_path / "sweep", cells)
    seen, ended = look_at(sweep.path)
    assert [view.problem for view in seen.values()] == ["planned", "planned"]
    assert not ended
    for cell, success in zip(cells, (0.25, 0.75), strict=True):
        run = RunDirectory.create(sweep.run_path(cell), {})
        run.append_step(a_step(1, success=success))
        run.write_summary({})
        sweep.record(cell, status="done")
    watch_run(sweep.path)  # returns because every cell has ended
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("filter none, seed 0: step 1: training success 25.0%")
    assert lines[1].startswith("filter top-p, seed 0: step 1: training success 75.0%")


def test_of_a_large_sweep_the_cells_under_way_are_watched(tmp_path):
    cells = [Cell(f"seed-{seed}", {}, seed, {"seed": seed}, "planned") for seed in range(6)]
    sweep = SweepDirectory.create(tmp_path / "sweep", cells)
    sweep.record(cells[2], status="running")
    assert list(look_at(sweep.path)[0]) == ["seed 2"]


def test_sparkline():
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([2.0, 2.0, 2.0]) == "▄▄▄"
    assert len(sparkline(list(range(100)))) == 40
