"""Options of `ragen2 train` on real runs: what each one promises, and which run is taken."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ragen2_cli import app
from ragen2_cli.config import Config
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training import checkpoints
from ragen2_cli.training.run import resume, start
from ragen2_cli.training.run_trainer import RunTrainer
from test_train import digest, rows, tiny

BARE = {"evaluation.episodes": 0, "diagnostics.every": 0, "optimizer.schedule": "constant"}


def bare(**flags: Any) -> Config:
    return tiny(**(BARE | flags))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    out = tmp_path_factory.mktemp("runs") / "first"
    start(bare(steps=1), out, quiet=True)
    return RunDirectory.open(out)


def test_checkpointed_activations_change_nothing(
    first: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without dropout the same activations are computed twice, so the step is the same.
    step, seen = RunTrainer.training_step, set()

    def spied(self: RunTrainer, *args: Any, **kwargs: Any) -> Any:
        seen.add(self.model.is_gradient_checkpointing)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(RunTrainer, "training_step", spied)
    for checkpointing in (False, True):
        out = tmp_path / str(checkpointing)
        flags = {"steps": 1, "model.gradient_checkpointing": checkpointing}
        start(bare(**flags), out, quiet=True)
        run = RunDirectory.open(out)
        assert seen == {checkpointing}
        assert run.read_steps()[0].grad_norm == pytest.approx(first.read_steps()[0].grad_norm)
        assert run.read_steps()[0].grad_norm > 0
        assert digest(run.adapter) == digest(first.adapter)
        seen.clear()


def test_an_adapter_with_a_kl_term_starts_at_zero_and_goes_on_the_same(
    first: RunDirectory, tmp_path: Path
) -> None:
    flags = {"model.adapter": str(first.adapter), "algorithm.kl": 0.1}
    start(bare(steps=2, **flags), tmp_path / "whole", quiet=True)
    start(bare(steps=1, **flags), tmp_path / "halves", quiet=True)
    whole, halves = (RunDirectory.open(tmp_path / name) for name in ("whole", "halves"))
    # The reference is the adapter that it starts from, not the base below it.
    kl = [step.kl for step in whole.read_steps()]
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert kl[1] > 1e-6
    newest, _ = checkpoints.newest(halves.checkpoints)
    assert newest is not None
    assert (newest / "ref" / "adapter_model.safetensors").is_file()
    resume(halves.path, steps=2, quiet=True)
    assert rows(halves) == rows(whole)
    assert digest(halves.adapter) == digest(whole.adapter)


OWN = """
from ragen2_cli.envs import StepResult, TextEnv

class MyEnv(TextEnv):
    name = "mine"
    actions = ("Left", "Down", "Right", "Up")

    def reset(self, seed, noise_seed=0):
        return self.observe()

    def step(self, action):
        return StepResult(float(action == "Right"), done=True, success=action == "Right")

    def observe(self):
        return "P 1 1 G 2 2\\n____\\n_P__\\n__G_\\n____"
"""


def test_an_environment_in_a_file_trains(first: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "my_env.py").write_text(OWN)
    name = f"{tmp_path / 'my_env.py'}:MyEnv"
    start(bare(steps=1, **{"env.name": name}), tmp_path / "run", quiet=True)
    run = RunDirectory.open(tmp_path / "run")
    (step,) = run.read_steps()
    # Going right and down are both ways to the goal of a lake: some rollouts pay, some do not.
    assert 0 < step.success < 1
    assert step.kept_groups > 0
    assert step.grad_norm > 0
    episodes = run.read_rollouts(1)
    assert [e.outcome for e in episodes] == [float(e.success) for e in episodes]
    assert digest(run.adapter) != digest(first.adapter)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Run the command in this process; return its exit code, output and complaints."""
    monkeypatch.setattr(app, "guard", lambda: None)  # the streams here are pytest's

    def call(*arguments: str | Path) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["ragen2", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            app.main()
        return (stop.value.code or 0, *capfd.readouterr())

    return call


def test_empty_steps_end_the_command_with_3_and_its_state_is_saved(
    tmp_path: Path, command: Any
) -> None:
    # Every rollout of every prompt earns 0, format or not: no group has a spread.
    size = ["--prompts", "2", "--group-size", "4", "--eval-episodes", "0", "--diagnose-every", "0"]
    dead = ["--dead-share", "1", "--set", "env.format_penalty=0", "--set", "stop.empty_steps=2"]
    code, _, said = command(
        "train", "--steps", "6", "--quiet", "--out", tmp_path / "run", *size, *dead
    )
    assert code == 3, said
    assert said.splitlines()[-1].endswith(f"; its state is saved in {tmp_path / 'run'}")
    run = RunDirectory.open(tmp_path / "run")
    assert [step.kept_groups for step in run.read_steps()] == [0, 0]
    newest, _ = checkpoints.newest(run.checkpoints)
    assert newest is not None
    assert checkpoints.step_of(newest) == 2


def test_the_newest_run_is_taken_and_named(
    first: RunDirectory, tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").symlink_to(first.path)
    monkeypatch.chdir(tmp_path)
    named = "reading runs/a (the newest run)"
    for words in (["evaluate", "--episodes", "4", "--json"], ["models", "export", "--json"]):
        code, out, said = command(*words)
        assert (code, said.splitlines()[0]) == (0, named)
        assert json.loads(out)
    for quiet, lines in (([], [named]), (["--quiet"], [])):
        code, out, said = command("train", "--resume", "--json", *quiet)
        *before, last = said.splitlines()
        assert (code, out, before) == (2, "", lines)
        assert "it is done, at 1 step;" in last
