"""What of TRL's arguments a run sets itself, and which GPU it lets the trainer see."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOConfig

from ragen2_cli.config import load_config
from ragen2_cli.errors import UserError
from ragen2_cli.training import gpus
from ragen2_cli.training.devices import resolve_device
from ragen2_cli.training.grpo_config import SETTINGS, grpo_config


def translated(trl: dict[str, Any], **flags: Any) -> GRPOConfig:
    config = load_config(flags={"model.device": "cpu", **flags})
    config = config.model_copy(update={"trl": trl})
    return grpo_config(config, Path("out"), max_completion_length=7)


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("temperature", "set rollout.temperature"),
        ("beta", "set algorithm.kl"),
        ("learning_rate", "set optimizer.lr"),
        ("steps_per_generation", "set optimizer.micro_batches"),
        ("num_iterations", "set algorithm.iterations"),
        ("max_completion_length", "set rollout.context_limit or algorithm.length_norm"),
        ("entropy_target", "set algorithm.entropy_target"),
        ("gradient_checkpointing", "set model.gradient_checkpointing"),
        ("bf16", "set model.dtype"),
        ("save_strategy", "leave it out"),
        ("top_p", "only vLLM reads it"),
        ("betas", "no such argument"),
        ("mask_truncated_completions", "episodes end at </answer>, which TRL takes for cut off"),
    ],
)
def test_what_another_section_sets_is_refused_with_its_name(key: str, instead: str) -> None:
    with pytest.raises(UserError, match=rf"^trl\.{key}: .*{instead}"):
        translated({key: 1})


@pytest.mark.parametrize("key", SETTINGS)
def test_every_translated_setting_is_owned(key: str) -> None:
    with pytest.raises(UserError, match=f"set {SETTINGS[key]}"):
        translated({key: 1})


def test_what_nobody_sets_goes_through() -> None:
    found = translated({"adam_beta1": 0.8, "dataloader_pin_memory": True, "delta": 2.0})
    assert (found.adam_beta1, found.delta) == (0.8, 2.0)
    assert (found.beta, found.learning_rate, found.max_completion_length) == (0.0, 1e-3, 7)
    assert translated({}, report_to=["tensorboard"]).report_to == ["tensorboard"]
    assert translated({}).report_to == []
    vllm = {"rollout.backend": "vllm"}
    assert translated({"vllm_mode": "server", "top_p": 0.9}, **vllm).vllm_mode == "server"


@pytest.mark.parametrize(
    ("before", "device", "visible", "seen"),
    [
        (None, "auto", "0", "auto"),
        (None, "cuda:1", "1", "cuda:0"),
        ("4,7", "cuda", "4", "cuda"),
        ("4,7", "cuda:1", "7", "cuda:0"),
        ("4,7", "cuda:2", "4,7", "cuda:2"),  # not there, which loading will say
        ("GPU-a,GPU-b", "cuda:0", "GPU-a", "cuda:0"),
        ("", "auto", "", "auto"),
        (None, "cpu", None, "cpu"),
    ],
)
def test_one_process_sees_one_gpu(
    monkeypatch: pytest.MonkeyPatch,
    before: str | None,
    device: str,
    visible: str | None,
    seen: str,
) -> None:
    environment = {} if before is None else {gpus.VISIBLE: before}
    monkeypatch.setattr(os, "environ", environment)
    gpus.show_one(device)
    gpus.show_one(device)  # once more, as a child process would
    assert environment.get(gpus.VISIBLE) == visible
    assert gpus.as_seen(device) == seen


def test_processes_of_a_launcher_see_all(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"WORLD_SIZE": "2", "RANK": "1"}
    monkeypatch.setattr(os, "environ", environment)
    gpus.show_one("cuda:1")
    assert gpus.VISIBLE not in environment
    assert gpus.as_seen("cuda:1") == "cuda:1"


def test_the_second_gpu_is_the_first_that_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {gpus.VISIBLE: "0,1"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: os.environ[gpus.VISIBLE].count(",") + 1)
    gpus.show_one("cuda:1")
    assert resolve_device("cuda:1") == "cuda:0"
    gpus.show_one("cuda:2")
    with pytest.raises(UserError, match="--device cuda:2: not on this machine"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("prompts", "group_size", "parts"),
    [(8, 8, 8), (2, 4, 1), (3, 4, 2), (2, 2, 1), (11, 2, 11), (1, 13, 13), (512, 16, 1024)],
)
def test_an_unset_update_takes_parts_of_8_rollouts_or_fewer(
    prompts: int, group_size: int, parts: int
) -> None:
    sizes = {"rollout.prompts": prompts, "rollout.group_size": group_size}
    arguments = translated({}, **sizes)
    assert arguments.gradient_accumulation_steps == arguments.steps_per_generation == parts
    assert arguments.per_device_train_batch_size == prompts * group_size // parts
    assert arguments.generation_batch_size == prompts * group_size
    one = translated({}, **sizes, **{"optimizer.micro_batches": 1})
    assert one.per_device_train_batch_size == prompts * group_size
