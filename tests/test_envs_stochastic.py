import numpy as np
import pytest

from ragen2_cli.envs import make
from ragen2_cli.envs.session import Limits, Session
from ragen2_cli.envs.sokoban import Sokoban
from ragen2_cli.envs.stochastic import RandomAction, RandomReward


def test_slip_sets_the_option_and_keeps_the_board():
    plain, slippery = make("frozenlake"), make("frozenlake", stochasticity=0.8, kind="slip")
    assert slippery.slip == 0.8
    assert plain.reset(4) == slippery.reset(4)
    assert plain.key() == slippery.key()


def test_action_noise_has_the_stated_share():
    # level 0.4 over 4 actions: the chosen one runs with 1 - 0.4 + 0.4/4 = 0.7, others 0.1 each
    rows = ["#####", "#___#", "#_P_#", "#___#", "#XO##", "#####"]
    counts = {"Up": 0, "Down": 0, "Left": 0, "Right": 0}
    where = {-5: "Up", 5: "Down", -1: "Left", 1: "Right"}
    env = RandomAction(make("sokoban"), 0.4)
    env.reset(0, 11)
    for _ in range(8_000):
        env.env = Sokoban.from_board(rows)
        start = env.env._state[0]
        env.step("Up")
        counts[where[env.env._state[0] - start]] += 1
    shares = {name: count / 8_000 for name, count in counts.items()}
    assert shares == pytest.approx({"Up": 0.7, "Down": 0.1, "Left": 0.1, "Right": 0.1}, abs=0.02)


def test_action_noise_draws_from_the_arms_of_the_seed():
    env = make("bandit", stochasticity=1.0, kind="action")
    wins = []
    for noise in range(2_000):
        env.reset(5, noise)
        wins.append(env.step(env.actions[0]).success)
    assert abs(np.mean(wins) - 0.5) < 0.05


def play(env, seed, noise, solve):
    """Play the best or (solve=False) junk; return (success, outcome)."""
    session = Session(env, seed=seed, noise_seed=noise, limits=Limits.of(env))
    while not session.done:
        word = min(env.optimal_actions()) if solve else "junk"
        session.submit(f"x</think><answer>{word}</answer>")
    return session.success, session.outcome


@pytest.mark.parametrize(
    ("name", "solve", "true_outcome", "high", "low"),
    [
        ("frozenlake", True, 1.0, 1.0, 0.0),
        ("frozenlake", False, 0.0, 1.0, 0.0),  # ended by the turn cap: the coin is paid there
        ("countdown", True, 1.0, 1.0, 0.0),
        ("countdown", False, 0.0, 1.0, 0.0),
        ("bandit", False, 0.0, 1.0, 0.1),
    ],
)
def test_reward_noise_is_a_fair_coin_and_success_stays_true(name, solve, true_outcome, high, low):
    env = make(name, stochasticity=0.6, kind="reward")
    results = [play(env, 2, noise, solve) for noise in range(2_000)]
    assert {success for success, _ in results} == {solve}
    outcomes = np.array([outcome for _, outcome in results])
    # replaced with 0.6, heads half of the time: 0.3 each; the rest keeps the true outcome
    for value in {high, low, true_outcome}:
        share = 0.3 * (value == high) + 0.3 * (value == low) + 0.4 * (value == true_outcome)
        assert abs(np.mean(np.isclose(outcomes, value)) - share) < 0.045


def test_reward_noise_keeps_the_step_costs_of_sokoban():
    # two moves, then placed: -0.1 - 0.1 + 0.9 = 0.7 of costs and pushes, plus 10 or 0 by the coin
    rows = ["#######", "#P__XO#", "#######"]
    seen = set()
    for noise in range(40):
        env = RandomReward(Sokoban(), 1.0)
        env.reset(0, noise)
        env.env = Sokoban.from_board(rows)
        results = [env.step("Right") for _ in range(3)]
        assert results[-1].success
        seen.add(round(sum(result.reward for result in results), 6))
    assert seen == {0.7, 10.7}


def test_the_coin_is_paid_when_the_context_ends_the_episode():
    paid = set()
    for noise in range(16):
        env = make("frozenlake", stochasticity=1.0, kind="reward")
        session = Session(env, seed=1, noise_seed=noise, limits=Limits.of(env))
        session.submit("junk")
        session.abort("context_limit")
        paid.add(session.outcome)
    assert paid == {0.0, 1.0}


def test_the_coin_belongs_to_the_rollout():
    env = make("frozenlake", stochasticity=1.0, kind="reward")
    outcomes = [play(env, 2, noise, solve=True)[1] for noise in range(16)]
    assert set(outcomes) == {0.0, 1.0}
    assert outcomes == [play(env, 2, noise, solve=True)[1] for noise in range(16)]
