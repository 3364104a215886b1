"""What a folder is: a run (also in its first evaluation), a sweep, a model, logs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ragen2_cli.app import app
from ragen2_cli.config import load_config
from ragen2_cli.errors import UserError
from ragen2_cli.records import Cell
from ragen2_cli.runs import RunDirectory
from ragen2_cli.runs.kinds import is_run
from ragen2_cli.sweeps.folder import SweepDirectory

COMMANDS = [
    ["evaluate"],
    ["diagnose"],
    ["show"],
    ["models", "export"],
    ["analyze", "gradients"],
    ["analyze", "probe"],
    ["train", "--resume", "--out"],
]


def problem(*arguments: object) -> str:
    """Run a command that a user can mend, and return what it says."""
    error = CliRunner().invoke(app, [str(one) for one in arguments]).exception
    assert isinstance(error, UserError), repr(error)
    assert "\n" not in str(error)
    return str(error)


def begun(path: Path) -> Path:
    """Make a run that is in its first evaluation: it has its config and nothing else."""
    RunDirectory.create(path, load_config().model_dump(mode="json")).close()
    return path


def sweep(path: Path) -> Path:
    config = load_config().model_dump(mode="json")
    SweepDirectory.create(path, [Cell("one", 0, {}, config, "planned")]).close()
    return path


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["evaluate"], "has no final adapter yet; name a step with --checkpoint"),
        (["diagnose"], "the run has no rollouts yet"),
        (["show"], "no rollouts yet"),
        (["models", "export"], "no final adapter yet"),
        (["analyze", "gradients"], "has no final adapter yet"),
        (["analyze", "probe"], "has no complete checkpoint to play"),
        (["analyze", "entropy"], "the run has no steps yet"),
    ],
    ids=" ".join,
)
def test_a_run_in_its_first_evaluation_is_a_run(
    tmp_path: Path, command: list[str], says: str
) -> None:
    path = begun(tmp_path / "run")
    said = problem(*command, path)
    assert str(path) in said
    assert says in said


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_sweep_where_a_run_belongs_is_called_one(tmp_path: Path, command: list[str]) -> None:
    path = sweep(tmp_path / "sweep")
    assert f"{path} is a sweep; give one of its runs, they are in {path}/runs/" in problem(
        *command, path
    )


def test_a_mistyped_run_is_no_model_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no run at runs/typo: no such folder" in problem("evaluate", "runs/typo")


def test_what_makes_a_run(tmp_path: Path) -> None:
    # A table `config` makes the run; a model's config.json has none. Rollouts make one as well,
    # since a damaged config.json cannot say any more.
    assert not is_run(tmp_path)
    assert is_run(begun(tmp_path / "run"))
    for name, content in (("model", json.dumps({"model_type": "llama"})), ("damaged", "{")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(content)
        assert not is_run(folder)
        (folder / "rollouts").mkdir()
        assert is_run(folder)
