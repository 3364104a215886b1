"""`ragen2 train --stop-on-collapse` on the whole command: exit 3, the state saved."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ragen2_cli.runs import RunDirectory
from ragen2_cli.training import checkpoints

pytestmark = pytest.mark.slow


def train(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ragen2_cli", "train", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_a_collapse_rule_ends_the_command_with_3_and_its_state_is_saved(tmp_path: Path) -> None:
    # Success below 1 counts as lost here, at one evaluation, which comes after step 2; checkpoints
    # would come at step 50.
    rule = ["--stop-on-collapse", "--set", "stop.success_floor=1.0"]
    rule += ["--set", "stop.success_patience=1", "--set", "evaluation.every=2"]
    size = ["--steps", "6", "--prompts", "2", "--group-size", "4", "--eval-episodes", "8"]
    size += ["--diagnose-every", "0", "--set", "evaluation.matched_entropy=false"]
    done = train("--out", tmp_path / "run", *size, *rule)
    assert done.returncode == 3, done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("stopped: held-out success stayed below 100% for 1 evaluation;")
    assert last.endswith(f"; its state is saved in {tmp_path / 'run'}")
    run = RunDirectory.open(tmp_path / "run")
    assert [step.step for step in run.read_steps()] == [1, 2]
    newest, skipped = checkpoints.newest(run.checkpoints)
    assert newest is not None
    assert (checkpoints.step_of(newest), skipped) == (2, [])
    assert (run.adapter / "adapter_model.safetensors").is_file()
    summary = run.read_summary()
    assert summary is not None
    assert (summary["steps"], summary["stopped"]) == (2, last[9:].partition("; its")[0])

    # The saved state is one to go on from; with the rule in force the next evaluation stops again.
    again = train("--resume", "--out", tmp_path / "run", "--json")
    assert again.returncode == 3, again.stderr
    assert [step.step for step in run.read_steps()] == [1, 2, 3, 4]
    assert json.loads(again.stdout)["session_from_step"] == 2
