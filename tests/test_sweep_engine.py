"""Sweeps survive what happens to their workers.

The workers here are a small script that speaks the same lines without training, so that every end
of a cell can be provoked; one slow test runs the real thing.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from ragen2_cli.commands.sweep import sweep as sweep_command
from ragen2_cli.errors import UserError
from ragen2_cli.records import Evaluation
from ragen2_cli.runs import RunDirectory
from ragen2_cli.sweeps import worker, workers
from ragen2_cli.sweeps.engine import run_sweep
from ragen2_cli.sweeps.folder import SweepDirectory
from ragen2_cli.sweeps.plan import plan
from ragen2_cli.sweeps.progress import SilentSweep, SweepLines
from ragen2_cli.sweeps.summary import summarize, table

FAKE = """
import json, os, signal, sys
from pathlib import Path
from ragen2_cli.runs import RunDirectory
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    act, status, reason = task["config"]["env"]["name"], "done", ""
    with open(os.environ["TRACE"], "a") as trace:
        trace.write(f"{os.getpid()} {task['cell']}\\n")
    if act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if act == "crash":
        raise RuntimeError("a bug")
    if act == "refuse":
        status, reason = "failed", "no such board"
    else:
        run = RunDirectory.create(Path(task["out"]), task["config"], force=True)
        run.write_summary({"stopped": None, "kept_ratio": 0.5, "tokens": 7, "seconds": 1.0})
        run.close()
    answer = {"cell": task["cell"], "status": status, "reason": reason, "seconds": 0.1}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the workers by the script; return the file where it says what it was given."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    monkeypatch.setattr(workers, "COMMAND", (sys.executable, str(script)))
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    return tmp_path / "trace"


def sweep_of(folder: Path, acts: str, seeds: str = "2") -> SweepDirectory:
    return SweepDirectory.create(folder, plan({"env": acts}, [], seeds))


def run(sweep: SweepDirectory, workers: int = 1, retry: bool = False):
    outcome = run_sweep(sweep, workers=workers, retry=retry, progress=SilentSweep())
    sweep.close()
    return outcome


def given(trace: Path) -> list[str]:
    return [line.split()[1] for line in trace.read_text().splitlines()]


def test_a_dead_worker_costs_its_cell_and_nothing_else(tmp_path: Path, trace: Path) -> None:
    sweep = sweep_of(tmp_path / "s", "kill,crash,refuse,good", "1")
    outcome = run(sweep)
    assert (outcome.done, outcome.failed, outcome.open, outcome.ran) == (1, 3, 0, 1)
    reasons = {cell.labels["env"]: cell.reason for cell in sweep.cells.values()}
    assert "SIGKILL" in reasons["kill"]
    assert "RuntimeError: a bug" in reasons["crash"]
    assert reasons["refuse"] == "no such board"
    assert reasons["good"] == ""


def test_json_tells_the_table_and_what_failed(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended:
        sweep_command(env="good,refuse", seeds="1", out=tmp_path / "s", json_=True)
    assert ended.value.exit_code == 4
    told = json.loads(capsys.readouterr().out)
    assert told["cells"] == {"done": 1, "failed": 1, "open": 0, "ran": 1}
    assert told["failed"] == [
        {
            "name": "env-refuse_seed-0",
            "labels": {"env": "refuse"},
            "seed": 0,
            "reason": "no such board",
        }
    ]
    (arm,) = told["arms"]
    # The script evaluates nothing: no number, which JSON writes as null.
    assert arm["success"]["estimate"] is None
    assert (arm["success"]["n"], arm["labels"]) == (0, {"env": "good"})


def test_a_dry_run_lists_cells_as_names_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    sweep_command(kl="0,0.1", seeds="1", dry_run=True)
    assert capsys.readouterr().out.split() == ["kl-0_seed-0", "kl-0.1_seed-0"]
    sweep_command(kl="0,0.1", seeds="1", dry_run=True, json_=True)
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["labels"], cell["config"]["algorithm"]["kl"]) for cell in cells] == [
        ({"kl": "0"}, 0.0),
        ({"kl": "0.1"}, 0.1),
    ]


