"""Advantages per token, derived by hand first."""

import math

import numpy as np
import pytest

from ragen2_cli.core.advantages import (
    NO_TURN,
    Discounts,
    Moments,
    estimate,
    explained_variance,
    gae,
    last_of_turn,
    spread_over_tokens,
    token_rewards,
    turn_advantages,
    turn_rewards,
    whiten,
)
from ragen2_cli.errors import UserError

X = NO_TURN
# Three turns of one token each, observations of two and one tokens between them. The turns earn 1,
# 0 and 2; the critic says 1, 2 and 4; at observations it says nonsense that nobody may read.
TURN = [[0, X, X, 1, X, 2]]
REWARDS = [[1.0, 0.0, 2.0]]
VALUES = [[1.0, 99.0, math.nan, 2.0, -99.0, 4.0]]
OWN = [0, 3, 5]


@pytest.mark.parametrize(
    ("gamma", "lam", "advantages"),
    [
        # returns 3, 2, 2 minus the values
        (1.0, 1.0, [2.0, 0.0, -2.0]),
        # deltas 1+2-1, 0+4-2, 2-4 = 2, 2, -2; then 2 + .5 * 1, 2 + .5 * -2, -2
        (1.0, 0.5, [2.5, 1.0, -2.0]),
        # returns 1 + .5 * 1, 0 + .5 * 2, 2 = 1.5, 1, 2 minus the values
        (0.5, 1.0, [0.5, -1.0, -2.0]),
        # deltas 1+.5*2-1, 0+.5*4-2, -2 = 1, 0, -2; then 1 + .25 * -.5, 0 + .25 * -2, -2
        (0.5, 0.5, [0.875, -0.5, -2.0]),
    ],
)
def test_three_turns_by_hand(gamma: float, lam: float, advantages: list[float]) -> None:
    found = estimate(REWARDS, VALUES, TURN, "turn", Discounts(gamma, lam))
    assert found.advantages_N_T[0, OWN].tolist() == advantages
    returns = np.array(advantages) + np.array([1.0, 2.0, 4.0])
    assert found.returns_N_T[0, OWN].tolist() == returns.tolist()
    assert not found.advantages_N_T[0, [1, 2, 4]].any()
    assert not found.returns_N_T[0, [1, 2, 4]].any()


def test_episode_credit_puts_the_whole_return_on_the_last_token() -> None:
    # return 3 at the end; gamma .5, lambda 1: returns .75, 1.5, 3 minus 1, 2, 4
    found = estimate(REWARDS, VALUES, TURN, "episode", Discounts(0.5, 1.0))
    assert found.advantages_N_T[0, OWN].tolist() == [-0.25, -0.5, -1.0]


def test_model_tool_model_with_reward_at_the_end() -> None:
    # gamma .5: the observation between the two tokens costs no discount, so .5 and 1
    found = estimate([[0.0, 1.0]], np.zeros((1, 3)), [[0, X, 1]], "episode", Discounts(0.5))
    assert found.returns_N_T.tolist() == [[0.5, 0.0, 1.0]]


def test_undiscounted_without_a_critic_is_the_plain_return() -> None:
    found = estimate(REWARDS, np.zeros((1, 6)), TURN, "episode")
    assert found.advantages_N_T[0, OWN].tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_a_critic_that_knows_the_return_leaves_no_advantage(credit: str, lam: float) -> None:
    plain = estimate(REWARDS, np.zeros((1, 6)), TURN, credit, Discounts(0.5))
    found = estimate(REWARDS, plain.returns_N_T, TURN, credit, Discounts(0.5, lam))
    np.testing.assert_allclose(found.advantages_N_T, 0.0, atol=1e-15)


@pytest.mark.parametrize(
    ("lam", "advantages"),
    [
        # Values 1, 2 | 3, 4, rewards 1 and 6, both discounts .5. Over the turns' ends:
        # lambda 1: 6-4 = 2; 1+.5*4-2 + .5*2 = 2, so the turns are worth 4 and 6. Inside a turn:
        # .5*4-3 + .5*2 = 0; .5*2-1 + .5*2 = 1
        (1.0, [1.0, 2.0, 0.0, 2.0]),
        # lambda .5: 2; 1 + .25*2 = 1.5. Inside: -1 + .25*2 = -.5; 0 + .25*1.5 = .375
        (0.5, [0.375, 1.5, -0.5, 2.0]),
    ],
)
def test_bi_level_by_hand(lam: float, advantages: list[float]) -> None:
    found = estimate(
        [[1.0, 6.0]],
        [[1.0, 2.0, 9.0, 3.0, 4.0]],
        [[0, 0, X, 1, 1]],
        "bi-level",
        Discounts(0.5, lam, 0.5),
    )
    assert found.advantages_N_T[0, [0, 1, 3, 4]].tolist() == advantages


