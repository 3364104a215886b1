"""The run folder.

Guarantees locked here:
1. An existing run is never overwritten without --force; a half-made folder is not a run.
2. Names made automatically never clash; the newest run is found and named.
3. Rows come back equal; NaN becomes null; a torn last line is left out and counted.
4. After truncate_after(step) nothing later than step is left.
5. A newer schema version is refused with both numbers.
"""

import dataclasses
import json
import math
import multiprocessing
import os

import pytest

from ragen2_cli.errors import UserError
from ragen2_cli.records import Episode, Evaluation, Step, Turn
from ragen2_cli.runs import RunDirectory, find


def a_step(number: int, **changes) -> Step:
    values = {
        "step": number,
        "success": 0.25,
        "episode_return": -0.05,
        "groups": 8,
        "kept_groups": 5,
        "dead_groups": 2,
        "reward_std": 0.4,
        "reward_var": 0.16,
        "invalid_rate": 0.03,
        "truncated_rate": 0.0,
        "entropy": 0.2,
        "kl": None,
        "loss": 0.01,
        "grad_norm": 0.1,
        "learning_rate": 1e-3,
        "response_length": 31.5,
        "tokens": 2016,
        "rollout_seconds": 0.36,
        "update_seconds": 0.5,
        "step_seconds": 0.86,
        "extra": {"clip_ratio": 0.0},
    }
    return Step(**(values | changes))


def an_evaluation(step: int) -> Evaluation:
    return Evaluation(step, "sampled", 1.0, 512, 128, 0.25, 0.21, 0.29, 0.2, 0.03, 30.0, 0.2, 4.0)


def an_episode(step: int, group: int, rollout: int, **changes) -> Episode:
    turn = Turn("SFFF\nFHFH", "hole is right, go down", "Down", ("Down",), 0.0, 0.0, True)
    episode = Episode(
        step=step,
        group=group,
        rollout=rollout,
        seed=1000 + group,
        prompt="SFFF\nFHFH",
        turns=(turn, dataclasses.replace(turn, reward=1.0)),
        episode_return=1.0,
        outcome=1.0,
        success=True,
        status="success",
        prompt_ids=(1, 2, 3),
        completion_ids=(4, 5, 6, 7, 8),
        loss_mask=(1, 1, 0, 1, 1),
        turn_spans=((0, 2), (3, 5)),
        advantage=0.5,
        kept=True,
    )
    return dataclasses.replace(episode, **changes)


CONFIG = {"env": {"name": "frozenlake"}, "seed": 7}


def new_run(path, **options) -> RunDirectory:
    run = RunDirectory.create(path, CONFIG, **options)
    run.close()
    return run


# ---- making ----


def test_config_tells_what_the_run_was_made_with(tmp_path):
    run = new_run(tmp_path / "a")
    content = RunDirectory.open(run.path).read_config()
    assert content["config"] == CONFIG
    assert content["seed"] == 7
    assert content["schema_version"] == 1
    assert content["packages"]["trl"].startswith("1.16")
    assert "variance" in content["statistics"]["reward_var"]
    assert "deviation" in content["statistics"]["reward_std"]


def test_existing_run_needs_resume_or_force(tmp_path):
    run = new_run(tmp_path / "a")
    run.append_step(a_step(1))
    with pytest.raises(UserError, match=r"--resume.*--force"):
        RunDirectory.create(run.path, CONFIG)
    assert [step.step for step in run.read_steps()] == [1]


def test_force_replaces_only_what_a_run_writes(tmp_path):
    run = new_run(tmp_path / "a")
    run.append_step(a_step(1))
    run.write_rollouts(1, [an_episode(1, 0, 0)])
    run.write_summary({"best": 1})
    (run.path / "notes.txt").write_text("mine")
    again = new_run(run.path, force=True)
    assert again.read_steps() == []
    assert again.rollout_steps() == []
    assert not again.finished
    assert (run.path / "notes.txt").read_text() == "mine"