def test_workers_stay_warm_between_cells(tmp_path: Path, trace: Path) -> None:
    run(sweep_of(tmp_path / "s", "good,fine", "3"), workers=2)
    processes = {line.split()[0] for line in trace.read_text().splitlines()}
    assert len(given(trace)) == 6
    assert 1 <= len(processes) <= 2


def test_finished_cells_are_skipped_and_failed_ones_wait_for_retry(
    tmp_path: Path, trace: Path
) -> None:
    run(sweep_of(tmp_path / "s", "good,refuse", "1"))
    assert run(sweep_of(tmp_path / "s", "good,refuse", "1")).ran == 0
    assert len(given(trace)) == 2
    again = run(sweep_of(tmp_path / "s", "good,refuse", "1"), retry=True)
    assert (again.ran, again.failed) == (0, 1)
    assert given(trace)[2:] == ["env-refuse_seed-0"]


def test_half_finished_cells_come_first(tmp_path: Path, trace: Path) -> None:
    sweep = sweep_of(tmp_path / "s", "good", "3")
    last = list(sweep.cells.values())[-1]
    sweep.record(last, status="running")  # as a killed sweep leaves it
    run(sweep)
    assert given(trace)[0] == last.name


def test_a_summary_counts_more_than_the_status_line(tmp_path: Path, trace: Path) -> None:
    sweep = sweep_of(tmp_path / "s", "good", "1")
    cell = next(iter(sweep.cells.values()))
    done = RunDirectory.create(sweep.run_path(cell), cell.config)
    done.write_summary({})
    sweep.record(cell, status="running")
    assert run(sweep).done == 1
    assert not trace.exists()


def test_a_cell_waits_for_the_process_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A sweep killed a moment ago left a worker that still holds the run: first the lock is met,
    # after the first sleep it is free, and the cell is trained.
    sweep = sweep_of(tmp_path / "s", "good", "1")
    (cell,) = sweep.cells.values()
    orphan = RunDirectory.create(sweep.run_path(cell), cell.config)
    trained: list[Path] = []

    def train(config: dict[str, Any], out: Path) -> None:
        RunDirectory.create(out, config, force=True).close()
        trained.append(out)

    monkeypatch.setattr(worker, "_train", train)
    monkeypatch.setattr("time.sleep", lambda seconds: orphan.close())
    assert worker.train_free(cell.config, orphan.path)["status"] == "done"
    assert trained == [orphan.path]
    # A process that never lets go is told apart from a failure of the cell by its words.
    again = RunDirectory.create(orphan.path, cell.config, force=True)
    monkeypatch.setattr(worker, "WRITER_SECONDS", -1.0)
    answer = worker.train_free(cell.config, again.path)
    assert answer["status"] == "failed"
    assert "another process is writing" in answer["reason"]
    # What it finished after all counts.
    again.write_summary({})
    assert worker.train_free(cell.config, again.path)["status"] == "done"
    assert len(trained) == 1


def test_workers_that_cannot_start_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "COMMAND", (sys.executable, "-c", "raise SystemExit('no torch')"))
    with pytest.raises(UserError, match=r"workers do not start.*no torch"):
        run(sweep_of(tmp_path / "s", "good", "1"))


