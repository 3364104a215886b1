"""A real training run of the embedded policy: files, numbers, resume, interruption.

Guarantees held here:
1. a run directory holds what its contract says, and its parts agree with each other;
2. case 42: 4 steps in one go, or 2 and resume 2: same prompts, episodes, metrics and adapter;
3. case 41: a damaged newest checkpoint is skipped by name;
4. runs that differ only in the filter meet the same boards, noise and first samples;
5. Ctrl-C saves and says how to go on; a full disk stops clearly and leaves the last checkpoint;
6. case 21: the adapter's bytes differ after one live step.
"""

import hashlib
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen2_cli.config import Config, load_config
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training.run import resume, start

DURATIONS = ("rollout_seconds", "update_seconds", "step_seconds")


def tiny(**flags: Any) -> Config:
    return load_config(
        flags={
            "steps": 4,
            "rollout.prompts": 4,
            "rollout.group_size": 4,
            "evaluation.episodes": 8,
            "evaluation.every": 2,
            "evaluation.matched_entropy": False,
            "checkpoints.every": 2,
            "diagnostics.every": 2,
            "diagnostics.samples": 4,
            **flags,
        }
    )


def digest(folder: Path) -> str:
    (weights,) = folder.glob("*model.safetensors")  # an adapter's or a whole model's
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def rows(run: RunDirectory) -> list[Any]:
    return [replace(step, **dict.fromkeys(DURATIONS, 0.0)) for step in run.read_steps()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, dict[str, Any]]:
    out = tmp_path_factory.mktemp("runs") / "whole"
    summary = start(tiny(), out, quiet=True)
    return RunDirectory.open(out), summary


def test_run_directory_is_complete_and_consistent(
    whole: tuple[RunDirectory, dict[str, Any]],
) -> None:
    run, summary = whole
    steps = run.read_steps()
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert run.rollout_steps() == [1, 2, 3, 4]
    for step in steps:
        episodes = run.read_rollouts(step.step)
        assert len(episodes) == 16
        # The row repeats what its episodes say.
        assert step.success == pytest.approx(sum(e.success for e in episodes) / 16)
        assert step.tokens == sum(sum(e.loss_mask) for e in episodes)
        kept = {e.group for e in episodes if e.kept}
        assert len(kept) == step.kept_groups
        assert step.groups == 4
        for group in range(4):
            members = [e for e in episodes if e.group == group]
            assert len({e.seed for e in members}) == 1
            returns = {e.episode_return for e in members}
            if len(returns) == 1:  # a dead group
                assert all(e.advantage == 0 and not e.kept for e in members)
    decodings = [(e.step, e.decoding) for e in run.read_evaluations()]
    ends = [(step, kind) for step in (0, 4) for kind in ("sampled", "greedy")]
    assert sorted(decodings) == sorted([*ends, (2, "sampled")])
    assert summary["steps"] == 4
    assert summary["tokens"] == sum(step.tokens for step in steps)
    assert json.loads((run.path / "summary.json").read_text())["steps"] == 4
    assert (run.path / "adapter" / "adapter_config.json").is_file()
    assert not list(run.path.rglob("*.bin"))
    assert not list(run.path.rglob("*.pt"))
    assert not list(run.path.rglob("*.pth"))


def test_sampled_ids_are_trained_ids(whole: tuple[RunDirectory, dict[str, Any]]) -> None:
    run, _ = whole
    for episode in run.read_rollouts(2):
        assert len(episode.completion_ids) == len(episode.loss_mask)
        inside = {i for first, last in episode.turn_spans for i in range(first, last)}
        assert [int(i in inside) for i in range(len(episode.loss_mask))] == list(episode.loss_mask)
        assert len(episode.turn_spans) == len(episode.turns)


def test_adapter_moves(whole: tuple[RunDirectory, dict[str, Any]]) -> None:
    run, _ = whole
    first, last = (run.checkpoints / f"step-{step:06d}" for step in (2, 4))
    assert digest(first) != digest(last) == digest(run.adapter)


def test_two_and_two_steps_are_four(
    whole: tuple[RunDirectory, dict[str, Any]], tmp_path: Path
) -> None:
    reference, _ = whole
    out = tmp_path / "halves"
    shutil.copytree(reference.path, out)
    (out / "summary.json").unlink()
    shutil.rmtree(out / "checkpoints" / "step-000004")
    shutil.rmtree(out / "adapter")
    resume(out, quiet=True)
    halves = RunDirectory.open(out)
    assert rows(halves) == rows(reference)
    for step in (1, 2, 3, 4):
        assert halves.read_rollouts(step) == reference.read_rollouts(step)
    assert digest(halves.adapter) == digest(reference.adapter)
    assert len(halves.read_evaluations()) == len(reference.read_evaluations())


