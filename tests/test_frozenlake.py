import math

import numpy as np
import pytest

from ragen2_cli.envs import make
from ragen2_cli.envs.frozenlake import ACTIONS, STANDARD_MAP, FrozenLake, ceiling, distances
from ragen2_cli.errors import UserError

OPEN = ("FFF", "FSF", "FFG")  # start in the middle of open ice


def read(observation):
    """Parse an observation back to (player, goal, holes)."""
    head, *grid = observation.split("\n")
    words = head.split()
    player, goal = (int(words[1]), int(words[2])), (int(words[4]), int(words[5]))
    cells = {(r, c): s for r, row in enumerate(grid) for c, s in enumerate(row)}
    return player, goal, cells


def test_hand_board_walk():
    # S F        P _            Right, Down: onto the goal in two moves
    # H G        O G
    env = FrozenLake()
    assert env.start(("SF", "HG")) == "P 0 0 G 1 1\nP_\nOG"
    assert env.distance_to_goal() == 2
    assert env.optimal_actions() == {"Right"}
    assert env.step("Up").reward == 0  # against the edge: nothing
    assert env.step("Right").done is False
    last = env.step("Down")
    assert (last.reward, last.done, last.success) == (1.0, True, True)
    assert env.observe() == "P 1 1 G 1 1\n__\nO√"
    assert env.optimal_actions() == frozenset()
    with pytest.raises(RuntimeError, match="over"):
        env.step("Down")


def test_falling_into_a_hole_ends_without_reward():
    env = FrozenLake()
    env.start(("SF", "HG"))
    result = env.step("Down")
    assert (result.reward, result.done, result.success) == (0.0, True, False)
    assert env.observe() == "P 1 0 G 1 1\n__\nXG"
    assert env.distance_to_goal() is None


@pytest.mark.parametrize("rate", [1.0, 0.8, 1 / 3, 0.0])
def test_move_shares_at_each_success_rate(rate):  # case 31
    env = FrozenLake(slip=1 - rate)
    after = {"Left": (1, 0), "Down": (2, 1), "Right": (1, 2), "Up": (0, 1)}
    counts = dict.fromkeys(ACTIONS, 0)
    env.start(OPEN, noise_seed=5)
    for _ in range(20_000):
        env._player = (1, 1)
        env.step("Down")
        counts[next(a for a, cell in after.items() if cell == env._player)] += 1
    assert counts["Up"] == 0
    assert math.isclose(counts["Down"] / 20_000, rate, abs_tol=0.015)
    for side in ("Left", "Right"):
        assert math.isclose(counts[side] / 20_000, (1 - rate) / 2, abs_tol=0.015)


@pytest.mark.parametrize(  # case 32
    ("rate", "moves", "value"),
    [(1.0, 5, 0.0), (1.0, 6, 1.0), (1 / 3, 20, 0.199), (1 / 3, 100, 0.744), (0.8, 20, 0.785)],
)
def test_best_policy_ceiling_on_the_standard_map(rate, moves, value):
    assert math.isclose(ceiling(STANDARD_MAP, 1 - rate, moves), value, abs_tol=5e-4)


def test_following_the_optimal_actions_reaches_the_ceiling():
    # with slip 0.2 and 20 moves the best policy reaches 0.785; 2,000 episodes have s.e. 0.009
    env = FrozenLake(slip=0.2, max_actions=20)
    wins = 0
    for noise in range(2_000):
        env.start(STANDARD_MAP, noise_seed=noise)
        for _ in range(20):
            result = env.step(min(env.optimal_actions()))
            if result.done:
                wins += result.success
                break
    assert abs(wins / 2_000 - env.ceiling()) < 0.04


def test_random_boards_are_solvable_within_the_budget_and_parse_back():
    env = make("frozenlake")
    lengths = []
    for seed in range(300):
        player, goal, cells = read(env.reset(seed))
        length = env.distance_to_goal()
        lengths.append(length)
        assert cells[player] == "P"
        assert cells[goal] == "G"
        for _ in range(length):
            result = env.step(min(env.optimal_actions()))
        assert result.success
    assert min(lengths) == 2
    assert max(lengths) <= 10
    assert np.mean(lengths) > 2.5


def test_optimal_actions_are_exactly_those_that_come_closer():
    env = make("frozenlake", size=5, ice=0.8)
    for seed in range(30):
        env.reset(seed)
        best = env.optimal_actions()
        far = distances(env.board)
        for action in ACTIONS:
            env.reset(seed)
            env.step(action)
            closer = far.get(env._player, 99) == far[env_start(env)] - 1
            assert closer == (action in best)


def env_start(env):
    at = "".join(env.board).index("S")
    return divmod(at, len(env.board))


def test_slips_follow_the_noise_seed():
    def path(noise):
        env = make("frozenlake", slip=0.8)
        env.reset(3, noise)
        seen = []
        for action in ("Left", "Right") * 4:
            if not env._over:
                env.step(action)
            seen.append(env.observe())
        return seen

    assert path(1) == path(1)
    assert len({tuple(path(noise)) for noise in range(20)}) > 5


@pytest.mark.parametrize(
    ("options", "named"),
    [({"size": 2}, "size"), ({"ice": 0}, "ice"), ({"slip": 1.5}, "slip"), ({"size": "4"}, "size")],
)
def test_bad_options_are_named(options, named):
    with pytest.raises(UserError, match=f"'frozenlake': {named} must be"):
        make("frozenlake", **options)