def test_force_leaves_no_measurement_of_the_run_it_replaces(tmp_path):
    run = new_run(tmp_path / "a")
    run.append_step(a_step(1))
    run.append_evaluation(an_evaluation(1))
    run.append_diagnostics({"step": 1})
    run.write_rollouts(1, [an_episode(1, 0, 0)])
    for folder in ("gradients", "probes"):
        run.write_json(f"{folder}/step-000001.json", {"step": 1})
    for name in ("adapter", "checkpoints", "figures", "merged"):
        (run.path / name).mkdir()
        (run.path / name / "file").touch()
    (run.path / "critic.safetensors").touch()
    run.write_summary({"steps": 1})
    run.close()
    again = new_run(run.path, force=True)
    assert sorted(os.listdir(run.path)) == [".lock", ".stale-run", "config.json"]
    again.write_rollouts(1, [an_episode(1, 0, 0)])
    assert sorted(os.listdir(run.path)) == [".lock", "config.json", "rollouts"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_replaced_run_is_there_until_its_successor_has_a_step(tmp_path, killed):
    run = new_run(tmp_path / "a")
    run.append_step(a_step(1))
    run.write_rollouts(1, [an_episode(1, 0, 0)])
    run.write_summary({"best": 1})
    run.close()
    if killed:  # a first successor that ended before its first step
        new_run(run.path, force=True).close()
    again = new_run(run.path, force=True)
    again.append_evaluation(an_evaluation(0))
    again.discard()
    again.close()
    assert [step.step for step in run.read_steps()] == [1]
    assert (run.rollout_steps(), run.read_evaluations(), run.finished) == ([1], [], True)
    assert not (run.path / ".stale-run").exists()
    last = new_run(run.path, force=True)
    last.write_rollouts(1, [an_episode(1, 0, 0)])
    last.discard()
    assert not run.path.exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_no_run_is_never_taken(tmp_path, force):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not a run"):
        RunDirectory.create(tmp_path, CONFIG, force=force)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_empty_folder_is_taken_and_a_file_is_not(tmp_path):
    (tmp_path / "empty").mkdir()
    assert new_run(tmp_path / "empty").read_steps() == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        RunDirectory.create(tmp_path / "file", CONFIG)


def test_half_made_folder_is_not_a_run_and_can_be_taken(tmp_path):
    # What a kill between mkdir and config.json leaves: the lock and a temporary file.
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".config.json.tmp").write_text('{"schema_ver')
    with pytest.raises(UserError, match=r"config\.json is missing"):
        RunDirectory.open(folder)
    with pytest.raises(UserError, match=r"config\.json is missing"):
        RunDirectory.create(folder, CONFIG, resume=True)
    assert new_run(folder).read_config()["config"] == CONFIG


def test_unwritable_place_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot create the run folder") as caught:
        RunDirectory.create(tmp_path / "file" / "run", CONFIG)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot create the run folder"):
        RunDirectory.create("/proc/ragen2-run", CONFIG)


def test_automatic_names_are_readable_and_never_clash(tmp_path):
    root = tmp_path / "runs"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        names = pool.starmap(_named, [(root, "frozenlake top-p")] * 12)
    assert len(set(names)) == 12
    today = names[0].split("-")[3]
    assert len(today) == 8
    assert sorted(names) == sorted(f"frozenlake-top-p-{today}-{n}" for n in range(1, 13))


def _named(root, label) -> str:
    return RunDirectory.create(None, CONFIG, label=label, root=root).path.name


def test_one_writer_at_a_time(tmp_path):
    run = RunDirectory.create(tmp_path / "a", CONFIG)
    with pytest.raises(UserError, match="another process is writing"):
        RunDirectory.create(run.path, CONFIG, resume=True)
    run.close()
    RunDirectory.create(run.path, CONFIG, resume=True).close()


