"""PPO as a run of the embedded policy.

Guarantees held here:
1. four steps in one go equal two and two more: episodes, metrics, policy and critic;
2. the critic is in checkpoints and in a file of its own, never in the policy's adapter;
3. the same boards, noise and first samples as without a critic.
"""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from ragen2_cli.config import Config, load_config
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training.run import resume, start

DURATIONS = ("rollout_seconds", "update_seconds", "step_seconds")
CRITIC_METRICS = {"value_loss", "value_mean", "explained_variance", "critic_grad_norm"}


def tiny(**flags: Any) -> Config:
    return load_config(
        flags={
            "algorithm.name": "ppo",
            "steps": 4,
            "rollout.prompts": 4,
            "rollout.group_size": 4,
            "evaluation.episodes": 0,
            "checkpoints.every": 2,
            "checkpoints.keep": 2,
            "diagnostics.every": 0,
            **flags,
        }
    )


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def rows(run: RunDirectory) -> list[Any]:
    return [replace(step, **dict.fromkeys(DURATIONS, 0.0)) for step in run.read_steps()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    out = tmp_path_factory.mktemp("runs") / "whole"
    start(tiny(), out, quiet=True)
    return RunDirectory.open(out)


def test_the_critic_is_logged_and_stays_out_of_the_adapter(whole: RunDirectory) -> None:
    assert all(step.extra.keys() >= CRITIC_METRICS for step in whole.read_steps())
    with safe_open(whole.adapter / "adapter_model.safetensors", "pt") as file:
        names = list(file.keys())
    assert names
    assert not [name for name in names if "head" in name or "critic" in name]
    assert sorted(path.name for path in whole.adapter.iterdir()) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    with safe_open(whole.path / "critic.safetensors", "pt") as file:
        assert {"head.weight", "head.bias"} < set(file.keys())


def test_advantages_are_of_the_critic_and_only_of_what_it_judged(whole: RunDirectory) -> None:
    episodes = whole.read_rollouts(1)
    kept = [one for one in episodes if one.kept]
    assert kept
    assert all(one.advantage is not None for one in kept)
    assert all(one.advantage is None for one in episodes if not one.kept)
    for one in episodes:
        earned = sum((turn.reward or 0) + turn.penalty for turn in one.turns)
        assert earned == pytest.approx(one.episode_return)


def test_two_and_two_steps_are_four(whole: RunDirectory, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(whole.path, half)
    shutil.rmtree(half / "checkpoints" / "step-000004")
    for name in ("summary.json", "critic.safetensors"):
        (half / name).unlink()
    shutil.rmtree(half / "adapter")
    resume(half, quiet=True)
    again = RunDirectory.open(half)
    assert rows(again) == rows(whole)
    for step in (3, 4):
        assert again.read_rollouts(step) == whole.read_rollouts(step)
    for name in ("adapter/adapter_model.safetensors", "critic.safetensors"):
        assert digest(half / name) == digest(whole.path / name)


def test_a_run_killed_before_its_summary_ends_with_its_critic(
    whole: RunDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    shutil.copytree(whole.path, out)
    for name in ("summary.json", "critic.safetensors"):
        (out / name).unlink()
    resume(out, quiet=True)
    assert digest(out / "critic.safetensors") == digest(whole.path / "critic.safetensors")


def test_the_first_batch_is_that_of_a_run_without_a_critic(
    whole: RunDirectory, tmp_path: Path
) -> None:
    start(tiny(**{"algorithm.name": "dapo", "steps": 1}), tmp_path / "dapo", quiet=True)
    plain = RunDirectory.open(tmp_path / "dapo").read_rollouts(1)
    found = whole.read_rollouts(1)
    assert [one.completion_ids for one in found] == [one.completion_ids for one in plain]
    assert [one.kept for one in found] == [one.kept for one in plain]
    assert not (tmp_path / "dapo" / "critic.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {"algorithm.credit": "bi-level", "critic.warmup_steps": 1, "critic.epochs": 2},
        {"algorithm.name": "grpo", "algorithm.credit": "turn"},
        {"model.full": True, "algorithm.credit": "turn", "algorithm.iterations": 2},
        {"critic.model": "embedded", "filter.strategy": "none"},
        {"seal.coefficient": 0.02, "algorithm.kl": 0.01, "algorithm.entropy": 0.001},
    ],
    ids=["bi-level", "grpo turn", "full", "critic model", "seal"],
)
def test_other_ways_run(flags: dict[str, Any], tmp_path: Path) -> None:
    start(tiny(**{"steps": 2, **flags}), tmp_path / "run", quiet=True)
    steps = RunDirectory.open(tmp_path / "run").read_steps()
    assert len(steps) == 2
    critic = "algorithm.name" not in flags
    assert (steps[0].extra.keys() >= CRITIC_METRICS) == critic
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["algorithm"]["advantage"] == ("gae" if critic else "group")


def test_a_critic_of_other_tokens_is_refused(tmp_path: Path) -> None:
    from tiny_trl import saved_model

    folder = saved_model(tmp_path / "model")
    with pytest.raises(UserError, match="its tokens are not those of embedded"):
        start(tiny(**{"critic.model": folder}), tmp_path / "run", quiet=True)


def test_bi_level_without_a_critic_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(UserError, match="bi-level needs a critic"):
        tiny(**{"algorithm.name": "dapo", "algorithm.credit": "bi-level"})
