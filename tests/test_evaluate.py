"""Held-out evaluation: the same boards everywhere, summary numbers by hand, matched temperature."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from ragen2_cli.app import app
from ragen2_cli.commands.diagnosis import Scoring, _load
from ragen2_cli.config import load_config
from ragen2_cli.errors import UserError
from ragen2_cli.records import Episode, Turn
from ragen2_cli.rollout.engine import Trajectory
from ragen2_cli.runs import RunDirectory
from ragen2_cli.runs.provenance import STATISTICS
from ragen2_cli.training.evaluate_target import evaluate_target
from ragen2_cli.training.evaluation import summarize, temperature_of_entropy
from ragen2_cli.training.gradient_runs import analyze_run
from ragen2_cli.training.models import embedded_folder, load_policy
from ragen2_cli.training.run import start


def played(success: bool, value: float | None, valid: bool, tokens: int) -> Trajectory:
    turn = Turn("board", "thought", "Left", ("Left",), value, 0.0, valid)
    episode = Episode(
        step=0,
        group=0,
        rollout=0,
        seed=1,
        prompt="board",
        turns=(turn,),
        episode_return=value,
        outcome=value,
        success=success,
        status="success" if success else "failure",
        loss_mask=(1,) * tokens,
    )
    logprobs = (-0.5,) * tokens
    return Trajectory(episode, logprobs, logprobs, (0.4,) * tokens, 0)


def test_summary_by_hand() -> None:
    # 1 of 4 succeeds; returns 1, 0, 0 (one has no score): mean 1/3; 1 of 4 turns invalid;
    # lengths 2, 4, 6, 8: mean 5; every sampled token has log-probability -0.5: entropy 0.5.
    rows = [
        played(True, 1.0, True, 2),
        played(False, 0.0, True, 4),
        played(False, 0.0, False, 6),
        played(False, None, True, 8),
    ]
    row = summarize(rows, step=7, temperature=1.0, seconds=0.1)
    assert (row.successes, row.episodes, row.success) == (1, 4, 0.25)
    assert row.episode_return == pytest.approx(1 / 3)
    assert row.invalid_rate == 0.25
    assert row.response_length == 5
    assert row.entropy == pytest.approx(0.5)
    assert row.ci_low < 0.25 < row.ci_high
    # At T = 0.5 they were drawn from another distribution, which gave each -0.2: entropy 0.2.
    cold = [replace(one, sampling_logprobs=(-0.2,) * one.sampled_tokens) for one in rows]
    assert summarize(cold, step=7, temperature=0.5, seconds=0.1).entropy == pytest.approx(0.2)
    assert "the evaluation's temperature" in STATISTICS["evaluation.entropy"]
    greedy = summarize(rows, step=7, temperature=0.0, seconds=0.1)
    assert (greedy.decoding, greedy.entropy) == ("greedy", None)


def test_matched_temperature_inverts_a_monotone_curve() -> None:
    # Entropy 2 T reaches 1.5 at T = 0.75; six halvings of [0.05, 2] end within 0.02 of it.
    assert temperature_of_entropy(lambda t: 2 * t, 1.5) == pytest.approx(0.75, abs=0.02)
    assert temperature_of_entropy(lambda t: 2 * t, 100.0) == pytest.approx(2.0, abs=0.02)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    config = load_config(
        flags={
            "steps": 2,
            "rollout.prompts": 2,
            "rollout.group_size": 4,
            "evaluation.episodes": 8,
            "evaluation.matched_entropy": False,
            "checkpoints.every": 1,
            "diagnostics.every": 0,
        }
    )
    start(config, out, quiet=True)
    return out


def test_a_run_evaluates_to_its_own_last_measurement(run: Path) -> None:
    sampled, greedy = evaluate_target(str(run), episodes=8)
    after = json.loads((run / "summary.json").read_text())["after"]
    assert sampled.successes == after["sampled"]["successes"]
    assert greedy.successes == after["greedy"]["successes"]
    assert sampled.entropy == pytest.approx(after["sampled"]["entropy"], abs=1e-6)
    assert sampled.step == 2


def test_the_start_model_evaluates_to_the_first_measurement(run: Path) -> None:
    (sampled,) = evaluate_target("embedded", episodes=8, greedy=False)
    before = json.loads((run / "summary.json").read_text())["before"]
    assert sampled.successes == before["sampled"]["successes"]


@pytest.mark.parametrize("env", ["frozenlake", "bandit"])
def test_the_base_follows_the_adapter(run: Path, tmp_path: Path, env: str) -> None:
    # The run was trained on frozenlake, so on `embedded`; for bandit `embedded` is another model.
    loaded = load_policy("embedded", device="cpu", adapter=run / "adapter", env=env)
    note = "the base is embedded, which the adapter was trained on"
    assert loaded.notes == ((note,) if env == "bandit" else ())
    name = "model.embed_tokens.weight"
    base = loaded.model.get_base_model().state_dict()[name]
    grid, words = (load_file(embedded_folder(e) / "model.safetensors") for e in (None, "bandit"))
    assert torch.equal(base, grid[name])
    assert not torch.equal(base, words[name])
    # The reverse: an adapter of the words variant keeps it, whatever is played.
    shutil.copytree(run / "adapter", tmp_path / "words")
    file = tmp_path / "words" / "adapter_config.json"
    content = json.loads(file.read_text()) | {"base_model_name_or_path": "/a/embedded-words"}
    file.write_text(json.dumps(content))
    loaded = load_policy("embedded", device="cpu", adapter=tmp_path / "words", env=env)
    assert torch.equal(loaded.model.get_base_model().state_dict()[name], words[name])
    assert bool(loaded.notes) == (env == "frozenlake")
    content["base_model_name_or_path"] = "a/my-policy"
    file.write_text(json.dumps(content))
    loaded = load_policy("embedded", device="cpu", adapter=tmp_path / "words", env=env)
    assert loaded.notes == ("the adapter was trained on my-policy; here it is put on embedded",)


def test_a_run_is_scored_by_the_variant_of_its_environment(tmp_path: Path) -> None:
    config = load_config(flags={"env.name": "bandit"})
    bandit = RunDirectory.create(tmp_path / "run", config.model_dump(mode="json"))
    loaded = _load(bandit.path, Scoring(model="embedded"), own_run=True)
    name = "model.embed_tokens.weight"
    words = load_file(embedded_folder("bandit") / "model.safetensors")[name]
    assert torch.equal(loaded.model.state_dict()[name].cpu(), words)


def test_a_run_evaluates_elsewhere_on_its_own_base(run: Path) -> None:
    said: list[str] = []
    evaluate_target(str(run), env="bandit", episodes=2, greedy=False, say=said.append)
    assert said == ["the base is embedded, which the adapter was trained on"]


def test_the_adapter_of_an_earlier_end_is_not_the_final_one(run: Path, tmp_path: Path) -> None:
    # Step 2 was the end; given more steps, the run is unfinished and the adapter is step 2's still.
    again = RunDirectory(tmp_path / "run")
    shutil.copytree(run, again.path)
    again.truncate_after(2)
    assert again.adapter.is_dir()
    with pytest.raises(UserError, match="no final adapter yet; name a step with --checkpoint"):
        evaluate_target(str(again.path), episodes=2)
    with pytest.raises(UserError, match="no final adapter yet; name a step with --checkpoint"):
        analyze_run(again)
    result = CliRunner().invoke(app, ["diagnose", str(again.path), "--checkpoint", "0"])
    assert "no final adapter yet" in str(result.exception)
    (row,) = evaluate_target(str(again.path), episodes=2, greedy=False, checkpoint=2)
    assert row.step == 2


def test_a_checkpoint_is_chosen_by_step(run: Path) -> None:
    (first,) = evaluate_target(str(run), episodes=4, greedy=False, checkpoint=1)
    assert first.step == 1
    with pytest.raises(UserError, match="there: 1, 2"):
        evaluate_target(str(run), episodes=4, checkpoint=7)


def test_wrong_targets_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--checkpoint"):
        evaluate_target("embedded", checkpoint=3)
    with pytest.raises(UserError, match="no such"):
        evaluate_target(str(tmp_path / "nothing" / "here"))
