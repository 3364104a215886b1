"""Programming problems: comparison, layouts, the embedded set, grading, the environment."""

import json
import pickle

import pytest

from ragen2_cli.envs.deep_coder import DeepCoder
from ragen2_cli.envs.deep_coder.compare import same_output, same_result
from ragen2_cli.envs.deep_coder.grade import extract, grade
from ragen2_cli.envs.deep_coder.problems import Problem, load_rows, parse
from ragen2_cli.errors import UserError
from ragen2_cli.sandbox import Limits, Pool
from ragen2_cli.sandbox.layers import Layers

DOUBLE = Problem("here", "Double the number.", "", (("1\n", "2"), ("-3\n", "-6")), None)
BIG = "7" * 10_000


@pytest.fixture(scope="module")
def pool():
    with Pool(Limits(seconds=20.0)) as shared:
        yield shared


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("0.333333", "0.333333333333"),  # case 40: |difference| 3.3e-7 < 1e-6
        ("a b\r\nc  \n\n", "a b\nc"),
        ("1  2", "1 2"),
        (BIG, BIG),
        ("+5", "5"),
        ("5.0", "5"),
        ("-0", "0"),
        ("1e3", "1000.0"),
        ("1000000.5", "1000000.9"),  # relative 4e-7
        ("", "\n"),
        ("nan", "nan"),
    ],
)
def test_same_output(output, expected):
    assert same_output(output.encode(), expected)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("0.34", "0.333333333333"),
        ("1\n2", "1 2"),
        ("", "0"),
        (BIG[:-1] + "8", BIG),
        ("5.1", "5"),
        ("inf", "1.0"),
        ("1e9999", "1.0"),
        ("yes", "YES"),
        (" \n1", "1"),
        ("1 2 3", "1 2"),
        ("5.0000001", "5"),  # a whole number is met exactly
    ],
)
def test_not_same_output(output, expected):
    assert not same_output(output.encode(), expected)
    assert not same_output(b"\xff", expected)


def test_same_result():
    assert same_result(b"[1, 2.0000001]", [1, 2.0])
    assert same_result(b"3", [3])  # wrapped in a list of one by the data set
    assert same_result(b'{"a": [null]}', {"a": [None]})
    assert not same_result(b"true", 1)
    assert not same_result(b"[1]", [1, 2])
    assert not same_result(b"", None)
    assert not same_result(b"[" * 100_000, [])


def test_extract():
    assert extract("print(1)") == "print(1)"
    assert extract("text\n```python\nprint(1)\n```\nmore") == "print(1)"
    assert extract("```\na\n```\n```py\nb\n```") == "b"
    assert extract("```python\nprint('||')\n") == "print('||')"


def test_embedded_problems_are_many_and_different():
    problems = [parse(*row) for row in load_rows("")]
    assert len(problems) >= 60
    assert len({problem.statement for problem in problems}) == len(problems)
    assert all(len(problem.tests) >= 4 for problem in problems)
    assert sum(problem.function is not None for problem in problems) >= 8
    levels = [row["difficulty"] for _, row in load_rows("")]
    assert levels.count("easy") >= 25
    assert levels.count("medium") >= 25


@pytest.mark.parametrize("row", load_rows(""), ids=lambda row: row[1]["name"])
def test_each_reference_solution_passes_and_an_empty_program_does_not(row, pool):
    problem = parse(*row)
    result = grade(problem, row[1]["solutions"][0], pool)
    assert result.share == 1.0, result.verdicts
    assert grade(problem, "pass", pool).share == 0.0


