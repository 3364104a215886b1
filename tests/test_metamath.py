"""Word problems: answer equality, the generator, attempts, MetaMathQA rows."""

import json
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from ragen2_cli.envs.metamath import MetaMath, final_answer
from ragen2_cli.envs.metamath.answers import normalize, same, value
from ragen2_cli.envs.metamath.generate import TEMPLATES, Draw, generate
from ragen2_cli.errors import UserError


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("12", "12"),
        ("The answer is: 12.", "12"),
        ("$1,234.50", "2469/2"),
        ("\\boxed{\\frac{3}{4}}", "0.75"),
        ("1 1/2", "3/2"),
        ("-0.5", "-1/2"),
        ("1e3", "1000"),
        ("12 apples", "12"),
        ("x + 1", "X  +  1"),
        ("50%", "50"),
        ("−3", "-3"),
        ("007", "7"),
        ("\\text{Monday}", "monday"),
    ],
)
def test_same(answer, reference):
    assert same(answer, reference)
    assert same(reference, answer)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("0.333", "1/3"),
        ("12 or 13", "12"),
        ("", ""),
        ("5/0", "5"),
        ("1e999999999", "1"),
        ("9**9**9", "1"),
        ("__import__('os')", "1"),
        ("12 34", "1234"),
        ("2-1", "1"),
        ("1,2", "12"),
        ("nan", "0"),
    ],
)
def test_not_same(answer, reference):
    assert not same(answer, reference)


def test_value_is_exact():
    # 3.50 = 7/2; 2 1/3 = 7/3; a mixed number keeps its sign
    assert value("3.50") == Fraction(7, 2)
    assert value("-2 1/3") == Fraction(-7, 3)
    assert value("1 1/0") is None
    assert normalize(" 1,000,000 ") == "1000000"


def test_a_long_answer_is_bounded():
    assert value("1" * 10_000) is None


def test_generated_answers_derived_by_hand():
    # Fixed numbers in place of random ones: `number` returns its lower end each time.
    class Lowest(Draw):
        def number(self, low, high):
            return low

    draw = Lowest(np.random.Generator(np.random.Philox(0)))
    answers = {template.__name__: template(draw)[1] for template in TEMPLATES}
    assert answers == {
        "_buy_and_give": 2 * 3 - 1,
        "_share_equally": 2,  # 1 + 3 = 4, shared by 2
        "_price_and_change": Fraction(970, 100),  # pays 10 for 2 * 0.15
        "_constant_speed": 2,  # 8 km/h for a quarter of an hour
        "_percent_off": 18,  # 20 less a tenth
        "_ages": 8,  # 2 * 3 + 2
        "_rectangle": 14,  # 3 by 4
        "_average": 40,
        "_fraction_of": 3,  # 6 less one half
        "_two_workers": 1,  # two hours each
        "_find_unknown": 2,
        "_legs": 2,
        "_tank": 16,  # 0 + 2 * (10 - 2)
        "_mixture": Fraction(11, 2),  # (2 + 9) / 2
    }


def test_generated_stories_are_whole_and_varied():
    problems = [generate(seed) for seed in range(500)]
    assert len({question for question, _ in problems}) > 470
    assert all(answer >= 0 for _, answer in problems)
    fractions = [answer.denominator > 1 for _, answer in problems]
    assert 50 < sum(fractions) < 250


def test_same_seed_same_problem_in_another_process():
    code = "from ragen2_cli.envs.metamath.generate import generate; print(generate(7)[0])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == generate(7)[0]


def test_attempts_pay_half_each_time():
    env = MetaMath()
    question = env.reset(3)
    right = str(generate(3)[1])
    assert env.key() == question
    # attempts 1 and 2 wrong, third right: 2 ** -2
    assert env.step("-77").reward == 0.0
    assert "-77 is wrong" in env.observe()
    assert env.step("-78").reward == 0.0
    result = env.step(right)
    assert (result.reward, result.done, result.success) == (0.25, True, True)
    with pytest.raises(RuntimeError):
        env.step(right)


def test_invalid_answers_cost_nothing_and_the_last_attempt_ends_it():
    env = MetaMath(attempts=2)
    start = env.reset(0)
    for junk in ("", "   ", "9" * 201):
        result = env.step(junk)
        assert not result.valid
        assert not result.done
        assert env.observe() == start
    assert not env.step("-1").done
    last = env.step("-2")
    assert (last.done, last.success, last.reward) == (True, False, 0.0)


def test_final_answer_of_a_solution():
    assert final_answer("So 3.\n#### 3\nThe answer is: 3") == "3"
    assert final_answer("we get 1/2\nThe answer is: $\\frac{1}{2}$") == "$\\frac{1}{2}$"
    assert final_answer("no idea") is None


def test_metamathqa_rows(tmp_path, caplog):
    path = tmp_path / "meta.jsonl"
    rows = [
        {"query": "1+1?", "response": "2\nThe answer is: 2", "type": "GSM_Rephrased"},
        {"query": "unknown", "response": "hm", "type": "MATH_AnsAug"},
        {"query": "half?", "response": "The answer is: \\frac{1}{2}", "type": "MATH_AnsAug"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    env = MetaMath(data=str(path))
    assert env.reset(0) == "1+1?"
    assert env.reset(3) == "half?"
    assert "1 rows without a final answer left out" in caplog.text
    assert env.step("0.5").success


def test_bad_data_names_field_and_row(tmp_path):
    path = tmp_path / "meta.jsonl"
    path.write_text('{"query": "a", "response": "The answer is: 1"}\n{"querry": "b"}\n')
    with pytest.raises(UserError, match=r"row 1: field 'query' is missing \(did you mean 'querry'"):
        MetaMath(data=str(path)).reset(0)
    with pytest.raises(UserError, match="no such file"):
        MetaMath(data=str(tmp_path / "absent.jsonl")).reset(0)
    path.write_text("[1]\n")
    with pytest.raises(UserError, match="row 0: expected an object"):
        MetaMath(data=str(path)).reset(0)
    path.write_text('{"query": 5, "response": ""}')
    with pytest.raises(UserError, match="'query' is int, expected str"):
        MetaMath(data=str(path)).reset(0)
    with pytest.raises(UserError, match="from 1 to 20"):
        MetaMath(attempts=0)