def test_bi_level_without_discounts_is_turn_credit() -> None:
    turn, rewards, values = random_rows()
    level = estimate(rewards, values, turn, "bi-level", Discounts(1.0, 1.0, 1.0))
    plain = estimate(rewards, values, turn, "turn")
    np.testing.assert_allclose(level.advantages_N_T, plain.advantages_N_T, atol=1e-12)


def random_rows(rows: int = 5, turns: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    pattern = [k for turn in range(turns) for k in (turn, turn, X)][:-1]
    turn = np.tile(pattern, (rows, 1))
    return turn, draw.normal(size=(rows, turns)), draw.normal(size=turn.shape)


@pytest.mark.parametrize("credit", ["episode", "turn", "bi-level"])
def test_an_observation_more_changes_no_token_of_the_policy(credit: str) -> None:
    turn, rewards, values = random_rows()
    reach = Discounts(0.9, 0.8, 0.7)
    before = estimate(rewards, values, turn, credit, reach)
    longer = np.insert(turn, [2, 2, 5], X, axis=1)
    found = estimate(rewards, np.insert(values, [2, 2, 5], 7.0, axis=1), longer, credit, reach)
    for old, new in (
        (before.advantages_N_T, found.advantages_N_T),
        (before.returns_N_T, found.returns_N_T),
    ):
        assert new[longer != X].tolist() == old[turn != X].tolist()


@pytest.mark.parametrize("credit", ["episode", "turn", "bi-level"])
def test_rewards_on_tokens_sum_to_the_return(credit: str) -> None:
    turn, rewards, _ = random_rows()
    placed = token_rewards(rewards, turn, credit)
    np.testing.assert_allclose(placed.sum(axis=1), rewards.sum(axis=1))
    assert not placed[~last_of_turn(turn)].any()


def test_rows_of_different_length_share_a_batch() -> None:
    # one turn and three; a missing turn is NaN
    turn = [[0, 0, X, X], [0, X, 1, 2]]
    placed = token_rewards([[5.0, np.nan, np.nan], [1.0, 2.0, 3.0]], turn, "turn")
    assert placed.tolist() == [[0, 5, 0, 0], [1, 0, 2, 3]]
    placed = token_rewards([[5.0, np.nan, np.nan], [1.0, 2.0, 3.0]], turn, "episode")
    assert placed.tolist() == [[0, 5, 0, 0], [0, 0, 0, 6]]


def test_a_row_without_a_token_of_the_policy_is_zero() -> None:
    found = estimate([[1.0]], [[3.0, 3.0]], [[X, X]])
    assert not found.advantages_N_T.any()
    assert token_rewards([[1.0]], [[X, X]], "episode").tolist() == [[0.0, 0.0]]


def test_gae_of_no_columns() -> None:
    assert gae(np.zeros((2, 0)), np.zeros((2, 0)), np.zeros((2, 0))).returns_N_T.shape == (2, 0)


def test_unknown_credit_is_one_line() -> None:
    with pytest.raises(UserError, match="did you mean 'turn'"):
        estimate(REWARDS, VALUES, TURN, "turns")  # type: ignore[arg-type]


def test_turn_rewards_hold_penalties_and_sum_to_the_return() -> None:
    found = turn_rewards([[(0.0, -0.1), (1.0, 0.0)], [(0.5, 0.0)], [(1.0, 0.0), (None, 0.0)]])
    np.testing.assert_array_equal(found, [[-0.1, 1.0], [0.5, np.nan], [np.nan, np.nan]])
    assert np.nansum(found[0]) == pytest.approx(0.9)


# ---- group-relative credit per turn ----


def test_turn_advantages_compare_equal_turn_indices() -> None:
    # Rewards (1, 2), (0, 0), (4): to go (3, 2), (0, 0), (4).
    # Turn 0: 3, 0, 4, mean 7/3. Turn 1: 2 and 0, mean 1.
    found = turn_advantages([[1.0, 2.0], [0.0, 0.0], [4.0, np.nan]], 3, "none")
    np.testing.assert_allclose(found, [[2 / 3, 1.0], [-7 / 3, -1.0], [5 / 3, 0.0]])
    # std of 2 and 0 is sqrt(2)
    scaled = turn_advantages([[1.0, 2.0], [0.0, 0.0], [4.0, np.nan]], 3, "group")
    assert scaled[0, 1] == pytest.approx(1 / (math.sqrt(2) + 1e-4))


def test_a_turn_without_company_gets_its_episodes_advantage() -> None:
    # returns 3 and 1, mean 2: turn 1 of the first rollout is the only one of its index
    found = turn_advantages([[1.0, 2.0], [1.0, np.nan]], 2, "none")
    np.testing.assert_allclose(found, [[1.0, 1.0], [-1.0, 0.0]])


def test_groups_do_not_see_each_other() -> None:
    rewards = np.random.default_rng(0).normal(size=(6, 3))
    apart = [turn_advantages(rewards[start : start + 3], 3) for start in (0, 3)]
    np.testing.assert_allclose(turn_advantages(rewards, 3), np.concatenate(apart))


def test_turn_advantages_of_one_turn_are_the_plain_ones() -> None:
    # 1 and 0, mean .5, std .7071
    found = turn_advantages([[1.0], [0.0]], 2)
    assert found[:, 0].tolist() == pytest.approx(
        [0.5 / (0.5**0.5 + 1e-4), -0.5 / (0.5**0.5 + 1e-4)]
    )


def test_rows_without_a_score_are_left_out() -> None:
    found = turn_advantages([[1.0, 1.0], [0.0, 0.0], [np.nan, np.nan]], 3, "none")
    np.testing.assert_allclose(found, [[1.0, 0.5], [-1.0, -0.5], [0.0, 0.0]])


def test_equal_turns_have_no_advantage() -> None:
    assert not turn_advantages([[0.1, 0.2]] * 4, 4).any()


def test_spread_over_tokens() -> None:
    assert spread_over_tokens([[3.0, 4.0]], [[0, 0, X, 1]]).tolist() == [[3, 3, 0, 4]]
    assert spread_over_tokens(np.zeros((1, 0)), [[X]]).tolist() == [[0]]


# ---- whitening and explained variance ----


def test_whiten_by_hand() -> None:
    # 1, 3 (and an unread 9): mean 2, sample variance 2
    found = whiten([[1.0, 9.0, 3.0]], [[1, 0, 1]])
    np.testing.assert_allclose(found, [[-(0.5**0.5), 0.0, 0.5**0.5]])


def test_whiten_with_the_moments_of_all_processes() -> None:
    values = np.random.default_rng(0).normal(size=(4, 5))
    own = np.ones_like(values, dtype=bool)
    halves = [Moments.of(part, np.ones_like(part)) for part in (values[:2], values[2:])]
    both = Moments(*(a + b for a, b in zip(*(vars(one).values() for one in halves), strict=True)))
    parts = [whiten(part, np.ones_like(part), both) for part in (values[:2], values[2:])]
    np.testing.assert_allclose(np.concatenate(parts), whiten(values, own))


@pytest.mark.parametrize("values", [[[0.1] * 7], [[0.0]], [[5.0]]])
def test_whitening_equal_values_gives_exact_zeros(values: list[list[float]]) -> None:
    assert not whiten(values, np.ones_like(values)).any()


def test_explained_variance_by_hand() -> None:
    # returns 0, 2 (variance 2); values 0, 1, so errors 0, 1 (variance .5): 1 - .25
    everywhere = np.ones(2)
    returns = Moments.of([0.0, 2.0], everywhere)
    assert explained_variance(returns, Moments.of([0.0, 1.0], everywhere)) == 0.75
    assert explained_variance(returns, Moments.of([3.0, 3.0], everywhere)) == 1.0
    assert explained_variance(returns, returns) == 0.0
    assert math.isnan(explained_variance(Moments.of([1.0, 1.0], everywhere), returns))


def test_equal_returns_do_not_vary_for_rounding() -> None:
    # Every episode earns -0.1, undiscounted: every token's return is -0.1 but for rounding.
    noise = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        values = rng.normal(size=(64, 40)).astype(np.float32)
        turn = np.where(np.arange(40) < rng.integers(5, 40, (64, 1)), 0, X)
        found = estimate(np.full((64, 1), -0.1), values, turn)
        returns = Moments.of(found.returns_N_T, turn != X)
        assert returns.mean == pytest.approx(-0.1)
        errors = Moments.of(found.advantages_N_T, turn != X)
        assert math.isnan(explained_variance(returns, errors))
        noise.append(returns.var)
    assert max(noise) > 0
