import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2_cli.envs import make
from ragen2_cli.envs.countdown import Countdown
from ragen2_cli.envs.expressions import NotAnExpression, evaluate, solve
from ragen2_cli.envs.session import Limits, Session


def answer(text):
    env = Countdown()
    env.start(15, [3, 5, 7])
    return env.step(text)


@pytest.mark.parametrize(  # case 34: target 15 from 3, 5, 7
    ("text", "reward", "success", "valid"),
    [
        ("3+5+7", 1.0, True, True),
        (" ( 7 + 5 ) + 3 ", 1.0, True, True),
        ("3*5+7", 0.1, False, True),  # right numbers, 22
        ("7/(5-5)+3", 0.0, False, True),  # 5 twice
        ("3*5", 0.0, False, True),  # skips 7, though 15 is right
        ("5+5+5", 0.0, False, True),  # reuse, though 15 is right
        ("3*5*7/7", 0.0, False, True),
        ("15", 0.0, False, True),
        ("5/0", 0.0, False, True),  # wrong numbers decide first
        ("9**9**9", 0.0, False, False),
        ("__import__('os').system('x')", 0.0, False, False),
        ("3×5", 0.0, False, False),  # typographic times sign: refused, not guessed
        ("3+5+7=15", 0.0, False, False),
        ("-3+5+7", 0.0, False, False),
        ("3 5 7", 0.0, False, False),
        ("(3+5", 0.0, False, False),
        ("3+5)+(7", 0.0, False, False),
        ("()", 0.0, False, False),
        ("", 0.0, False, False),
        ("٣+5+7", 0.0, False, False),  # digits of another script
        ("1234567", 0.0, False, False),
        ("1e9", 0.0, False, False),
        ("(" * 100_000 + "3", 0.0, False, False),
        ("9*" * 99 + "9", 0.0, False, True),
    ],
)
def test_every_kind_of_answer(text, reward, success, valid):
    start = time.perf_counter()
    result = answer(text)
    assert time.perf_counter() - start < 1.0
    assert (result.reward, result.success, result.valid) == (reward, success, valid)
    assert result.done == valid


def test_right_numbers_with_a_division_by_zero_earn_a_tenth():
    env = Countdown()
    env.start(4, [2, 2, 8])
    result = env.step("8/(2-2)")
    assert (result.reward, result.success) == (0.1, False)


def test_fractions_are_exact():
    # 1/3*3 is exactly 1; floats of 1/49*49 are not
    assert evaluate("1/49*49") == (Fraction(1), [1, 49, 49])
    assert evaluate("8/(3-8/3)")[0] == 24


@pytest.mark.parametrize(
    ("text", "value"), [("2+3*4", 14), ("8-3-2", 3), ("16/4/2", 2), ("2*(3+4)-1", 13), ("7", 7)]
)
def test_precedence_and_left_association(text, value):
    assert evaluate(text)[0] == value


def test_solver_finds_what_exists_and_nothing_else():
    assert evaluate(solve([3, 3, 8, 8], 24))[0] == 24  # 8/(3-8/3), the hard one
    assert solve([1, 1, 1], 50) is None


@settings(deadline=None)
@given(st.lists(st.sampled_from(["1", "20", "+", "-", "*", "/", "(", ")", " "])).map("".join))
def test_agrees_with_python_where_both_accept(text):
    import warnings

    try:
        value, numbers = evaluate(text)
    except NotAnExpression:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = "".join(f"Fraction({part})" if part.isdigit() else part for part in split(text))
        try:
            expected = eval(exact, {"Fraction": Fraction})
        except ZeroDivisionError:
            expected = None
    assert value == expected
    assert sorted(numbers) == sorted(int(part) for part in split(text) if part.isdigit())


def split(text):
    import re

    return re.findall(r"\d+|[^\d ]", text)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_graded_without_a_crash(text):
    assert answer(text).reward in (0.0, 0.1, 1.0)


def test_random_puzzles_have_the_solution_that_the_environment_knows():
    env = make("countdown", numbers=4)
    for seed in range(100):
        env.reset(seed)
        assert 1 <= env.target <= 100
        assert len(env.numbers) == 4
        (best,) = env.optimal_actions()
        assert env.step(best).success


def test_one_answer_per_episode_and_junk_is_invalid():
    env = Countdown()
    play = Session(env, seed=4, noise_seed=0, limits=Limits.of(env))
    assert play.submit("x</think><answer>ten</answer>") is None
    assert (play.status, play.episode_return, play.outcome) == ("turn_cap", -0.1, 0.0)
    env = Countdown()
    play = Session(env, seed=4, noise_seed=0, limits=Limits.of(env))
    (best,) = env.optimal_actions()
    play.submit(f"x</think><answer>{best}</answer>")
    assert (play.status, play.episode_return) == ("success", 1.0)
    with pytest.raises(RuntimeError, match="over"):
        env.step(best)
