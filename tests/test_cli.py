"""The command line as a stranger meets it: help, weight, exit codes."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from ragen2_cli.app import app

HEAVY = ("torch", "trl", "transformers", "peft", "scipy", "matplotlib", "datasets", "pandas")
COMMANDS = (
    [],
    ["train"],
    ["evaluate"],
    ["show"],
    ["sweep"],
    ["compare"],
    ["plot"],
    ["analyze"],
    ["analyze", "gradients"],
    ["analyze", "probe"],
    ["analyze", "correlations"],
    ["envs"],
    ["envs", "list"],
    ["envs", "show"],
    ["envs", "play"],
    ["envs", "doctor"],
    ["models"],
    ["models", "list"],
    ["models", "build"],
    ["models", "export"],
)


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ragen2_cli", *args],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys\n"
        "from ragen2_cli.app import app\n"
        f"try: app({[*command, '--help']!r})\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("HEAVY []")
    assert "Usage:" in done.stdout


def test_leaf_commands_show_an_example() -> None:
    for command in COMMANDS:
        if command in ([], ["envs"], ["models"], ["analyze"]):
            continue
        assert "Example: ragen2" in run(*command, "--help").stdout, command


def test_dry_run_prints_only_json() -> None:
    done = run("train", "--dry-run", "--steps", "3", "--set", "filter.eps=0.5")
    assert done.returncode == 0
    tree = json.loads(done.stdout)
    assert tree["steps"] == 3
    assert tree["filter"]["eps"] == 0.5


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["train", "--env", "frozenlak"], "frozenlake"),
        (["train", "--filter", "topp"], "top-p"),
        (["train", "--model", "./not-there"], "not-there"),
        (["train", "--set", "filter.nope=1"], "nope"),
        (["train", "--group-size", "1"], "group_size"),
        (["train", "--filter-value", "7"], "value"),
        (["train", "--config", "nowhere.toml"], "nowhere.toml"),
        (["train", "--resume"], "no run"),
        (["show", "nowhere"], "nowhere"),
        (["diagnose", "x" * 300], "File name too long"),
        (["evaluate"], "run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_wrong_use_is_one_line_and_exit_2(args: list[str], said: str, tmp_path: Path) -> None:
    done = run(*args, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, done.stderr
    assert said in lines[0]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["train", "--stepz", "3"], "--steps"),
        (["train", "--steps", "abc"], "--steps"),
        (["train", "surplus"], "surplus"),
        (["trian"], "train"),
        (["show", "--group", "-1"], "--group"),
        (["train", "--report-to", "wandb"], "pip install wandb"),
        (["train", "--env", "x\ny\x1b[31mz"], r"x y\x1b[31mz"),
    ],
    ids=range(7),
)
def test_a_wrong_command_line_is_one_line_too(args: list[str], said: str, tmp_path: Path) -> None:
    if "wandb" in args and find_spec("wandb"):
        pytest.skip("wandb is installed")
    done = run(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_group_without_a_command_shows_its_help() -> None:
    done = run("models")
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ")


@pytest.mark.parametrize("command", [["diagnose"], ["analyze", "entropy"]], ids=" ".join)
def test_an_internal_error_is_exit_1_without_the_values_of_locals(command: list[str]) -> None:
    # case 46
    code = (
        "import sys\n"
        "from ragen2_cli import runs\n"
        "from ragen2_cli.app import main\n"
        "def broken(*arguments):\n"
        "    hidden = 'of-a-local'.join(['value-', ''])\n"
        "    raise RuntimeError('planted')\n"
        "runs.find = broken\n"
        f"sys.argv = {['ragen2', *command]!r}\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("RuntimeError: planted\n")
    assert "value-of-a-local" not in done.stderr
    assert done.stdout == ""


def test_brackets_in_help_are_not_eaten() -> None:
    # case 46
    assert "[sweep] table" in " ".join(run("sweep", "--help").stdout.split())
    found = [typer.main.get_command(app)]
    for command in found:
        assert vars(command)["rich_markup_mode"] is None, command.name
        found += vars(command).get("commands", {}).values()
    assert len(found) > len(COMMANDS)