def test_hidden_tests_tell_wrong_programs_apart(pool):
    by_name = {row["name"]: parse(where, row) for where, row in load_rows("")}
    nearly = {
        "second-largest": "input()\na = sorted(map(int, input().split()))\nprint(a[-2])",
        "balanced-brackets": "s = input()\nprint('YES' if s.count('(') == s.count(')') else 'NO')",
        "max-subarray": "input()\na = list(map(int, input().split()))\nprint(max(0, sum(a)))",
        "fizz-sum": "n = int(input())\nprint(sum(x for x in range(n) if x % 3 == 0 or x % 5 == 0))",
    }
    quick = Limits(seconds=3.0)
    with Pool(quick) as own:
        for name, source in nearly.items():
            share = grade(by_name[name], source, own).share
            assert share is not None
            assert share < 1.0, name


def test_grade_counts_and_names_what_failed(pool):
    result = grade(DOUBLE, "n = int(input())\nassert n > 0\nprint(2 * n)", pool)
    assert (result.passed, result.total, result.share) == (1, 2, 0.5)
    assert result.verdicts == ("passed", "error")
    assert result.error == "AssertionError"


CHEATS = {
    "exit first": "exit(0)\nprint(int(input()) * 2)",
    "patched comparison": (
        "import builtins, operator\nbuiltins.len = lambda x: 0\noperator.eq = lambda a, b: True\n"
        "class S(str):\n    def __eq__(self, other):\n        return True\nprint(S('x'))"
    ),
    "claims": "print('passed')\nprint('ok')\nimport os\nos._exit(0)",
    "memory": (
        "import gc, sys\ntexts = []\nfor o in gc.get_objects():\n    texts.append(repr(o))\n"
        "f = sys._getframe()\nwhile f:\n    texts.append(repr(f.f_locals))\n    f = f.f_back\n"
        "print(' '.join(texts))"
    ),
    "disk": (
        "import os\nfor folder, _, names in os.walk('/tmp'):\n    for name in names:\n"
        "        print(open(os.path.join(folder, name)).read())\n"
        "print(os.listdir('/tmp'))"
    ),
    "descriptors": (
        "import os\nfor fd in range(64):\n    try:\n        os.set_blocking(fd, False)\n"
        "        os.write(1, os.read(fd, 9999))\n    except OSError:\n        pass"
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_case_39_no_credit_without_the_answer(name, pool):
    marker = "expected-8c1f"
    problem = Problem("here", "Print the marker.", "", (("1\n", marker),), None)
    from ragen2_cli.sandbox import Program

    outcome = pool.run(Program(CHEATS[name], ("1\n",)))[0]
    assert marker.encode() not in outcome.output
    assert marker not in outcome.errors
    assert grade(problem, CHEATS[name], pool).share == 0.0


def test_a_function_cannot_answer_for_the_comparison(pool):
    problem = Problem("here", "Return 2.", "", (([1], 2),), "f")
    always = (
        "class E(int):\n    def __eq__(self, o):\n        return True\ndef f(x):\n    return E(7)"
    )
    assert grade(problem, always, pool).share == 0.0
    assert grade(problem, "def f(x):\n    return x + 1", pool).share == 1.0


def row_of(tests, **more):
    return {"problem": "p", "tests": tests, **more}


def test_layouts():
    prime = row_of(json.dumps([{"type": "stdin_stdout", "input": "1\n", "output": "2\n"}]))
    assert parse("x", prime).tests == (("1\n", "2\n"),)
    call = row_of([{"type": "function_call", "fn_name": "f", "input": [1], "output": [2]}])
    assert (parse("x", call).function, parse("x", call).tests) == ("f", (([1], [2]),))
    taco = row_of({"inputs": [["1", "2"], "3"], "outputs": ["4", "5"]})
    assert parse("x", taco).tests == (("1\n2", "4"), ("3", "5"))
    taco_call = row_of({"fn_name": "g", "inputs": [[1, 2]], "outputs": [[3]]})
    assert (parse("x", taco_call).function, parse("x", taco_call).tests) == ("g", (([1, 2], [3]),))
    lcb = row_of(
        json.dumps([{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]),
        metadata=json.dumps({"func_name": "h"}),
        starter_code="class Solution: ...",
    )
    assert (parse("x", lcb).function, parse("x", lcb).tests) == ("h", (([[1, 2], 3], 6),))
    lcb_stdin = row_of([{"input": "1", "output": "1", "testtype": "stdin", "metadata": {}}])
    assert parse("x", lcb_stdin).tests == (("1", "1"),)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tests": "[]"}, "row 3: field 'problem' is missing"),
        ({"problem": "p", "test": []}, r"field 'tests' is missing \(did you mean 'test'"),
        (row_of("[{"), "field 'tests' is not JSON"),
        (row_of([{"input": "1"}]), "row 3, test 0: field 'output' is missing"),
        (row_of({"inputs": ["1"], "outputs": []}), "1 inputs and 0 outputs"),
        (row_of([{"input": "1", "output": "1", "type": "file"}]), "unknown type 'file'"),
        (row_of([{"input": [1], "output": 1, "type": "function_call"}]), "without fn_name"),
        (row_of([{"input": 5, "output": "1"}]), "field 'input' is int, expected text"),
    ],
)
def test_a_wrong_layout_names_field_and_row(row, message):
    with pytest.raises(UserError, match=message):
        parse("data.jsonl row 3", row)


def solution(env: DeepCoder, seed: int) -> str:
    rows = load_rows("")
    env.reset(seed)
    return rows[seed % len(rows)][1]["solutions"][0]


def test_episode_of_one_program():
    env = DeepCoder(seconds=20.0)
    program = solution(env, 3)
    assert env.key() in env.observe()
    result = env.step(f"Here it is:\n```python\n{program}```")
    assert (result.reward, result.done, result.success) == (1.0, True, True)
    with pytest.raises(RuntimeError):
        env.step(program)
    assert pickle.loads(pickle.dumps(env)).observe() == env.observe()


def test_feedback_pays_only_what_it_adds_and_shows_no_test():
    env = DeepCoder(seconds=20.0, feedback_turns=2)
    program = solution(env, 0)  # sum-of-list: 6 tests, one of them has the answer 7
    assert env.step("print(7)").reward == pytest.approx(1 / 6)
    assert "passed 1 of 6 tests" in env.observe()
    assert "wrong answer" in env.observe()
    assert env.step("raise SystemError(open(0).read())").reward == 0.0
    assert env.observe().endswith("The first failing test ended with: SystemError.")
    last = env.step(program)
    assert last.reward == pytest.approx(5 / 6)
    assert (last.done, last.success) == (True, True)


def test_empty_answers_are_invalid_and_cost_no_try():
    env = DeepCoder()
    before = env.reset(1)
    for junk in ("", "```python\n```", "x" * 100_001):
        assert not env.step(junk).valid
    assert env.observe() == before


def test_a_problem_without_tests_has_no_score(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"problem": "p", "tests": "[]"}))
    env = DeepCoder(data=str(path))
    env.reset(0)
    result = env.step("print(1)")
    assert (result.reward, result.done, result.success) == (None, True, False)


def test_a_sandbox_that_fails_gives_no_score(monkeypatch):
    from ragen2_cli.envs import deep_coder
    from ragen2_cli.sandbox import SandboxError

    def broken(*args, **options):
        raise SandboxError("the sandbox did not start")

    env = DeepCoder()
    env.reset(0)
    monkeypatch.setattr(deep_coder, "grade", broken)
    assert env.step("print(1)").reward is None


def test_it_refuses_a_machine_without_isolation(monkeypatch):
    from ragen2_cli.envs import deep_coder

    bare = Layers(None, False, "bwrap is not installed", 0, False, True, False)
    monkeypatch.setattr(deep_coder, "detect", lambda: bare)
    with pytest.raises(UserError, match=r"bwrap is not installed.*--unsafe-sandbox"):
        DeepCoder()
    assert DeepCoder(unsafe_sandbox=True).reset(0)
    with pytest.raises(UserError, match="seconds must be"):
        DeepCoder(seconds=0, unsafe_sandbox=True)
