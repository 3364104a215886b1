"""What an optimizer steps is float32, whatever the arithmetic and a frozen base are in.

At a rate of 1e-6 Adam's first step moves a weight by at most 1e-6. Neighbors of a weight between
1/32 and 1/16 are 2^-5 * 2^-7 = 2.4e-4 apart in bfloat16, so such a step rounds to nothing there;
in float32 they are 2^-5 * 2^-23 = 3.7e-9 apart.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ragen2_cli.config import Config, load_config
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training.models import attach_lora, embedded_folder, load_policy
from ragen2_cli.training.preflight import check
from ragen2_cli.training.run import resume, start
from ragen2_cli.training.weights import autocasts, stored_dtype


def config(**flags: object) -> Config:
    small = {
        "steps": 1,
        "rollout.prompts": 4,
        "rollout.group_size": 4,
        "evaluation.episodes": 4,
        "evaluation.matched_entropy": False,
        "diagnostics.every": 1,
        "diagnostics.samples": 4,
        "checkpoints.every": 1,
        "model.device": "cpu",
    }
    return load_config(flags=small | flags)


@pytest.mark.parametrize(
    ("full", "dtype", "stored", "mixed"),
    [
        (True, "auto", "float32", False),  # a CPU has no 16-bit arithmetic worth choosing
        (True, "bfloat16", "float32", True),
        (True, "float32", "float32", False),
        (False, "bfloat16", "bfloat16", False),
        (False, "auto", "auto", False),
    ],
)
def test_every_trained_weight_is_single_precision(
    full: bool, dtype: str, stored: str, mixed: bool
) -> None:
    chosen = config(**{"model.full": full, "model.dtype": dtype})
    assert (stored_dtype(chosen), autocasts(chosen)) == (stored, mixed)


def test_a_gpu_with_bfloat16_trains_every_weight_under_autocast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    chosen = config(**{"model.full": True, "model.device": "cuda"})
    assert (stored_dtype(chosen), autocasts(chosen)) == ("float32", True)
    assert not autocasts(config(**{"model.device": "cuda"}))


def test_half_precision_is_refused_for_every_weight() -> None:
    check(config(**{"model.dtype": "float16"}))
    with pytest.raises(UserError, match="--dtype float16: too narrow for --full"):
        check(config(**{"model.dtype": "float16", "model.full": True}))


def test_an_adapter_on_a_16_bit_base_is_single_precision() -> None:
    base = load_policy("embedded", device="cpu", dtype="bfloat16").model
    model = attach_lora(base, rank=2, alpha=4)
    kinds = {one.requires_grad: one.dtype for one in model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}


def test_small_steps_of_every_weight_arrive(tmp_path: Path) -> None:
    flags = {
        "model.full": True,
        "model.dtype": "bfloat16",
        "optimizer.lr": 1e-6,
        "optimizer.schedule": "constant",
        "algorithm.name": "ppo",
        "algorithm.kl": 0.01,
        "algorithm.entropy": 0.01,
    }
    start(config(**flags), tmp_path / "run", quiet=True)
    run = RunDirectory.open(tmp_path / "run")
    before = load_file(embedded_folder() / "model.safetensors")
    after = load_file(run.adapter / "model.safetensors")
    names = [name for name in before if "proj" in name]
    assert {after[name].dtype for name in names} == {torch.float32}
    moved = torch.cat([(after[name] - before[name].float()).flatten() for name in names])
    assert (moved != 0).double().mean() > 0.95
    assert moved.abs().max() <= 1.07e-6  # and half the distance of float32 numbers below 2
    (step,) = run.read_steps()
    assert step.kl == pytest.approx(0, abs=1e-4)  # policy and reference compute alike
    assert run.read_diagnostics()[0]["cross_scoring"] == "done"
    resume(run.path, steps=2, quiet=True)
    assert len(run.read_steps()) == 2


def test_gradients_are_measured_under_autocast(tmp_path: Path) -> None:
    flags = {"model.full": True, "model.dtype": "bfloat16", "diagnostics.gradients_every": 1}
    flags["model.device"] = "auto"
    start(config(**flags, **{"evaluation.episodes": 0}), tmp_path / "run", quiet=True)
    (found,) = (tmp_path / "run" / "gradients").glob("*.json")
    assert found.stat().st_size
