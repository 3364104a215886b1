"""A run with SEAL: same boards as without, exact resume, no head in what it leaves behind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from ragen2_cli.config import load_config
from ragen2_cli.runs import RunDirectory
from ragen2_cli.sweeps.plan import plan
from ragen2_cli.training.run import resume, start
from test_train import digest, rows, tiny


def names(file: Path) -> list[str]:
    with safe_open(file, "pt") as tensors:
        return list(tensors.keys())


def quick(**flags: Any) -> Any:
    return tiny(
        **{"evaluation.episodes": 0, "diagnostics.every": 0, "filter.strategy": "none"} | flags
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    out = tmp_path_factory.mktemp("runs") / "seal"
    start(quick(**{"seal.coefficient": 0.5}), out, quiet=True)
    return RunDirectory.open(out)


def test_its_numbers_are_in_the_metrics(whole: RunDirectory) -> None:
    steps = whole.read_steps()
    for step in steps:
        assert 0 < step.extra["seal/loss"] < 3
        assert 0 <= step.extra["seal/accuracy"] <= 1
        # Undefined, and then absent, where fewer than two episodes are good or bad.
        assert -4 <= step.extra.get("separation/contrast", 0.0) <= 4
    assert any("separation/contrast" in step.extra for step in steps)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="lora"),
        pytest.param({"model.full": True}, id="full", marks=pytest.mark.slow),
        pytest.param({"algorithm.iterations": 2}, id="two iterations", marks=pytest.mark.slow),
        pytest.param({"algorithm.name": "ppo"}, id="ppo", marks=pytest.mark.slow),
    ],
)
def test_two_and_two_steps_are_four(options: dict[str, Any], tmp_path: Path) -> None:  # case 42
    # The schedule is that of four steps, so stop after two by asking for the rest later.
    asked = {"seal.coefficient": 0.5, "optimizer.schedule": "constant", **options}
    first, second = tmp_path / "whole", tmp_path / "parts"
    start(quick(**asked), first, quiet=True)
    start(quick(**asked, steps=2), second, quiet=True)
    resume(second, steps=4, quiet=True)
    whole, parts = RunDirectory.open(first), RunDirectory.open(second)
    assert rows(whole) == rows(parts)
    assert digest(whole.adapter) == digest(parts.adapter)
    heads = [run.checkpoints / "step-000004" / "seal_head.safetensors" for run in (whole, parts)]
    assert heads[0].read_bytes() == heads[1].read_bytes()


def test_the_head_is_in_checkpoints_and_not_in_the_adapter(whole: RunDirectory) -> None:
    checkpoint = whole.checkpoints / "step-000004"
    assert names(checkpoint / "seal_head.safetensors") == sorted(
        [f"{part}.{what}" for part in ("hidden.0", "hidden.1", "norms.0", "norms.1", "out")
         for what in ("weight", "bias")]
    )  # fmt: skip
    for file in (
        checkpoint / "adapter_model.safetensors",
        whole.adapter / "adapter_model.safetensors",
    ):
        assert all("lora" in name for name in names(file))


def test_coefficient_zero_is_the_run_without_it(whole: RunDirectory, tmp_path: Path) -> None:
    start(quick(), tmp_path / "plain", quiet=True)
    start(quick(**{"seal.layers": 5, "seal.separation": True}), tmp_path / "zero", quiet=True)
    plain, zero = (RunDirectory.open(tmp_path / name) for name in ("plain", "zero"))
    assert digest(plain.adapter) == digest(zero.adapter) != digest(whole.adapter)
    assert [replace(row, extra={}) for row in rows(plain)] == [
        replace(row, extra={}) for row in rows(zero)
    ]
    assert not (zero.checkpoints / "step-000004" / "seal_head.safetensors").exists()
    # Seeds stay paired: the first batch is the same with SEAL, and so are its states.
    assert plain.read_rollouts(1) == whole.read_rollouts(1)
    first, other = zero.read_steps()[0].extra, whole.read_steps()[0].extra
    for name in ("separation/within_incorrect", "separation/across"):
        assert first.get(name) == pytest.approx(other.get(name), abs=1e-5)
    assert "separation/within_incorrect" in first


def test_full_fine_tuning_takes_it_too(tmp_path: Path) -> None:
    start(
        quick(**{"seal.coefficient": 0.5, "model.full": True, "steps": 1}),
        tmp_path / "a",
        quiet=True,
    )
    run = RunDirectory.open(tmp_path / "a")
    assert run.read_steps()[0].extra["seal/loss"] > 0
    assert not [name for name in names(run.adapter / "model.safetensors") if "hidden.0" in name]


def test_it_is_swept_like_any_setting() -> None:
    cells = plan({"seal": "0,0.02"}, ["seal.layers=2,3"], "2")
    chosen = {(c.config["seal"]["coefficient"], c.config["seal"]["layers"]) for c in cells}
    assert chosen == {(0.0, 2), (0.0, 3), (0.02, 2), (0.02, 3)}
    assert load_config(sets=["seal.coefficient=0.1"]).seal.coefficient == 0.1
