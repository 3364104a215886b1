"""How long an episode may be, and the constant length that Dr. GRPO divides by."""

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import Gemma3Config, GPT2Config, MambaConfig, PreTrainedConfig, Qwen2Config

from ragen2_cli.config import load_config
from ragen2_cli.envs.session import Style
from ragen2_cli.errors import UserError
from ragen2_cli.training.models import LoadedPolicy, context_length
from ragen2_cli.training.player import Player, _rows_at_once, build_player


def player(style: Style, context: int, trl: dict[str, Any] | None = None, **flags: Any) -> Player:
    config = load_config(flags=flags).model_copy(update={"trl": trl or {}})
    nobody: Any = None
    return Player(config, nobody, nobody, style=style, context_limit=context)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        (Gemma3Config(text_config={"max_position_embeddings": 8192}), 8192),  # nested
        (GPT2Config(n_positions=77), 77),  # under another name
        (Qwen2Config(max_position_embeddings=32768), 32768),
        (MambaConfig(), None),
    ],
    ids=["gemma3", "gpt2", "qwen2", "mamba"],
)
def test_the_context_is_found_wherever_the_config_has_it(
    config: PreTrainedConfig, length: int | None
) -> None:
    assert context_length(SimpleNamespace(config=config)) == length


def test_a_model_without_a_length_needs_one_from_the_config() -> None:
    model = SimpleNamespace(
        config=MambaConfig(), generation_config=SimpleNamespace(eos_token_id=None)
    )
    loaded = LoadedPolicy(model, SimpleNamespace(), "full")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"--model embedded: .*set rollout\.context_limit"):
        build_player(load_config(), model, loaded)


@pytest.mark.parametrize(
    ("backend", "given", "limit"),
    [("vllm", 1500, 1500), ("vllm", 5000, 4096), ("vllm", None, 4096), ("transformers", 9, 4096)],
)
def test_an_episode_fits_into_what_vllm_holds(backend: str, given: int | None, limit: int) -> None:
    found = player("full", 4096, {"vllm_max_model_length": given}, **{"rollout.backend": backend})
    assert found.context_limit == limit


@pytest.mark.parametrize(
    ("style", "context", "flags", "length"),
    [
        ("compact", 2048, {}, 2048),  # the embedded policy's whole context
        ("full", 32768, {"env.max_turns": 10}, 4000),  # 10 turns of 400 tokens
        ("full", 32768, {"env.max_turns": 2}, 2048),  # 800 tokens
        ("full", 32768, {"env.max_turns": 10, "rollout.max_new_tokens": 1000}, 10000),
        ("full", 1000, {"env.max_turns": 10}, 1000),
        ("full", 32768, {"algorithm.length_norm": 123}, 123),
    ],
)
def test_the_constant_length_is_what_an_episode_can_sample(
    style: Style, context: int, flags: dict[str, Any], length: int
) -> None:
    assert player(style, context, **flags).max_completion_length == length


@pytest.mark.parametrize(
    ("device", "flags", "rows"),
    [
        ("cpu", {}, None),
        ("cuda", {}, 64),  # 8 x 8 episodes in a batch
        ("cuda", {"rollout.group_size": 16}, 128),
        ("cuda", {"rollout.prompts": 64}, 256),
        ("cuda", {"rollout.group_size": 2}, 64),
        ("cuda", {"rollout.max_rows": 12}, 12),
        ("cpu", {"rollout.max_rows": 300}, 300),
    ],
)
def test_no_more_episodes_at_once_than_train_together(
    monkeypatch: pytest.MonkeyPatch, device: str, flags: dict[str, Any], rows: int | None
) -> None:
    monkeypatch.setattr("ragen2_cli.training.player.resolve_device", lambda _device: device)
    assert _rows_at_once(load_config(flags=flags)) == rows
