"""``ragen2 show``: literal, cut, selected (cases 29 and 46)."""

import json

import pytest
import typer
from typer.testing import CliRunner

from ragen2_cli.commands.literal import visible
from ragen2_cli.commands.show import show
from ragen2_cli.errors import UserError
from ragen2_cli.records import Turn
from ragen2_cli.runs.selection import matches
from test_runs import an_episode, new_run

app = typer.Typer()
app.command()(show)


def call(*arguments):
    """Run the command the way a pipe sees it."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def a_run(tmp_path):
    run = new_run(tmp_path / "runs" / "a")
    run.write_rollouts(1, [an_episode(1, 0, 0)])
    failed = {"success": False, "status": "turn_cap", "episode_return": -0.1, "outcome": 0.0}
    lost = Turn("SFFF", "", "", (), 0.0, -0.1, False)
    run.write_rollouts(
        2,
        [
            an_episode(2, 0, 0),
            an_episode(2, 0, 1, **failed, turns=(lost,), advantage=-0.5),
            an_episode(2, 1, 0, **failed, kept=False, advantage=0.0),
            an_episode(2, 1, 1, **failed, kept=False, advantage=0.0, silent=True),
        ],
    )
    return run


def test_everything_of_an_episode_is_shown(tmp_path):
    run = a_run(tmp_path)
    result = call(run.path, "--step", 2, "--group", 0)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "group 0: 1 of 2 succeed, returns 1 -0.1"
    assert lines[1] == (
        "step 2  group 0  rollout 0  seed 1000  success  return 1  outcome 1  advantage +0.5  kept"
    )
    text = result.stdout
    assert "thought   hole is right, go down" in text
    assert "answered  Down" in text
    assert "result    ran Down  reward 1" in text
    assert "    saw       SFFF\n              FHFH\n" in text
    assert "thought   (nothing)" in text
    assert "ran nothing  reward 0  penalty -0.1  invalid" in text
    assert "\x1b" not in text


def test_newest_run_and_step_are_taken_and_said(tmp_path, monkeypatch):
    a_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = call("--limit", 1)
    assert "reading runs/a (the newest run)" in result.stderr
    assert "showing step 2 (the newest of 2 steps)" in result.stderr
    assert "1 of 4 episodes shown; --limit 0 for all" in result.stderr
    assert "newest" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["--limit", 0], [(0, 0), (0, 1), (1, 0), (1, 1)]),
        (["--outcome", "success"], [(0, 0)]),
        (["--outcome", "failure"], [(0, 1), (1, 0), (1, 1)]),
        (["--outcome", "turn_cap", "--rollout", 1], [(0, 1), (1, 1)]),
        (["--outcome", "dropped", "--limit", 1], [(1, 0)]),
        (["--outcome", "kept"], [(0, 0), (0, 1)]),
        (["--outcome", "invalid"], [(0, 1)]),
        (["--outcome", "grader_error"], []),
        (["--group", 1, "--rollout", 1], [(1, 1)]),
    ],
)
def test_selection(tmp_path, arguments, keys):
    run = a_run(tmp_path)
    result = call(run.path, "--json", *arguments)
    body = json.loads(result.stdout)
    assert [(e["group"], e["rollout"]) for e in body["episodes"]] == keys
    assert body["step"] == 2
    assert ("no episode matches" in result.stderr) == (keys == [])


def test_a_failed_grader_is_neither_success_nor_failure():
    episode = an_episode(1, 0, 0, success=False, status="grader_error", episode_return=None)
    assert not matches(episode, "failure")
    assert not matches(episode, "success")
    assert matches(episode, "grader_error")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", 9], "no rollouts of step 9; steps 1 to 2 are there"),
        (["--group", 7], "step 2 has no group 7; its last is 1"),
        (["--rollout", 7], "step 2 has no rollout 7; its last is 1"),
        (["--outcome", "sucess"], r"no outcome 'sucess' \(did you mean 'success'\?\)"),
    ],
)
def test_wrong_use_is_one_line(tmp_path, arguments, message):  # case 46
    run = a_run(tmp_path)
    result = call(run.path, *arguments)
    assert isinstance(result.exception, UserError)
    with pytest.raises(UserError, match=message):
        raise result.exception
    assert "\n" not in str(result.exception)
    assert result.stdout == ""
    assert result.stderr == ""  # no other line before the error


def test_wrong_paths_are_one_line(tmp_path):  # case 46
    assert "no such folder" in str(call(tmp_path / "x").exception)
    assert "config.json is missing" in str(call(tmp_path).exception)
    empty = new_run(tmp_path / "b")
    assert "no rollouts yet" in str(call(empty.path).exception)


HOSTILE = "[/] [red] list[int] \ud800 漢字 \x1b[31mred\x1b]0;title\x07 \u202e :smile: \r\x9b"
SHOWN = "[/] [red] list[int] \\ud800 漢字 \\x1b[31mred\\x1b]0;title\\x07 \\u202e :smile: \\x0d\\x9b"


@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_text_is_literal_and_cut(tmp_path, monkeypatch, terminal):  # case 29
    run = new_run(tmp_path / "a")
    turn = Turn(HOSTILE, "x" * 5_000_000, HOSTILE, (HOSTILE,), 0.0, 0.0, True)
    run.write_rollouts(1, [an_episode(1, 0, 0, turns=(turn,), prompt=HOSTILE)])
    if terminal:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "400")
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setattr("ragen2_cli.commands.show.on_terminal", lambda: True)
    result = call(run.path)
    assert result.exit_code == 0, result.exception
    assert result.stdout.count(SHOWN) == 3
    assert "[... 4,998,000 more characters]" in result.stdout
    assert len(result.stdout) < 10_000
    assert ("\x1b[" in result.stdout) == terminal

    body = json.loads(call(run.path, "--json").stdout)
    assert body["episodes"][0]["turns"][0]["answer"] == HOSTILE
    assert len(body["episodes"][0]["turns"][0]["reasoning"]) == 5_000_000


def test_no_color_is_honored_on_a_terminal(tmp_path, monkeypatch):
    run = a_run(tmp_path)
    monkeypatch.setattr("ragen2_cli.commands.show.on_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b[3" not in call(run.path).stdout


def test_visible_keeps_lines_and_counts_what_it_cuts():
    assert visible("a\tb\nc\x00\x7f\u2028") == "a    b\nc\\x00\\x7f\\u2028"
    assert visible("abcdef", 4) == "abcd [... 2 more characters]"
    assert visible("abcd", 4) == "abcd"
