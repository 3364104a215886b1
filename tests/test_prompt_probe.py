"""The same held-out prompts under several checkpoints (`ragen2 analyze probe`)."""

import json
from pathlib import Path

import pytest

from log_helpers import log, write
from ragen2_cli.config import load_config
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training.evaluate_target import load_run_policy
from ragen2_cli.training.player import build_player
from ragen2_cli.training.prompt_probe import probe_run
from ragen2_cli.training.run import start


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    out = tmp_path_factory.mktemp("probe") / "run"
    flags = {
        "steps": 4,
        "rollout.prompts": 2,
        "rollout.group_size": 4,
        "evaluation.episodes": 0,
        "diagnostics.every": 0,
        "checkpoints.every": 1,
        "checkpoints.keep": 4,
        "env.dead_share": 1.0,
        "filter.strategy": "none",
    }
    start(load_config(flags=flags), out, quiet=True)
    return RunDirectory.open(out)


def test_first_middle_and_last_checkpoint_meet_the_same_prompts(run: RunDirectory) -> None:
    # Four checkpoints, 1 to 4: the first, number 4 // 2 counted from 0, which is 3, and the last.
    said: list[str] = []
    contents = probe_run(run, prompts=6, rollouts=3, say=said.append)
    assert [content["step"] for content in contents] == [1, 3, 4]
    assert len({tuple(content["seeds"]) for content in contents}) == 1
    assert len(set(contents[0]["seeds"])) == 6
    for content in contents:
        assert [len(returns) for returns in content["returns"]] == [3] * 6
        file = run.path / "probes" / f"step-00000{content['step']}.json"
        written = json.loads(file.read_text())
        assert {name: written[name] for name in content} == content
    assert said[0] == "played 6 prompts with the checkpoint of step 1"
    assert len(said) == 3


def test_no_prompt_is_silent_and_none_is_trained_on(run: RunDirectory) -> None:
    # Training paid nothing at all (dead_share 1); one rollout in five wins a held-out board.
    assert all(step.success == 0.0 for step in run.read_steps())
    (content,) = probe_run(run, steps=[1], prompts=8, rollouts=4)
    returns = [value for prompt in content["returns"] for value in prompt]
    assert max(returns) > 0.5
    trained = {episode.seed for step in (1, 2, 3, 4) for episode in run.read_rollouts(step)}
    assert not trained & set(content["seeds"])


def test_returns_are_those_of_the_checkpoints_own_policy(run: RunDirectory) -> None:
    (content,) = probe_run(run, steps=[2], prompts=2, rollouts=4)
    config = run.resolved_config()
    env = config.env.model_copy(update={"dead_share": 0.0})
    config = config.model_copy(update={"env": env})
    loaded = load_run_policy(config, run, 2)
    player = build_player(config, loaded.model, loaded)
    played = player.play_groups(content["seeds"], step=2)
    flat = [value for prompt in content["returns"] for value in prompt]
    assert [one.episode.episode_return for one in played] == flat


def test_wrong_steps_and_runs_are_named(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no complete checkpoint of step 9; there: 1, 2, 3, 4"):
        probe_run(run, steps=[9])
    with pytest.raises(UserError, match="no complete checkpoint to play"):
        probe_run(write(tmp_path / "bare", log()))