def test_lines_say_how_each_cell_ended(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = sweep_of(tmp_path / "s", "good,refuse", "1")
    run_sweep(sweep, workers=1, retry=False, progress=SweepLines())
    said = capsys.readouterr().err.splitlines()
    assert "env good, seed 0: done" in said[0]
    assert "1/2 cells done" in said[0]
    assert "failed in 0 s (no such board)" in said[1]
    assert "1/2 cells done, 1 failed" in said[1]


def test_the_table_shows_the_median_and_its_interval(tmp_path: Path, trace: Path) -> None:
    sweep = sweep_of(tmp_path / "s", "good", "5")
    run(sweep)
    for cell, successes in zip(sweep.cells.values(), (10, 50, 20, 40, 30), strict=True):
        row = Evaluation(
            5, "sampled", 1.0, 100, successes, successes / 100, 0.0, 1.0, 0.0, 0.0, 9.0, 0.1, 1.0
        )
        RunDirectory.open(sweep.run_path(cell)).append_evaluation(row)
    arms = summarize(sweep)
    # Five values: the extremes hold the median with probability 1 - 2 / 2^5 = 0.9375.
    assert arms[0].success.estimate == 0.3
    assert (arms[0].success.low, arms[0].success.high) == (0.1, 0.5)
    assert arms[0].success.confidence == 0.9375
    header, row = table(arms)
    assert row[header.index("interval")] == "[10.0%, 50.0%] at 94%"


def test_ctrl_c_notes_what_was_under_way(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        textwrap.dedent("""
        import json, signal, sys, time
        def stop(*_):
            print(json.dumps({"cell": task["cell"], "status": "interrupted", "reason": "",
                              "seconds": 0.1}), flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            task = json.loads(line)
            time.sleep(60)
        """)
    )
    # Where the tests run in the background their shell may have switched the signal off.
    code = textwrap.dedent(f"""
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from pathlib import Path
        from ragen2_cli.sweeps import workers
        from ragen2_cli.sweeps.engine import run_sweep
        from ragen2_cli.sweeps.folder import SweepDirectory
        from ragen2_cli.sweeps.plan import plan
        from ragen2_cli.sweeps.progress import SilentSweep
        workers.COMMAND = (sys.executable, {str(script)!r})
        sweep = SweepDirectory.create(Path({str(tmp_path / "s")!r}), plan({{}}, [], "2"))
        run_sweep(sweep, workers=1, retry=False, progress=SilentSweep())
        """)
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    cells = tmp_path / "s" / "cells.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if cells.exists() and '"running"' in cells.read_text():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    statuses = [cell.status for cell in SweepDirectory.open(tmp_path / "s").cells.values()]
    assert statuses == ["interrupted", "planned"]


@pytest.mark.slow
def test_a_cell_in_a_warm_worker_equals_a_run_of_its_own(tmp_path: Path) -> None:
    flags = {
        "steps": 2,
        "evaluation.episodes": 8,
        "evaluation.matched_entropy": False,
        "evaluation.greedy": False,
        "diagnostics.every": 0,
        "rollout.prompts": 2,
        "rollout.group_size": 4,
    }
    cells = plan({"filter": "none,top-p"}, [], "1", flags=flags)
    sweep = SweepDirectory.create(tmp_path / "s", cells)
    outcome = run(sweep)
    assert (outcome.done, outcome.failed) == (2, 0), [c.reason for c in sweep.cells.values()]
    sets = [
        part for key, value in flags.items() for part in ("--set", f"{key}={json.dumps(value)}")
    ]
    alone = tmp_path / "alone"
    command = [sys.executable, "-m", "ragen2_cli", "train", "-q", "--out", str(alone), *sets]
    subprocess.run(command, check=True, env={**os.environ, **workers.ONE_THREAD}, timeout=300)
    second = RunDirectory.open(sweep.run_path(cells[1]))
    for name in ("metrics", "rollouts"):
        if name == "metrics":
            mine, theirs = second.read_steps(), RunDirectory.open(alone).read_steps()
            pairs = [(a.loss, a.grad_norm, a.success) for a in mine]
            assert pairs == [(b.loss, b.grad_norm, b.success) for b in theirs]
        else:
            assert second.read_rollouts(2) == RunDirectory.open(alone).read_rollouts(2)
    # Paired randomness: the first batches of the two filters hold the same episodes.
    first = RunDirectory.open(sweep.run_path(cells[0])).read_rollouts(1)
    other = second.read_rollouts(1)
    assert [e.completion_ids for e in first] == [e.completion_ids for e in other]
