"""The whole command under faults: kills, a full disk, a folder it may not write or that is gone.

Guarantees held here:
1. after 20 SIGKILLs, spread over rollout, update, evaluation and checkpoint writing, a resumed run
   has the metrics, rollouts, evaluations, diagnostics and adapter of one that was never killed;
2. what the disk refuses ends the command with one line and code 2, the last checkpoint intact, and
   the run can be resumed;
3. the default job opens no connection and listens nowhere.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import ragen2_cli
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training import checkpoints
from zygote import Zygote

pytestmark = pytest.mark.slow

STEPS = 16
KILLS = 20
JOB = [
    *("train", "--steps", str(STEPS), "--prompts", "2", "--group-size", "4"),
    *("--eval-episodes", "4", "--diagnose-every", "4", "--keep-checkpoints", "2"),
    *("--set", "evaluation.every=2", "--set", "checkpoints.every=1"),
    *("--set", "evaluation.matched_entropy=false", "--set", "diagnostics.samples=4"),
]
# CPU seconds that a phase of this job takes on a slow core; kills fall anywhere inside.
LONGEST = {"rollout": 0.4, "update": 0.02, "evaluation": 0.2, "checkpoint": 0.05}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    out = tmp_path_factory.mktemp("whole") / "run"
    done = zygote.run(*JOB, "--out", str(out))
    assert done["code"] == 0, done["said"][-3000:]
    return RunDirectory.open(out)


def timeless(row: Any) -> Any:
    """The row without durations."""
    if isinstance(row, dict):
        return {name: value for name, value in row.items() if "seconds" not in name}
    durations = [field.name for field in fields(row) if field.name.endswith("seconds")]
    return replace(row, **dict.fromkeys(durations, 0.0))


def records(run: RunDirectory) -> dict[str, list[Any]]:
    return {
        "metrics": [timeless(row) for row in run.read_steps()],
        "evaluations": [timeless(row) for row in run.read_evaluations()],
        "diagnostics": [timeless(row) for row in run.read_diagnostics()],
    }


def assert_same(run: RunDirectory, reference: RunDirectory) -> None:
    assert records(run) == records(reference)
    assert run.rollout_steps() == reference.rollout_steps()
    for step in run.rollout_steps():
        assert run.read_rollouts(step) == reference.read_rollouts(step)
    first, second = (
        (each.adapter / "adapter_model.safetensors").read_bytes() for each in (run, reference)
    )
    assert first == second


def steps_of(run: RunDirectory) -> tuple[int, int]:
    """Steps recorded, and steps of the newest complete checkpoint."""
    found, _ = checkpoints.newest(run.checkpoints)
    return len(run.read_steps()), 0 if found is None else checkpoints.step_of(found)


@pytest.mark.timeout(1500)
def test_twenty_kills_leave_no_trace(zygote: Zygote, whole: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "run"
    draw = random.Random(7)
    phases = [phase for phase in LONGEST for _ in range(KILLS // len(LONGEST))]
    draw.shuffle(phases)
    killed: Counter[str] = Counter()
    redone = corrupt = 0
    for index, phase in enumerate(phases):
        argv = ["train", "--resume", "--out", str(out)] if index else [*JOB, "--out", str(out)]
        entry = 1 if phase == "evaluation" or index == 0 else draw.choice((1, 1, 1, 2))
        after = draw.uniform(0, LONGEST[phase])
        done = zygote.run(*argv, phase=phase, entry=entry, kill_after=after)
        assert done["code"] == -9, (phase, entry, done)
        killed[done["phase"]] += 1
        print(f"kill {index + 1} in {done['phase']}", flush=True)
        run = RunDirectory.open(out)
        rows, saved = steps_of(run)
        redone += rows - saved
        _, skipped = checkpoints.newest(run.checkpoints)
        corrupt += len(skipped) + sum(run.torn_lines().values())
    done = zygote.run("train", "--resume", "--out", str(out))
    assert done["code"] == 0, done["said"][-3000:]
    run = RunDirectory.open(out)
    assert_same(run, whole)
    lost = sum(8 - len(run.read_rollouts(step)) for step in range(1, STEPS + 1))
    figures = {
        "kills survived": sum(killed.values()),
        "killed in": dict(sorted(killed.items())),
        "steps redone": redone,
        "half-written files met": corrupt,
        "episodes lost": lost,
    }
    print(json.dumps(figures))
    assert sum(killed.values()) == KILLS
    assert all(killed[phase] for phase in LONGEST)
    assert lost == 0


def assert_stopped(done: dict[str, Any], *words: str) -> None:
    """One line that names what is wrong, exit code 2."""
    assert done["code"] == 2, done["said"][-3000:]
    (line,) = [line for line in done["said"].splitlines() if line.startswith("error: ")]
    assert done["said"].rstrip().endswith(line)
    assert "Traceback" not in done["said"]
    for word in words:
        assert word in line, line


def test_a_file_limit_stops_and_the_rest_follows(
    zygote: Zygote, whole: RunDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    done = zygote.run(*JOB, "--out", str(out), phase="checkpoint", entry=3, file_limit=100_000)
    assert_stopped(done, "step 3", "File too large", "step-000002 is intact")
    assert steps_of(RunDirectory.open(out)) == (3, 2)
    assert zygote.run("train", "--resume", "--out", str(out))["code"] == 0
    assert_same(RunDirectory.open(out), whole)


def test_a_full_disk_stops_and_the_last_checkpoint_stands(zygote: Zygote, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(small)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here; the file limit test stands in")
    try:
        out = small / "run"
        done = zygote.run(*JOB, "--keep-checkpoints", "50", "--out", str(out))
        assert_stopped(done, "No space left on device", "is intact")
        rows, saved = steps_of(RunDirectory.open(out))
        assert saved >= 1
        assert rows - saved <= 1
        subprocess.run(["mount", "-o", "remount,size=600m", str(small)], check=True)
        assert zygote.run("train", "--resume", "--out", str(out))["code"] == 0
        assert steps_of(RunDirectory.open(out)) == (STEPS, STEPS)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_folder_that_may_not_be_written(zygote: Zygote) -> None:
    if os.getuid():
        pytest.skip("needs the right to become another user")
    for needed in (Path(ragen2_cli.__file__), Path(sys.prefix)):
        if not all(folder.stat().st_mode & 0o001 for folder in needed.parents):
            pytest.skip(f"another user cannot read {needed}")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        out = Path(folder) / "run"
        done = zygote.run(*JOB, "--out", str(out), user=65534)
        assert_stopped(done, str(out), "Permission denied", "choose a folder you may write to")
        assert not out.exists()


def test_a_folder_that_is_deleted_meanwhile(zygote: Zygote, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = zygote.run(*JOB, "--out", str(out), phase="rollout", entry=3, remove=str(out))
    assert_stopped(done, str(out), "the folder was removed meanwhile")
    shutil.rmtree(out, ignore_errors=True)


def test_the_default_job_needs_no_network(zygote: Zygote, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    done = zygote.run(
        *("train", "--steps", "2", "--eval-episodes", "8", "--out", str(tmp_path / "run")),
        refuse_network=str(attempts),
    )
    assert done["code"] == 0, done["said"][-3000:]
    assert not attempts.exists(), attempts.read_text()