def test_a_damaged_checkpoint_is_skipped_by_name(
    whole: tuple[RunDirectory, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, _ = whole
    out = tmp_path / "damaged"
    shutil.copytree(reference.path, out)
    (out / "summary.json").unlink()
    newest = out / "checkpoints" / "step-000004" / "adapter_model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])
    resume(out)
    said = capsys.readouterr().err
    assert "step-000004" in said
    assert "from step 2" in said
    assert digest(out / "adapter") == digest(reference.adapter)


def test_a_finished_run_has_nothing_to_resume(
    whole: tuple[RunDirectory, dict[str, Any]],
) -> None:
    run, _ = whole
    with pytest.raises(UserError, match="--steps"):
        resume(run.path, quiet=True)


def test_an_existing_run_is_not_overwritten(whole: tuple[RunDirectory, dict[str, Any]]) -> None:
    run, _ = whole
    before = digest(run.adapter)
    with pytest.raises(UserError, match="--force"):
        start(tiny(), run.path, quiet=True)
    assert digest(run.adapter) == before


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"trl": {"nonsense": 1}}, "no such argument"),
        ({"critic.model": "nowhere/nothing", "algorithm.name": "ppo"}, "nowhere"),
    ],
)
def test_a_refused_run_replaces_nothing(
    whole: tuple[RunDirectory, dict[str, Any]], tmp_path: Path, flags: dict[str, Any], says: str
) -> None:
    run, _ = whole
    shutil.copytree(run.path, tmp_path / "copy")
    with pytest.raises(UserError, match=says):
        start(tiny(**flags), tmp_path / "copy", force=True, quiet=True)
    copy = RunDirectory.open(tmp_path / "copy")
    assert digest(copy.adapter) == digest(run.adapter)
    assert (rows(copy), copy.finished) == (rows(run), True)
    assert {entry.name for entry in copy.path.iterdir()} == {e.name for e in run.path.iterdir()} - {
        ".lock"
    }


def test_filter_changes_nothing_but_the_update(
    whole: tuple[RunDirectory, dict[str, Any]], tmp_path: Path
) -> None:
    reference, _ = whole
    start(tiny(**{"steps": 1, "filter.strategy": "none"}), tmp_path / "none", quiet=True)
    other = RunDirectory.open(tmp_path / "none")
    mine, theirs = other.read_rollouts(1), reference.read_rollouts(1)
    assert [e.completion_ids for e in mine] == [e.completion_ids for e in theirs]
    assert [e.seed for e in mine] == [e.seed for e in theirs]
    assert all(e.kept for e in mine)


def test_silent_prompts_never_pay(tmp_path: Path) -> None:
    start(tiny(**{"steps": 1, "env.dead_share": 1.0}), tmp_path / "run", quiet=True)
    run = RunDirectory.open(tmp_path / "run")
    episodes = run.read_rollouts(1)
    assert {e.episode_return for e in episodes} == {0.0}
    assert not any(e.success for e in episodes)
    assert run.read_steps()[0].dead_groups == 4
    assert run.read_steps()[0].extra["empty_steps"] == 1


def test_nothing_kept_stops_after_five_steps(tmp_path: Path) -> None:
    summary = start(
        tiny(**{"steps": 9, "env.dead_share": 1.0, "evaluation.episodes": 0}),
        tmp_path / "run",
        quiet=True,
    )
    assert summary["steps"] == 5
    assert "5 batches in a row" in summary["stopped"]


