"""Config: precedence, unknown keys, ranges, resolved JSON."""

import json
import tomllib
from pathlib import Path

import pytest

from ragen2_cli.config import Config, load_config
from ragen2_cli.config.load import build_config, parse_set
from ragen2_cli.errors import UserError

ROOT = Path(__file__).parents[1]


def test_later_sources_win(tmp_path: Path) -> None:
    # preset says eps 0.01, the file 0.02 and seed 1, the flag seed 2, --set seed 3.
    file = tmp_path / "x.toml"
    file.write_text("seed = 1\n[filter]\neps = 0.02\n")
    config = load_config(file, preset="ragen2-code", flags={"seed": 2}, sets=["seed=3"])
    assert (config.filter.score, config.filter.eps, config.seed) == ("reward_std", 0.02, 3)
    assert load_config(file, preset="ragen2-code", flags={"seed": 2}).seed == 2
    assert load_config(file).seed == 1


def test_algorithm_name_sets_what_is_not_said() -> None:
    dapo = load_config(flags={"algorithm.name": "dapo"}).algorithm
    assert (dapo.loss_type, dapo.clip_high, dapo.scale_rewards) == ("dapo", 0.28, "group")
    mixed = load_config(flags={"algorithm.name": "dr-grpo"}, sets=["algorithm.clip_high=0.3"])
    assert (mixed.algorithm.loss_type, mixed.algorithm.clip_high) == ("dr_grpo", 0.3)
    assert mixed.algorithm.scale_rewards == "none"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("filtr.value=1", "did you mean 'filter'"),
        ("filter.valeu=1", "did you mean 'value'"),
        ("filter.strategy=top_p", "did you mean 'top-p'"),
        ("filter.value=1.5", "value"),
        ("filter.value=-1", "value"),
        ("rollout.group_size=1", "rollout.group_size: TRL needs 2 or more rollouts per prompt"),
        ("optimizer.lr=0", "optimizer.lr"),
        ("optimizer.micro_batches=7", "micro_batches"),
        ("model={full=true,adapter='x'}", "ragen2 models export"),
        ("steps=zero", "steps"),
        ("env.dead_share=1.5", "env.dead_share"),
        ("schema_version=99", "newer"),
        ("schema_version='99'", "whole number"),
        ("schema_version=1.0", "whole number"),
        ("schema_version=0", "whole number"),
        ("steps=true", "steps"),
        ("steps='3'", "steps"),
        ("steps=99999999999999999999", "steps"),
        ("optimizer.lr=nan", "optimizer.lr"),
        ("evaluation.greedy=1", "evaluation.greedy"),
        ("model.device=gpu", "device: use auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
        ("env.options.x=" + "[" * 40 + "]" * 40, "deeper than 32"),
        ("env" + ".a" * 1000 + "=1", "more than 32"),
        ("nonsense", "section.key=value"),
        ("filter=3", "filter"),
    ],
)
def test_wrong_settings_are_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(sets=[text])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_set_values_are_toml_or_text() -> None:
    assert parse_set("a.b=3") == {"a": {"b": 3}}
    assert parse_set("a=true") == {"a": True}
    assert parse_set("a=[1, 2]") == {"a": [1, 2]}
    assert parse_set("a=x/y.py:Env") == {"a": "x/y.py:Env"}
    assert parse_set("a=b=c") == {"a": "b=c"}


def test_resolved_json_builds_the_same_config() -> None:
    config = load_config(flags={"algorithm.name": "dapo", "filter.value": 0.8})
    assert build_config(json.loads(config.model_dump_json())) == config


def test_config_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().seed = 3  # type: ignore[misc]


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file"):
        load_config(tmp_path / "none.toml")
    broken = (b"a = = 1", b"a = '\xff'", b"x = " + b"[" * 5000 + b"]" * 5000, b"a" + b".a" * 900)
    for content in broken:
        (tmp_path / "bad.toml").write_bytes(content + b" = 1" * content.startswith(b"a."))
        with pytest.raises(UserError, match=r"bad\.toml"):
            load_config(tmp_path / "bad.toml")
    with pytest.raises(UserError, match="cannot read"):
        load_config(tmp_path)


def test_a_sweep_is_not_taken_for_a_run() -> None:
    file = ROOT / "experiments" / "demo.toml"
    with pytest.raises(UserError, match=r"--config .*demo\.toml: .*run it with ragen2 sweep"):
        load_config(file)
    with pytest.raises(UserError, match="TRL needs 2 or more"):
        load_config(flags={"rollout.group_size": 1, "algorithm.name": "ppo"})


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbfsteps = 7\n")
    assert load_config(tmp_path / "x.toml").steps == 7


def test_every_experiment_file_is_a_config() -> None:
    files = sorted((ROOT / "experiments").glob("*.toml"))
    assert files
    for file in files:
        tree = tomllib.loads(file.read_text())
        tree.pop("sweep", None)
        build_config(tree)


def test_ppo_is_a_critic_and_its_presets_say_more() -> None:
    plain = load_config(flags={"algorithm.name": "ppo"}).algorithm
    assert (plain.advantage, plain.loss_type, plain.clip_low, plain.clip_high, plain.entropy) == (
        "gae", "dapo", 0.2, 0.28, 0.0,
    )  # fmt: skip
    assert (plain.gamma, plain.lam, plain.turn_gamma, plain.credit) == (1.0, 1.0, 0.95, "episode")
    assert load_config(preset="ppo").algorithm == plain.model_copy(update={"entropy": 0.001})
    starpo = load_config(preset="starpo-s")
    assert starpo.algorithm == plain
    assert (starpo.filter.strategy, starpo.filter.value, starpo.filter.score) == (
        "top-k", 0.25, "reward_std",
    )  # fmt: skip
    assert load_config().algorithm.advantage == "group"
