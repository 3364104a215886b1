import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2_cli.envs import make
from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.session import Limits, Session
from ragen2_cli.errors import UserError


class Script(TextEnv):
    """Plays back results; counts the steps it takes."""

    name = "script"
    instruction = "Press keys."
    actions = ("A", "B")

    def __init__(self, *results):
        self.results = list(results)
        self.steps = 0

    def reset(self, seed, noise_seed=0):
        return self.observe()

    def step(self, action):
        self.steps += 1
        return self.results.pop(0) if self.results else StepResult(0.0)

    def observe(self):
        return f"state {self.steps}"


class Free(Script):
    actions = None
    actions_per_turn = 1


def session(env, **options):
    limits = options.pop("limits", Limits.of(env))
    return Session(env, seed=1, noise_seed=2, limits=limits, **options)


def say(*actions):
    return "hm</think><answer>" + " || ".join(actions) + "</answer>"


def test_return_is_the_sum_over_turns():  # case 17
    # -0.1 - 0.1 + 10.9 = 10.7, and each turn keeps its own reward
    play = session(Script(StepResult(-0.1), StepResult(-0.1), StepResult(10.9, True, True)))
    play.submit(say("A"))
    play.submit(say("B"))
    assert not play.done
    assert play.submit(say("A")) is None
    assert [turn.reward for turn in play.turns] == [-0.1, -0.1, 10.9]
    assert play.episode_return == play.outcome == pytest.approx(10.7, abs=1e-12)
    assert (play.status, play.success, play.done) == ("success", True, True)


def test_two_actions_run_in_order_and_stop_when_done():
    env = Script(StepResult(1.0, done=True))
    play = session(env)
    play.submit(say("a", "B"))
    assert play.turns[0].actions == ("A",)
    assert play.turns[0].valid
    assert env.steps == 1
    assert play.status == "failure"


def test_known_actions_run_and_an_unknown_one_costs_the_penalty():
    play = session(Script())
    message = play.submit(say("jump", "b"))
    turn = play.turns[0]
    assert turn.actions == ("B",)
    assert (turn.valid, turn.penalty, turn.reward) == (False, -0.1, 0.0)
    assert play.outcome == 0.0
    assert play.episode_return == -0.1
    assert "skipped" in message
    assert "-0.1" not in message  # the penalty is never shown


def test_the_cut_comes_before_the_match():
    # three parts are cut to two; the unknown third one is never looked at
    play = session(Script())
    play.submit(say("A", "B", "jump"))
    assert play.turns[0].valid
    assert play.turns[0].actions == ("A", "B")


@pytest.mark.parametrize("junk", ["", "Up", "<answer>A</answer>", "x</think><answer></answer>"])
def test_a_thousand_junk_answers_end_at_the_cap(junk):  # case 30
    env = make("frozenlake")
    play = session(env, limits=Limits(1000, 10, 2))
    board = env.observe()
    for count in range(1, 1001):
        message = play.submit(junk)
        assert (message is None) == (count == 1000)
    assert play.status == "turn_cap"
    assert env.observe() == board
    assert sum(not turn.valid for turn in play.turns) == 1000
    assert math.isclose(play.episode_return, -100.0)
    assert play.outcome == 0.0
    assert not play.success
    with pytest.raises(RuntimeError, match="over"):
        play.submit(junk)


def test_action_budget_cuts_an_answer_short():
    env = Script()
    play = session(env, limits=Limits(5, 3, 2))
    play.submit(say("A", "B"))
    assert play.submit(say("A", "B")) is None
    assert play.status == "action_budget"
    assert play.turns[1].actions == ("A",)
    assert play.turns[1].valid
    assert env.steps == 3


def test_grader_error_has_no_score():
    play = session(Script(StepResult(1.0), StepResult(None)))
    play.submit(say("A"))
    assert play.submit(say("A")) is None
    assert play.status == "grader_error"
    assert play.episode_return is None
    assert play.outcome is None
    assert play.turns[1].reward is None
    assert not play.success


def test_silent_prompt_records_nothing_but_zero():
    play = session(Script(StepResult(0.5), StepResult(9.0, True, True)), silent=True)
    play.submit(say("A", "jump"))
    play.submit(say("A"))
    assert [(turn.reward, turn.penalty) for turn in play.turns] == [(0.0, 0.0), (0.0, 0.0)]
    assert play.episode_return == play.outcome == 0.0
    assert (play.success, play.status) == (False, "failure")


def test_free_text_is_taken_whole_and_may_be_refused():
    env = Free(StepResult(0.0, valid=False), StepResult(1.0, True, True))
    play = session(env)
    assert "state is unchanged" in play.submit(say("f(x || y)"))
    assert play.turns[0].actions == ()
    assert not play.turns[0].valid
    play.submit(say("x || y"))
    assert play.turns[1].actions == ("x || y",)
    assert play.success


def test_abort_keeps_what_was_earned():
    play = session(Script(StepResult(0.5)))
    play.submit(say("A"))
    with pytest.raises(RuntimeError, match="still runs"):
        _ = play.status
    play.abort("context_limit")
    assert (play.status, play.episode_return, play.success) == ("context_limit", 0.5, False)
    with pytest.raises(RuntimeError, match="over"):
        play.abort("context_limit")


def test_full_style_says_all_the_policy_must_know():
    play = session(make("frozenlake"))
    system, user = play.messages
    assert [system["role"], user["role"]] == ["system", "user"]
    for part in ("hole", "Left, Down, Right, Up", "||", "10 actions"):
        assert part in system["content"]
    for part in (
        "Turn 1 of 5",
        "actions left: 10",
        "<answer>action || action</answer>",
        "100 word",
    ):
        assert part in user["content"]
    assert play.env.observe() in user["content"]
    assert "Reward" not in user["content"]
    second = play.submit("junk")
    assert "Reward of the last turn: 0." in second
    assert "unchanged" in second
    assert play.turns[0].observation == user["content"]
    play.submit("junk")
    assert play.turns[1].observation == second


def test_compact_style_is_the_bare_observation():
    play = session(make("frozenlake"), style="compact")
    assert play.messages == [{"role": "user", "content": play.env.observe()}]
    assert play.submit("junk") == "!\n" + play.env.observe()
    assert play.submit(say(min(play.env.optimal_actions()))) == play.env.observe()


FRAGMENTS = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "||",
    "Up",
    "Left",
    "1+",
    "(",
    "\ud800",
]


@pytest.mark.parametrize("name", ["frozenlake", "sokoban", "countdown", "bandit"])
@settings(deadline=None)
@given(
    st.lists(st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS)).map("".join)), max_size=6)
)
def test_no_completion_crashes_an_episode_and_the_books_balance(name, completions):
    env = make(name)
    play = session(env)
    for completion in completions:
        if not play.done:
            play.submit(completion)
    assert len(play.turns) <= play.limits.max_turns
    assert sum(len(turn.actions) for turn in play.turns) <= play.limits.max_actions
    for turn in play.turns:
        assert turn.penalty == (0.0 if turn.valid else -0.1)
        assert turn.valid <= bool(turn.actions)
    penalties = sum(turn.penalty for turn in play.turns)
    assert play.episode_return == pytest.approx(play.outcome + penalties)


@pytest.mark.parametrize(
    "bad", [{"max_turns": 0}, {"max_actions": 0}, {"actions_per_turn": 0}, {"format_penalty": 1.0}]
)
def test_limits_refuse_nonsense(bad):
    with pytest.raises(UserError, match=next(iter(bad))):
        Limits(**{"max_turns": 5, "max_actions": 10, "actions_per_turn": 2} | bad)
