"""``ragen2 models list | build | export``."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ragen2_cli.app import app
from ragen2_cli.config import load_config
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training.export import export_run
from ragen2_cli.training.models import attach_lora, load_policy


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return a run whose adapter is not the identity."""
    config = load_config(flags={"env.name": "bandit"})
    directory = RunDirectory.create(tmp_path / "run", config.model_dump(mode="json"))
    torch.manual_seed(0)
    wrapped = attach_lora(load_policy("embedded", device="cpu").model, rank=2, alpha=4)
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    wrapped.save_pretrained(directory.adapter)
    directory.write_summary({"steps": 1})
    directory.close()
    return directory


def test_list_names_the_embedded_policy() -> None:
    assert "embedded" in invoke("models", "list")
    listed = json.loads(invoke("models", "list", "--json"))["embedded"]
    assert {lesson["env"] for lesson in listed["lessons"]} >= {"frozenlake", "sokoban"}
    assert listed["bytes"] < 5_000_000


def test_build_writes_a_policy_that_loads(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    written = json.loads(invoke("models", "build", "--out", str(out), "--steps", "2", "--json"))
    assert written["settings"]["steps"] == 2
    assert load_policy(str(out), device="cpu").style == "compact"
    result = CliRunner().invoke(app, ["models", "build", "--out", str(out), "--steps", "2"])
    assert isinstance(result.exception, UserError)
    assert "not empty" in str(result.exception)


def test_export_merges_the_adapter(run: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "served"
    written = json.loads(invoke("models", "export", str(run.path), "--out", str(out), "--json"))
    assert (written["env"], written["base"]) == ("bandit", "embedded")
    assert {file.suffix for file in out.iterdir()} <= {".json", ".safetensors"}
    merged = load_policy(str(out), device="cpu")
    assert merged.style == "compact"
    adapted = load_policy("embedded", device="cpu", adapter=run.adapter, env="bandit").model
    plain = load_policy("embedded", device="cpu", env="bandit").model
    ids = torch.tensor([merged.tokenizer.encode("arms Turtle Dragon\n<think>")])
    torch.testing.assert_close(merged.model(ids).logits, adapted(ids).logits, rtol=1e-4, atol=1e-4)
    assert (plain(ids).logits - adapted(ids).logits).abs().max() > 0.1


@pytest.mark.parametrize("missing", ["adapter", "summary.json"])
def test_export_without_a_final_adapter_is_refused(
    run: RunDirectory, tmp_path: Path, missing: str
) -> None:
    (run.path / missing).rename(tmp_path / missing)
    with pytest.raises(UserError, match="no final adapter yet"):
        export_run(RunDirectory.open(run.path), tmp_path / "served", force=False)
    assert not (tmp_path / "served").exists()
