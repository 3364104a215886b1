"""Gradient analysis of real runs: in training, and from a checkpoint."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ragen2_cli.config import load_config
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training.gradient_runs import adapted_entropy, analyze_run
from ragen2_cli.training.run import start

pytestmark = pytest.mark.slow


def train(out: Path, **flags) -> RunDirectory:
    config = load_config(
        flags={
            "steps": 2,
            "rollout.prompts": 3,
            "rollout.group_size": 4,
            "optimizer.micro_batches": 2,
            "evaluation.episodes": 0,
            "diagnostics.every": 0,
            "checkpoints.every": 1,
            "algorithm.entropy": 0.01,
            "algorithm.kl": 0.02,
            **flags,
        }
    )
    start(config, out, quiet=True)
    return RunDirectory.open(out)


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in ("adapter", "checkpoints")
        for path in sorted((folder / part).rglob("*.safetensors"))
    }


def test_training_with_the_probe_is_training_without_it(tmp_path: Path) -> None:
    probed = train(tmp_path / "probed", **{"diagnostics.gradients_every": 1})
    plain = train(tmp_path / "plain")
    ours, theirs = (
        {name: value for name, value in digest(run.path).items() if "trainer" not in name}
        for run in (probed, plain)
    )
    assert ours == theirs
    assert ours
    first = json.loads((probed.path / "gradients" / "step-000001.json").read_text())
    assert first["source"] == "training batch"
    # The first batch is sampled by the start policy, which is the reference: no KL gradient.
    whole = first["tables"][0]["rows"][-1]
    assert whole["norms"]["batch"]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert whole["norms"]["batch"]["entropy"] > 0


def test_a_checkpoint_is_analyzed_and_stays_as_it_is(tmp_path: Path) -> None:
    run = train(tmp_path / "run")
    before = digest(run.path)
    said: list[str] = []
    content, path = analyze_run(run, checkpoint=1, groups=5, say=said.append)
    assert digest(run.path) == before
    assert path == run.path / "gradients" / "step-000001-fresh-groups-5.json"
    assert json.loads(path.read_text())["tables"] == json.loads(json.dumps(content["tables"]))
    assert [row["bucket"] for row in content["tables"][0]["rows"]][:5] == [
        f"Q{k}" for k in range(1, 6)
    ]
    assert said[-7:] == [
        "playing 5 groups of 4 rollouts",
        "5 groups cannot fill 6 buckets, only 5",
        *(f"measuring the gradients of bucket {number}/5" for number in range(1, 6)),
    ]
    assert (content["groups"], content["group_size"], content["kl"]) == (5, 4, 0.02)
    again, _ = analyze_run(run, checkpoint=1, groups=5)
    assert again["tables"] == content["tables"]
    with pytest.raises(UserError, match="no complete checkpoint of step 7"):
        analyze_run(run, checkpoint=7)


def test_an_adapted_entropy_coefficient_is_the_one_that_acts(tmp_path: Path) -> None:
    # The start policy's entropy lies below the target 9, so TRL adds its delta 0.005 to 0.01 each
    # step; in step 1 nothing acts yet, in step 2 it is 0.015.
    run = train(
        tmp_path / "run",
        **{"algorithm.entropy_target": 9.0, "diagnostics.gradients_every": 1, "algorithm.kl": 0.0},
    )
    folder = run.path / "gradients"
    one, two = (json.loads((folder / f"step-00000{n}.json").read_text()) for n in (1, 2))
    assert (one["entropy"], two["entropy"]) == (0.0, pytest.approx(0.015))
    assert two["tables"][0]["rows"][-1]["norms"]["batch"]["entropy"] > 0
    logged = run.read_steps()
    said: list[str] = []
    content, _ = analyze_run(run, checkpoint=1, groups=4, say=said.append)
    assert content["entropy"] == logged[0].extra["entropy_coef"] == pytest.approx(0.015)
    assert content["entropy_target"] == 9.0
    assert "entropy coefficient 0.015, as adapted by step 1" in said
    # The training batch of step 1 is still there, and so is each fresh one.
    _, other = analyze_run(run, checkpoint=1, groups=4, entropy=0.0)
    assert other.name == "step-000001-fresh-groups-4-entropy-0.0.json"
    assert sorted(file.name for file in folder.iterdir()) == [
        "step-000001-fresh-groups-4-entropy-0.0.json",
        "step-000001-fresh-groups-4.json",
        "step-000001.json",
        "step-000002.json",
    ]
    assert json.loads((folder / "step-000001.json").read_text()) == one
    # Above the target nothing acts, and before the first step neither.
    config = run.resolved_config()
    erupted = [replace(logged[0], entropy=9.1), logged[1]]
    assert adapted_entropy(config, erupted, 1) == 0.0
    assert adapted_entropy(config, erupted, 2) == logged[1].extra["entropy_coef"]
    assert adapted_entropy(config, logged, 0) == 0.0


def test_a_filter_that_is_not_applied_is_not_named(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{"steps": 1, "filter.score": "length"})
    content, _ = analyze_run(run, groups=3)
    assert content["filter"] == "none: the score length needs more than rewards"
    assert not any(table["filtered"] for table in content["tables"])


def test_a_run_with_a_critic_shows_its_gradient(tmp_path: Path) -> None:
    run = train(tmp_path / "ppo", **{"algorithm.name": "ppo", "diagnostics.gradients_every": 1})
    first = json.loads((run.path / "gradients" / "step-000001.json").read_text())
    assert first["scale_rewards"] == "gae"
    assert first["tables"][0]["rows"][-1]["norms"]["batch"]["critic"] > 0
    before = digest(run.path)
    at_two, _ = analyze_run(run, checkpoint=2, groups=4)
    at_end, _ = analyze_run(run, groups=4)
    assert at_end["tables"] == at_two["tables"]
    at_one, _ = analyze_run(run, checkpoint=1, groups=4)
    assert at_one["tables"] != at_two["tables"]
    assert digest(run.path) == before


@pytest.mark.parametrize(
    "flags",
    [
        {"algorithm.credit": "turn"},
        {"algorithm.name": "grpo", "algorithm.credit": "turn", "filter.soft": True},
        {"algorithm.name": "ppo"},
    ],
)
def test_what_the_filter_keeps_has_the_gradient_that_trains(tmp_path: Path, flags) -> None:
    # Without regularizers the trainer's own gradient is the task gradient of the kept rows.
    flags = {"algorithm.entropy": 0.0, "algorithm.kl": 0.0, "rollout.prompts": 8, **flags}
    run = train(tmp_path / "run", **{**flags, "steps": 1, "diagnostics.gradients_every": 1})
    content = json.loads((run.path / "gradients" / "step-000001.json").read_text())
    own = [t for t in content["tables"] if t["scale_rewards"] == content["scale_rewards"]]
    (kept,) = (table["rows"][-1]["norms"]["batch"]["task"] for table in own if table["filtered"])
    (row,) = run.read_steps()
    assert kept > 0
    assert row.grad_norm == pytest.approx(kept, rel=1e-5)
