"""Case 30 on the testbeds: a thousand answers that are none, and what a person sees of them."""

from dataclasses import replace

import pytest

from ragen2_cli.envs import make
from ragen2_cli.envs.session import Limits, Session

JUNK = (
    "",
    "no tags at all",
    "x</think><answer></answer>",
    "x</think><answer>unclosed",
    "x</think><answer>   </answer>",
    "<answer>finish[yes]</answer>",
    "\ud800\u0000 emoji \U0001f600</think>",
)
NO_ACTION = (*JUNK, "x</think><answer>buy it</answer>", "x</think><answer>click[]</answer>")


@pytest.mark.parametrize(
    ("name", "junk"),
    [
        ("metamath", JUNK),
        ("deep_coder", JUNK),
        ("search_qa", NO_ACTION),
        ("web_shop", NO_ACTION),
    ],
)
def test_a_thousand_junk_answers_end_at_the_cap(name, junk):
    env = make(name)
    limits = replace(Limits.of(env), max_turns=1000)
    play = Session(env, seed=5, noise_seed=0, limits=limits, style="compact")
    start = env.observe()
    for number in range(1000):
        assert not play.done
        play.submit(junk[number % len(junk)])
    assert play.status == "turn_cap"
    assert [turn.valid for turn in play.turns] == [False] * 1000
    assert play.episode_return == pytest.approx(-100.0)  # a thousand format penalties of 0.1
    assert play.outcome == 0.0
    assert env.observe() == start
    with pytest.raises(RuntimeError):
        play.submit("x")
