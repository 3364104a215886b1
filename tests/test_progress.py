"""The live view: plain lines when piped, what is not known shows as a dash."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from ragen2_cli.records import Evaluation, Step
from ragen2_cli.training.progress import Lines, Silent, View, evaluation_text, progress_for

STEP = Step(
    step=1,
    success=0.25,
    episode_return=0.2,
    groups=8,
    kept_groups=5,
    dead_groups=2,
    reward_std=0.3,
    reward_var=0.1,
    invalid_rate=0.04,
    truncated_rate=0.0,
    entropy=0.5,
    kl=None,
    loss=0.1,
    grad_norm=1.0,
    learning_rate=1e-3,
    response_length=80.0,
    tokens=640,
    rollout_seconds=0.5,
    update_seconds=0.5,
    step_seconds=1.0,
)
EVALUATION = Evaluation(
    step=0,
    decoding="greedy",
    temperature=0.0,
    episodes=512,
    successes=256,
    success=0.5,
    ci_low=0.457,
    ci_high=0.543,
    episode_return=0.5,
    invalid_rate=0.0,
    response_length=80.0,
    entropy=None,
    seconds=3.0,
)


def test_lines_say_everything_and_nothing_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    view = Lines(total=10, every=1)
    view.step(STEP)
    view.step(replace(STEP, step=2, success=None, entropy=None))
    view.close()
    first, second = capsys.readouterr().err.splitlines()
    # 640 tokens in 0.5 s are 1,280 a second.
    for part in ("step 1/10", "success 25%", "kept 5/8", "dead 2", "invalid 4%", "tokens/s 1,280"):
        assert part in first
    assert "success -" in second
    assert "entropy -" in second


def test_the_table_redraws_on_a_terminal() -> None:
    stream = io.StringIO()
    view = View(10, Console(file=stream, force_terminal=True, width=100))
    view.step(STEP)
    view.note("[not markup]")
    view.evaluation(EVALUATION)
    view.close()
    text = stream.getvalue()
    assert "1/10" in text
    assert "[not markup]" in text
    assert "50.0% [45.7%, 54.3%], n = 512" in text


def test_evaluation_text_has_n_and_interval() -> None:
    assert evaluation_text(EVALUATION) == (
        "held-out success after step 0, greedy: 50.0% [45.7%, 54.3%], n = 512"
    )
    sampled = replace(EVALUATION, decoding="sampled", temperature=1.0)
    assert "sampled at T = 1:" in evaluation_text(sampled)


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    view = progress_for(10, quiet=True)
    assert isinstance(view, Silent)
    view.step(STEP)
    view.note("x")
    assert capsys.readouterr().err == ""
