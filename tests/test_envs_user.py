import re
import sys
import textwrap
from pathlib import Path

import pytest

from ragen2_cli.envs import make
from ragen2_cli.envs.session import Limits, Session
from ragen2_cli.envs.splits import heldout_seeds, train_seeds
from ragen2_cli.errors import UserError

DOC = Path(__file__).parents[1] / "docs" / "environments.md"
HEAD = "from ragen2_cli.envs import StepResult, TextEnv\n"
BODY = """
class Mine(TextEnv):
    name = "mine"
    actions = ("Go",)
    def reset(self, seed, noise_seed=0):
        return "start"
    def step(self, action):
        {step}
    def observe(self):
        {observe}
"""


def write(tmp_path, step="return StepResult(1.0, done=True, success=True)", observe='return "s"'):
    path = tmp_path / "mine.py"
    path.write_text(HEAD + BODY.format(step=step, observe=observe))
    return f"{path}:Mine"


def play(env, answer="Go", seed=3):
    session = Session(env, seed=seed, noise_seed=0, limits=Limits.of(env))
    while not session.done:
        session.submit(f"x</think><answer>{answer}</answer>")
    return session


def test_the_documented_example_plays_an_episode(tmp_path):
    code = re.search(r"```python\n(from ragen2_cli.envs import .*?)```", DOC.read_text(), re.S)[1]
    assert 20 <= len(code.strip().splitlines()) <= 40
    path = tmp_path / "my_env.py"
    path.write_text(code)
    env = make(f"{path}:MyEnv", highest=15)
    assert len(heldout_seeds(env, 2)) == 2
    (seed,), _ = train_seeds(env, 0, 0, 1)
    session = Session(env, seed=seed, noise_seed=0, limits=Limits.of(env))
    low, high = 1, 15
    while not session.done:  # halving an interval of 15 finds it in at most 4 guesses
        guess = (low + high) // 2
        message = session.submit(f"halve</think><answer>{guess}</answer>")
        if message is not None:
            low, high = (guess + 1, high) if "too low" in message else (low, guess - 1)
    assert session.status == "success"
    assert session.outcome > 0
    assert play(make(f"{path}:MyEnv"), answer="a lot").status == "turn_cap"


def test_a_file_is_loaded_without_a_trace_on_the_path(tmp_path):
    (tmp_path / "neighbor_of_mine.py").write_text("NAME = 'from next door'\n")
    spec = write(tmp_path, observe="return NAME")
    path = Path(spec.rpartition(":")[0])
    path.write_text("from neighbor_of_mine import NAME\n" + path.read_text())
    before = list(sys.path)
    env = make(spec)
    assert sys.path == before
    assert env.observe() == "from next door"
    assert play(env).success


def test_stochasticity_works_on_a_users_environment(tmp_path):
    env = make(write(tmp_path), stochasticity=1.0, kind="reward")
    assert {play(env).outcome for _ in range(3)} <= {0.0, 1.0}
    with pytest.raises(UserError, match="cannot slip"):
        make(write(tmp_path), stochasticity=0.5, kind="slip")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            "raise KeyError('door')",
            r"step\(\) raised KeyError: 'door' \(mine.py line 9\) \(seed 3\)",
        ),
        ("import json; json.loads('{')", r"raised JSONDecodeError: .* \(mine.py line 9\)"),
        ("import sys; sys.exit(0)", r"step\(\) raised SystemExit: 0 \(mine.py line 9\)"),
        ("return StepResult('1')", r"step\(\) returned the reward '1', not a finite number"),
        ("return StepResult(float('nan'))", r"returned the reward nan"),
        ("return StepResult(1e308)", r"returned the reward 1e\+308"),
        ("return StepResult(10**400)", r"returned the reward 1000"),
        ("return StepResult(True)", r"returned the reward True"),
        ("return 1.0", r"step\(\) returned a value of type float, not a StepResult"),
        ("pass", r"step\(\) returned nothing, not a StepResult"),
        ("return StepResult(1.0, done='yes')", r"returned done='yes'"),
    ],
)
def test_faults_name_the_environment_the_method_and_the_seed(tmp_path, step, message):
    spec = write(tmp_path, step=step)
    with pytest.raises(UserError, match=message) as fault:
        play(make(spec))
    assert spec in str(fault.value)
    assert "(seed 3)" in str(fault.value)
    assert "\n" not in str(fault.value)


def test_what_an_environment_prints_stays_out_of_the_answer(tmp_path, capsys):
    path = Path(write(tmp_path, step="print('noise'); return StepResult(1.0, done=True)")[:-5])
    path.write_text("print('on import')\n" + path.read_text())
    play(make(f"{path}:Mine"))
    said = capsys.readouterr()
    assert said.out == ""
    assert "on import" in said.err
    assert "noise" in said.err


def test_a_constructor_that_fails_is_named(tmp_path):
    spec = write(tmp_path)
    path = Path(spec.rpartition(":")[0])
    path.write_text(path.read_text() + "    def __init__(self, file):\n        open(file)\n")
    with pytest.raises(UserError, match=r"__init__\(\) raised TypeError: .*'file'"):
        make(spec)
    with pytest.raises(UserError, match=r"__init__\(\) raised FileNotFoundError.* line \d+"):
        make(spec, file="no such file")


def test_an_observation_must_be_text(tmp_path):
    env = make(write(tmp_path, step="return StepResult(0.0)", observe="return 5"))
    with pytest.raises(UserError, match=r"observe\(\) returned a value of type int, not a string"):
        play(env)


def test_an_environment_that_never_ends_is_bounded_by_the_caps(tmp_path):
    session = play(make(write(tmp_path, step="return StepResult(0.0)")), answer="Go || Go")
    assert session.status == "action_budget"
    assert sum(len(turn.actions) for turn in session.turns) == 10


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise SystemExit(0)", r"cannot import .*SystemExit"),
        ("x = (", r"cannot import .*SyntaxError"),
        ("import not_a_module_at_all", r"ModuleNotFoundError.*\(mine.py line 1\)"),
        ("x = 1", "no environment class 'Mine'; subclasses of TextEnv in it: none"),
        (
            HEAD + BODY.format(step="pass", observe="pass").replace("Mine", "Mime"),
            "did you mean 'Mime'",
        ),
        (HEAD + "class Mine(TextEnv):\n    pass", "Mine does not define observe, reset, step"),
        (
            HEAD + BODY.format(step="pass", observe="pass") + "    max_turns = 0\n",
            "max_turns must be a whole number from 1, not 0",
        ),
        (
            HEAD + BODY.format(step="pass", observe="pass") + "    actions = 'Go'\n",
            "actions a tuple of strings",
        ),
    ],
)
def test_files_that_hold_no_environment_are_refused(tmp_path, source, message):
    (tmp_path / "mine.py").write_text(textwrap.dedent(source))
    with pytest.raises(UserError, match=message):
        make(f"{tmp_path / 'mine.py'}:Mine")


def test_a_changed_file_is_read_again(tmp_path):
    import os

    spec = write(tmp_path)
    assert play(make(spec)).outcome == 1.0
    write(tmp_path, step="return StepResult(0.25, done=True)")
    os.utime(spec.rpartition(":")[0], ns=(1, 1))
    assert play(make(spec)).outcome == 0.25
