"""Runs that are stopped by a signal, or given more steps: what is saved and how they go on.

Guarantees held here:
1. a run that is asked to stop saves before it evaluates; what it left out is made up;
2. a signal in the last batch loses nothing, also where no generation boundary comes any more;
3. a number of steps given with --resume is remembered.
"""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen2_cli.config import Config
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training.interrupted import how_to_go_on
from ragen2_cli.training.player import Player
from ragen2_cli.training.run import resume, start
from test_train import digest, rows, tiny


def evaluations(run: RunDirectory) -> list[Any]:
    return [replace(row, seconds=0.0) for row in run.read_evaluations()]


def interrupted(
    patch: pytest.MonkeyPatch, method: str, step: int, number: int = signal.SIGTERM
) -> list[int]:
    """Send a signal in the middle of a step's rollouts or evaluation; return what was finished."""
    play = getattr(Player, method)
    finished: list[int] = []

    def playing(self: Player, boards: Any, **kwargs: Any) -> Any:
        if kwargs["step"] == step and not sent:
            sent.append(step)
            os.kill(os.getpid(), number)
        played = play(self, boards, **kwargs)
        finished.append(kwargs["step"])
        return played

    sent: list[int] = []
    patch.setattr(Player, method, playing)
    return finished


def stopped(config: Config, out: Path, said: str, method: str, step: int) -> RunDirectory:
    """Start a run and stop it by a signal."""
    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, method, step)
        with pytest.raises(KeyboardInterrupt, match=said):
            start(config, out, quiet=True)
    return RunDirectory.open(out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    out = tmp_path_factory.mktemp("runs") / "whole"
    start(tiny(), out, quiet=True)
    return RunDirectory.open(out)


@pytest.mark.parametrize("method", ["play_groups", "play_heldout"])
def test_an_evaluation_is_left_out_and_made_up(
    whole: RunDirectory, tmp_path: Path, method: str
) -> None:
    # The signal comes in the rollouts of step 2, or in its evaluation, which is due every 2 steps.
    run = stopped(tiny(), tmp_path / "run", "saved at step 2; go on", method, 2)
    assert [row.step for row in run.read_evaluations()] == [0, 0]  # sampled and greedy
    assert [row.step for row in run.read_steps()] == [1, 2]
    resume(run.path, quiet=True)
    assert evaluations(run) == evaluations(whole)
    assert rows(run) == rows(whole)
    assert digest(run.adapter) == digest(whole.adapter)


@pytest.mark.parametrize("patience", [1, 2])
def test_an_evaluation_that_was_made_up_counts_for_the_rules(tmp_path: Path, patience: int) -> None:
    # No policy reaches more than 100 %, so a floor of 1 is missed at every evaluation that has one
    # failure: after each step. So the run ends at step 1 or 2, the resumed one as well.
    flags = {
        "evaluation.every": 1,
        "stop.on_collapse": True,
        "stop.success_floor": 1.0,
        "stop.success_patience": patience,
    }
    run = stopped(tiny(**flags), tmp_path / "run", "saved at step 1; go on", "play_groups", 1)
    summary = resume(run.path, quiet=True)
    assert summary["steps"] == patience
    assert "stayed below 100%" in summary["stopped"]
    assert [row.step for row in run.read_steps()] == list(range(1, patience + 1))


def test_a_signal_in_the_last_batch_saves_after_the_last_step(tmp_path: Path) -> None:
    # Two updates per batch and three steps: the last batch is used once, no boundary follows.
    config = tiny(**{"steps": 3, "algorithm.iterations": 2, "checkpoints.every": 50})
    start(config, tmp_path / "whole", quiet=True)
    run = stopped(config, tmp_path / "run", "saved at step 3; go on", "play_groups", 3)
    assert not run.finished
    resume(run.path, quiet=True)
    whole = RunDirectory.open(tmp_path / "whole")
    assert evaluations(run) == evaluations(whole)
    assert rows(run) == rows(whole)
    assert digest(run.adapter) == digest(whole.adapter)
    # More steps go on with new rollouts, which then serve two steps again.
    resume(run.path, steps=5, quiet=True)
    assert [row.groups for row in run.read_steps()] == [4, 0, 4, 4, 0]


def test_a_higher_number_of_steps_is_remembered(
    whole: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped(tiny(steps=2), tmp_path / "run", "saved at step 1; go on", "play_groups", 1)
    assert f"--out {run.path} --steps 6" in how_to_go_on(run.path, 6)
    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, "play_groups", 3)
        with pytest.raises(KeyboardInterrupt, match="saved at step 3; go on") as stop:
            resume(run.path, steps=6, quiet=True)
    assert str(stop.value).endswith(f"ragen2 train --resume --out {run.path}")
    content = json.loads((run.path / "config.json").read_text())
    assert (content["config"]["steps"], content["earlier_steps"]) == (6, [2])
    with pytest.raises(UserError, match="it is already at 3 steps"):
        resume(run.path, steps=2, quiet=True)
    assert resume(run.path, quiet=True)["steps"] == 6
    assert [row.step for row in run.read_steps()] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(UserError, match="it is done, at 6 steps"):
        resume(run.path, quiet=True)
