import json

import pytest
from typer.testing import CliRunner

from ragen2_cli.commands.envs import app
from ragen2_cli.envs import REGISTRY, make
from ragen2_cli.envs.human import to_answer
from ragen2_cli.errors import UserError


def run(*arguments, typed=""):
    result = CliRunner().invoke(app, list(arguments), input=typed, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_list_names_every_environment():
    text = run("list").stdout
    for name in REGISTRY:
        assert f"\n{name} " in text
    rows = json.loads(run("list", "--json").stdout)
    assert [row["name"] for row in rows] == list(REGISTRY)
    assert rows[0]["options"]["size"] == 4


def test_show_prints_both_styles_and_the_options_at_work():
    text = run("show", "frozenlake", "--set", "size=5", "--seed", "3").stdout
    first = make("frozenlake", size=5).reset(3)
    for line in first.split("\n"):
        assert text.count(line) >= 2
    assert "max_turns=5" in text
    found = json.loads(run("show", "bandit", "--json").stdout)
    assert found["compact"] == [{"role": "user", "content": make("bandit").reset(0)}]
    assert [message["role"] for message in found["full"]] == ["system", "user"]


def test_a_person_wins_a_board():
    env = make("frozenlake")
    env.reset(7)
    typed = ""
    while moves := env.optimal_actions():
        typed += min(moves)[0].lower() + "\n"
        env.step(min(moves))
    text = run("play", "frozenlake", "--seed", "7", typed=typed).stdout
    assert "√" in text
    assert "success, return 1; the same board again: --seed 7" in text


def test_play_says_what_is_invalid_and_ends_at_the_cap():
    text = run("play", "sokoban", "--seed", "1", typed="fly\n" * 5).stdout
    assert text.count("not a valid answer: -0.1") == 5
    assert "turn_cap, return -0.5" in text


@pytest.mark.parametrize("typed", ["", "q\n", "left\nquit\n"])
def test_leaving_is_no_failure(typed):
    result = run("play", "sokoban", "--seed", "2", "--json", typed=typed)
    assert json.loads(result.stdout) == {
        "env": "sokoban",
        "seed": 2,
        "status": "left",
        "return": None,
    }
    assert "Push every box" in result.stderr


def test_abbreviations():
    actions = ("Left", "Down", "Right", "Up")
    assert to_answer("r, d", actions) == "Right || Down"
    assert to_answer("UP||left", actions) == "Up || Left"
    assert to_answer("jump", actions) == "jump"
    assert to_answer("s", ("Storm", "Snail")) == "s"  # ambiguous: left as it is
    assert to_answer(" 3 + 5 \n", None) == "3 + 5"


def test_unknown_names_reach_the_user():
    with pytest.raises(UserError, match="did you mean 'sokoban'"):
        run("show", "sokobann")
    with pytest.raises(UserError, match="cannot slip"):
        run("play", "sokoban", "--stochasticity", "20")