def test_interrupt_saves_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragen2_cli.training.player import Player

    play = Player.play_groups

    def interrupted(self: Player, *args: Any, **kwargs: Any) -> Any:
        if kwargs["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return play(self, *args, **kwargs)

    monkeypatch.setattr(Player, "play_groups", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"step 2; go on with\n  ragen2 train --resume"):
        start(tiny(**{"steps": 6, "checkpoints.every": 50}), tmp_path / "run")
    assert "stopping after this step" in capsys.readouterr().err
    run = RunDirectory.open(tmp_path / "run")
    assert [step.step for step in run.read_steps()] == [1, 2]
    assert (run.checkpoints / "step-000002" / "manifest.json").is_file()
    assert not run.finished


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("when", "said"), [(0, "before the first checkpoint"), (4, "at step 4")])
def test_an_interrupted_evaluation_is_taken_up_again(
    whole: tuple[RunDirectory, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    when: int,
    said: str,
) -> None:
    from ragen2_cli.training.player import Player

    reference, _ = whole
    play = Player.play_heldout
    seen: list[float] = []

    def interrupted(self: Player, *args: Any, **kwargs: Any) -> Any:
        if kwargs["step"] == when:
            seen.append(kwargs["temperature"])
            if len(seen) == 2:  # greedy: the sampled evaluation is written
                os.kill(os.getpid(), number)
        return play(self, *args, **kwargs)

    monkeypatch.setattr(Player, "play_heldout", interrupted)
    with pytest.raises(KeyboardInterrupt, match=said):
        start(tiny(), tmp_path / "run", quiet=True)
    run = RunDirectory.open(tmp_path / "run")
    assert not run.finished
    resume(run.path, quiet=True)
    assert run.finished
    assert [row.step for row in run.read_evaluations()] == [
        row.step for row in reference.read_evaluations()
    ]
    assert digest(run.adapter) == digest(reference.adapter)


def test_a_failure_before_the_first_step_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from ragen2_cli.envs import StepResult, TextEnv\n"
        "class Mine(TextEnv):\n"
        "    def reset(self, seed, noise_seed=0):\n"
        "        self.seed = seed\n"
        "        return self.observe()\n"
        "    def observe(self):\n"
        "        return f'say {self.seed}'\n"
        "    def step(self, action):\n"
        "        return StepResult(float('nan'), done=True)\n"
    )
    with pytest.raises(UserError, match="reward nan"):
        start(tiny(**{"env.name": f"{tmp_path}/mine.py:Mine"}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_any_failure_before_the_first_step_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **keywords: Any) -> None:
        raise ValueError("the trainer cannot be built")

    monkeypatch.setattr("ragen2_cli.training.run.RunTrainer", broken)
    with pytest.raises(ValueError, match="cannot be built"):
        start(tiny(), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_stops_clearly_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ragen2_cli.runs import RunDirectory as Directory

    write = Directory.write_rollouts

    def full(self: Directory, step: int, *args: Any, **kwargs: Any) -> Any:
        if step == 3:
            raise UserError(f"cannot write {self.path}: No space left on device")
        return write(self, step, *args, **kwargs)

    monkeypatch.setattr(Directory, "write_rollouts", full)
    with pytest.raises(UserError, match="No space left"):
        start(tiny(), tmp_path / "run", quiet=True)
    from ragen2_cli.training import checkpoints

    run = RunDirectory.open(tmp_path / "run")
    newest, skipped = checkpoints.newest(run.checkpoints)
    assert newest is not None
    assert newest.name == "step-000002"
    assert not skipped
    assert not run.finished


@pytest.mark.parametrize("env", ["sokoban", "countdown", "bandit"])
def test_every_planning_environment_trains_a_step(env: str, tmp_path: Path) -> None:
    summary = start(
        tiny(**{"steps": 1, "env.name": env, "filter.strategy": "none"}),
        tmp_path / "run",
        quiet=True,
    )
    assert summary["steps"] == 1


def test_full_fine_tuning_and_other_algorithms_run(tmp_path: Path) -> None:
    config = tiny(
        **{
            "steps": 2,
            "model.full": True,
            "algorithm.name": "dr-grpo",
            "algorithm.entropy": 0.01,
            "algorithm.iterations": 2,
            "optimizer.lr": 1e-4,
            "diagnostics.every": 1,
            "diagnostics.marginal": "sequence",
        }
    )
    summary = start(config, tmp_path / "run", quiet=True)
    run = RunDirectory.open(tmp_path / "run")
    first, second = run.read_steps()
    # The second update is on the first one's rollouts: it has no batch of its own.
    assert first.groups == 4
    assert second.groups == 0
    assert second.success is None
    assert summary["tokens"] == first.tokens
    assert (run.adapter / "model.safetensors").is_file()
    measured = run.read_diagnostics()[0]
    assert measured["marginal"] == "sequence"
    assert 0 <= measured["think_missing"] <= 1  # the raw text is known while training


def test_spread_of_outcome_ignores_the_format(tmp_path: Path) -> None:
    start(
        tiny(**{"steps": 1, "filter.spread_of": "outcome", "rollout.temperature": 2.0}),
        tmp_path / "run",
        quiet=True,
    )
    run = RunDirectory.open(tmp_path / "run")
    tied = dead = 0
    for group in range(4):
        members = [e for e in run.read_rollouts(1) if e.group == group]
        dead += len({e.episode_return for e in members}) == 1
        if len({e.outcome for e in members}) == 1:
            tied += 1
            assert not any(e.kept for e in members)
    # Dead is a group whose returns tie, also where the filter judges by the outcome.
    assert run.read_steps()[0].dead_groups == dead < tied


def test_a_stop_between_two_updates_waits_for_the_boundary(tmp_path: Path) -> None:
    # Two updates per batch; a rule fires in the first one. The run stops after the second, saved.
    from ragen2_cli.training.recorder import Recorder

    def asked(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        self.stop_after_step("asked for")
        return row(self, *args, **kwargs)

    row = Recorder._row
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "_row", asked)
        summary = start(tiny(**{"algorithm.iterations": 2}), tmp_path / "run", quiet=True)
    assert summary["steps"] == 2
    assert summary["stopped"] == "asked for"
    run = RunDirectory.open(tmp_path / "run")
    assert (run.checkpoints / "step-000002" / "manifest.json").is_file()