def test_newest_is_found_and_said(tmp_path):
    root = tmp_path / "runs"
    for number, name in enumerate(["b", "a"]):
        run = new_run(root / name)
        os.utime(run.path / "config.json", (1000 + number, 1000 + number))
    said: list[str] = []
    assert find(None, said.append, root=root).path == root / "a"
    assert said == [f"reading {root / 'a'} (the newest run)"]
    assert find(root / "b", said.append).path == root / "b"
    assert len(said) == 1
    with pytest.raises(UserError, match="no run under"):
        find(None, said.append, root=tmp_path / "nothing")


# ---- logs ----


def test_rows_come_back_equal(tmp_path):
    run = new_run(tmp_path / "a")
    steps = [a_step(1), a_step(2, success=None, extra={})]
    for step in steps:
        run.append_step(step)
    run.append_evaluation(an_evaluation(0))
    run.append_diagnostics({"step": 2, "mi": 3.1, "text": "a lone \ud800 surrogate"})
    assert run.read_steps() == steps
    assert run.read_evaluations() == [an_evaluation(0)]
    row = run.read_diagnostics()[0]
    assert (row["mi"], row["text"]) == (3.1, "a lone \ud800 surrogate")


def test_the_older_name_of_dead_groups_is_read(tmp_path):
    run = new_run(tmp_path / "a")
    run.append_diagnostics({"step": 1, "dead_share": 0.25})
    run.append_diagnostics({"step": 2, "dead_ratio": 0.5})
    assert [row["dead_ratio"] for row in run.read_diagnostics()] == [0.25, 0.5]
    assert "dead_share" not in run.read_diagnostics()[0]


