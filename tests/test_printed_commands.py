"""The commands that training and export print work as they are printed, folders with blanks too."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ragen2_cli.app import app

DOCS = Path(__file__).parents[1] / "docs" / "environments.md"


def call(words: list[str]) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def printed(text: str, command: str) -> list[str]:
    """Return the words after ``ragen2`` of the one printed line that holds the command."""
    (line,) = [line for line in text.splitlines() if f"ragen2 {command} " in line]
    words = shlex.split(line.partition("ragen2 ")[2])
    assert words[0] == command
    return words


def test_what_training_and_export_print_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The environment of the docs, with an option, a file and a run in a folder with a blank. It has
    # 15 starts, or 20 with the option, of which only a few are held out: far fewer than 512.
    monkeypatch.chdir(tmp_path)
    folder = Path("a b")
    folder.mkdir()
    code = re.search(r"```python\n(.*?class MyEnv.*?)```", DOCS.read_text(), re.DOTALL)
    assert code is not None
    (folder / "my_env.py").write_text(code[1])
    settings = {
        "env.options.highest": 20,
        "env.max_turns": 2,
        "rollout.prompts": 2,
        "rollout.group_size": 4,
        "evaluation.matched_entropy": "false",
        "diagnostics.every": 0,
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    out = ["--out", str(folder / "run"), "--steps", "1", "--eval-episodes", "2"]
    ended = call(["train", "--env", f"{folder}/my_env.py:MyEnv", *out, *sets])
    for command in ("show", "evaluate", "diagnose"):
        assert printed(ended, command)[1] == "a b/run"
    assert re.search(r"sampled, T = 1 .* 2 ", call(printed(ended, "evaluate")))

    exported = printed(call(["models", "export", "a b/run"]), "evaluate")
    assert exported == [
        *("evaluate", "a b/run/merged", "--env", "a b/my_env.py:MyEnv", "--episodes", "2"),
        *("--set", "env.options.highest=20", "--set", "env.max_turns=2"),
    ]
    assert re.search(r"sampled, T = 1 .* 2 ", call(exported))

    # From another folder the run's own relative path leads nowhere; it is said why.
    monkeypatch.chdir(folder)
    error = CliRunner().invoke(app, ["evaluate", "run"]).exception
    assert "'a b/my_env.py' does not exist" in str(error)
    assert "relative paths, a run's own too, count from the current folder" in str(error)