def test_nan_and_infinity_are_null_in_the_file(tmp_path):
    run = new_run(tmp_path / "a")
    run.append_step(
        a_step(1, loss=math.inf, response_length=math.nan, extra={"x": math.nan, "y": 1.0})
    )
    written = json.loads((run.path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert written["loss"] is None
    assert written["response_length"] is None
    step = run.read_steps()[0]
    assert step.loss is None  # may be None: not computed or not finite
    assert math.isnan(step.response_length)  # must be a number: null is NaN
    assert math.isnan(step.extra["x"])
    assert step.extra["y"] == 1.0


def test_torn_last_line_is_left_out_counted_and_cut_on_append(tmp_path):
    run = new_run(tmp_path / "a")
    for number in (1, 2):
        run.append_step(a_step(number))
    path = run.path / "metrics.jsonl"
    whole = path.read_bytes()
    for cut in (1, 40, len(whole) // 2 - 1):
        path.write_bytes(whole[:-cut])
        assert [step.step for step in run.read_steps()] == [1]
        assert run.torn_lines() == {"metrics.jsonl": 1, "evaluations.jsonl": 0} | {
            "diagnostics.jsonl": 0
        }
    run.append_step(a_step(2))
    assert path.read_bytes() == whole
    assert sum(run.torn_lines().values()) == 0


def test_a_single_torn_line_is_cut_to_an_empty_file(tmp_path):
    run = new_run(tmp_path / "a")
    (run.path / "metrics.jsonl").write_text('{"step": 1, "succ')
    assert run.read_steps() == []
    run.append_step(a_step(1))
    assert run.read_steps() == [a_step(1)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{]", "line 2: not valid JSON"),
        ("[" * 100_000, "line 2: JSON nested too deeply"),
        ("[1]", "line 2: expected a JSON object, found list"),
        ('{"step": 1}', "line 2: no valid 'schema_version'"),
        ('{"schema_version": 9, "step": 1}', r"schema version 9, this release reads up to 1"),
        ('{"schema_version": 1, "step": 2}', "line 2: field 'success'"),
        ('{"schema_version": 1, "step": "x"}', "line 2: 'step' is not an integer"),
        ('{"schema_version": 1, "step": ' + "9" * 5000 + "}", "line 2: not valid JSON"),
    ],
)
def test_damaged_row_in_the_middle_is_named(tmp_path, line, message):
    run = new_run(tmp_path / "a")
    run.append_step(a_step(1))
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    run.append_step(a_step(3))
    with pytest.raises(UserError, match=message) as caught:
        run.read_steps()
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_newer_config_is_refused_with_both_numbers(tmp_path):
    run = new_run(tmp_path / "a")
    path = run.path / "config.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 12'))
    with pytest.raises(UserError, match=r"version 12.* up to 1"):
        RunDirectory.open(run.path)


def test_full_disk_takes_the_torn_line_back(tmp_path, monkeypatch):
    run = new_run(tmp_path / "a")
    run.append_step(a_step(1))
    real = os.write
    calls = []

    def half(descriptor, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real(descriptor, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(UserError, match=r"metrics\.jsonl: No space left.*free some space"):
        run.append_step(a_step(2))
    monkeypatch.undo()
    assert run.read_steps() == [a_step(1)]
    assert run.torn_lines()["metrics.jsonl"] == 0


# ---- resume ----


def test_truncate_after_forgets_later_steps_and_keeps_the_rest(tmp_path):
    run = new_run(tmp_path / "a")
    for number in range(1, 6):
        run.append_step(a_step(number))
        run.write_rollouts(number, [an_episode(number, 0, 0)])
        run.append_diagnostics({"step": number})
        run.write_json(f"gradients/step-{number:06d}.json", {"step": number})
        run.write_json(f"gradients/step-{number:06d}-fresh-kl-0.1.json", {"step": number})
        run.write_json(f"probes/step-{number:06d}.json", {"step": number})
    for number in (0, 3, 5):
        run.append_evaluation(an_evaluation(number))
    (run.path / "checkpoints").mkdir()
    for number in (2, 4):
        (run.path / "checkpoints" / f"step-{number:06d}").mkdir()
    (run.path / "rollouts" / ".step-000006.parquet.tmp").touch()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6')
    run.write_summary({"done": True})
    removed = run.truncate_after(3)
    assert removed == {
        "metrics.jsonl": 2,
        "evaluations.jsonl": 1,
        "diagnostics.jsonl": 2,
        "rollouts": 2,
        "gradients": 4,
        "checkpoints": 1,
        "probes": 2,
    }
    assert [step.step for step in run.read_steps()] == [1, 2, 3]
    assert [row.step for row in run.read_evaluations()] == [0, 3]
    assert run.rollout_steps() == [1, 2, 3]
    assert sorted(os.listdir(run.path / "checkpoints")) == ["step-000002"]
    assert sorted(os.listdir(run.path / "rollouts")) == [
        f"step-00000{n}.parquet" for n in (1, 2, 3)
    ]
    assert not run.finished
    run.append_step(a_step(4))
    assert [step.step for step in run.read_steps()] == [1, 2, 3, 4]
    assert run.truncate_after(4) == {}


def test_runs_do_not_write_through_links(tmp_path):
    run = new_run(tmp_path / "a")
    (tmp_path / "outside").mkdir()
    (run.path / "rollouts").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="is a link"):
        run.write_rollouts(1, [an_episode(1, 0, 0)])
    (tmp_path / "outside" / "step-000009.parquet").touch()
    run.truncate_after(1)
    assert os.listdir(tmp_path / "outside") == ["step-000009.parquet"]


def test_finished_only_with_a_whole_summary(tmp_path):
    run = new_run(tmp_path / "a")
    (run.path / ".summary.json.tmp").write_text('{"best"')
    assert not run.finished
    assert run.read_summary() is None
    run.write_summary({"best": math.nan})
    assert run.finished
    assert run.read_summary() == {"schema_version": 1, "best": None}


def test_deleted_folder_is_a_clear_stop(tmp_path):
    run = new_run(tmp_path / "a")
    for entry in run.path.iterdir():
        entry.unlink()
    run.path.rmdir()
    with pytest.raises(UserError, match=r"cannot append .*removed meanwhile"):
        run.append_step(a_step(1))
    with pytest.raises(UserError, match=r"cannot create .*removed meanwhile"):
        run.write_rollouts(1, [])
