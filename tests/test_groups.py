"""Group statistics, advantages and the bookkeeping around them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2_cli.core.groups import (
    advantages,
    episode_return,
    group_by_id,
    group_stats,
    loss_scaling_factor,
    one_per_episode,
    reward_matrix,
)
from ragen2_cli.errors import UserError

REWARDS = st.lists(
    st.lists(
        st.one_of(st.none(), st.integers(-20, 20).map(lambda k: k / 4)), min_size=4, max_size=4
    ),
    min_size=1,
    max_size=8,
)


def test_statistics_of_a_hand_computed_batch():
    # [1,0,0,0]: mean 1/4; squares (9 + 1 + 1 + 1)/16 = 3/4; over 3 = 1/4; std 1/2
    # [2,4,4,6]: mean 4; squares 4 + 0 + 0 + 4 = 8; over 3 = 8/3
    stats = group_stats([[1, 0, 0, 0], [2, 4, 4, 6]])
    assert stats.mean_P.tolist() == [0.25, 4.0]
    assert stats.var_P == pytest.approx([0.25, 8 / 3])
    assert stats.std_P == pytest.approx([0.5, math.sqrt(8 / 3)])
    assert stats.dead_P.tolist() == [False, False]
    assert stats.scored_P.tolist() == [4, 4]


def test_case_7_float32_ties_are_dead_and_a_small_real_spread_is_not():
    tied = np.full((1, 7), 0.1, dtype=np.float32)
    stats = group_stats(tied)
    assert stats.dead_P[0]
    assert stats.std_P[0] == 0.0
    spread = group_stats([[0.1, 0.1, 0.101, 0.1]])
    assert not spread.dead_P[0]
    assert spread.std_P[0] == pytest.approx(5e-4)  # deviations 3 x -2.5e-4 and 7.5e-4


def test_dead_boundary_is_one_millionth_of_the_largest_reward():
    assert group_stats([[1e6, 1e6 - 1]]).dead_P[0]
    assert not group_stats([[1e6, 1e6 - 1.1]]).dead_P[0]
    assert group_stats([[0.0, 0.0]]).dead_P[0]


def test_case_8_a_failure_without_score_leaves_a_dead_group():
    stats = group_stats([[1, 1, 1, None]])
    assert stats.dead_P[0]
    assert stats.scored_P[0] == 3
    assert stats.var_P[0] == 0.0


def test_case_9_spread_is_per_episode_not_per_turn_row():
    # A repeats its 1 on five rows, B has 0 on one: per episode [1, 0], variance 1/2.
    episodes, values = one_per_episode([1, 1, 1, 1, 1, 0], ["A"] * 5 + ["B"])
    assert episodes == ["A", "B"]
    assert group_stats([values]).var_P[0] == 0.5


def test_rows_of_one_episode_must_agree():
    with pytest.raises(UserError, match="episode 'A'"):
        one_per_episode([1, 2], ["A", "A"])
    with pytest.raises(UserError, match="2 values but 1"):
        one_per_episode([1, 2], ["A"])
    assert np.isnan(one_per_episode([None, math.nan], ["A", "A"])[1][0])


def test_case_11_shuffled_rows_give_identical_groups():
    ids = np.array(["b", "a", "b", "a", "c", "c"])
    rewards = np.array([0.3, 0.1, 0.7, 0.9, 0.2, 0.6])
    expected = [sorted(rewards[rows]) for rows in group_by_id(ids.tolist())]
    stats = group_stats([rewards[rows] for rows in group_by_id(ids.tolist())])
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(6)
        groups = group_by_id(ids[order].tolist())
        assert [sorted(rewards[order][rows]) for rows in groups] == expected
        shuffled = group_stats([rewards[order][rows] for rows in groups])
        assert shuffled.var_P.tolist() == stats.var_P.tolist()  # bit for bit
    assert [rows.tolist() for rows in group_by_id([10, 9, 10, 9])] == [[1, 3], [0, 2]]
    assert group_by_id([]) == []


def test_case_11_uneven_sizes_are_warned_about():
    with pytest.warns(UserWarning, match="uneven sizes"):
        group_by_id(["a", "a", "b"])
    with pytest.warns(UserWarning, match="2 to 3 rollouts"):
        matrix = reward_matrix([[1, 0, None], [1, 1]])
    assert matrix.rows_P.tolist() == [3, 2]
    assert np.isnan(matrix.rewards_P_G[1, 2])


def test_case_12_a_group_of_one_has_no_spread_and_advantage_zero():
    stats = group_stats([[3.0], [5.0]])
    assert stats.std_P.tolist() == [0.0, 0.0]
    assert stats.dead_P.all()
    for scale in ("group", "batch", "none"):
        assert advantages([[3.0], [5.0]], scale).tolist() == [[0.0], [0.0]]


def test_case_13_unscored_row_is_left_out_and_trains_nothing():
    # scored [1,0,0]: mean 1/3, variance (4/9 + 1/9 + 1/9)/2 = 1/3, std 0.5774
    stats = group_stats([[1, None, 0, 0]])
    assert stats.mean_P[0] == pytest.approx(1 / 3)
    assert stats.std_P[0] == pytest.approx(0.5774, abs=5e-5)
    advantage = advantages([[1, None, 0, 0]])[0]
    assert advantage[1] == 0.0
    assert advantage[0] == pytest.approx((2 / 3) / (math.sqrt(1 / 3) + 1e-4))


def test_case_14_advantages_of_one_success_in_four():
    # (1 - 1/4)/(1/2 + 1e-4) = 1.4997, (0 - 1/4)/(1/2 + 1e-4) = -0.4999
    advantage = advantages([[1, 0, 0, 0]])[0]
    assert advantage == pytest.approx([1.4997, -0.4999, -0.4999, -0.4999], abs=5e-5)


def test_batch_scale_divides_by_the_std_of_all_scored_rows():
    # rows 1,0,2,2: mean 5/4, squares (1 + 25 + 9 + 9)/16 = 11/4, variance 11/12
    advantage = advantages([[1, 0], [2, 2]], "batch", eps=0.0)
    assert advantage[0] == pytest.approx(np.array([0.5, -0.5]) / math.sqrt(11 / 12))
    assert advantage[1].tolist() == [0.0, 0.0]
    assert advantages([[1, 0], [2, 2]], "none").tolist() == [[0.5, -0.5], [0.0, 0.0]]


def test_unknown_scale_suggests_the_close_one():
    with pytest.raises(UserError, match="did you mean 'group'"):
        advantages([[1, 0]], "groups")  # type: ignore[arg-type]


@settings(deadline=None)
@given(REWARDS)
def test_advantages_sum_to_zero_and_ignore_a_shift(rewards):
    for scale in ("group", "batch", "none"):
        advantage = advantages(rewards, scale)
        assert np.isfinite(advantage).all()
        assert advantage.sum(axis=1) == pytest.approx(np.zeros(len(rewards)), abs=1e-6)
        shifted = [[None if r is None else r + 8 for r in row] for row in rewards]
        if (group_stats(shifted).dead_P == group_stats(rewards).dead_P).all():
            assert advantages(shifted, scale) == pytest.approx(advantage, abs=1e-9)


@settings(deadline=None)
@given(REWARDS, st.integers(0, 1000))
def test_statistics_do_not_depend_on_the_order_of_rollouts(rewards, seed):
    order = np.random.default_rng(seed).permutation(4)
    plain, mixed = group_stats(rewards), group_stats([[row[k] for k in order] for row in rewards])
    assert plain.var_P.tolist() == mixed.var_P.tolist()
    assert plain.dead_P.tolist() == mixed.dead_P.tolist()
    assert np.isfinite(plain.std_P).all()


def test_case_17_turn_rewards_add_up_to_the_return():
    assert episode_return([-0.1, -0.1, 10.9]) == pytest.approx(10.7)
    assert episode_return([1.0], penalty=-0.2) == pytest.approx(0.8)
    assert math.isnan(episode_return([1.0, None]))
    assert episode_return([]) == 0.0


def test_loss_scaling_of_a_quarter_kept():
    assert loss_scaling_factor(2, 8, "none") == 1.0
    assert loss_scaling_factor(2, 8, "linear") == 0.25
    assert loss_scaling_factor(2, 8, "sqrt") == 0.5
    assert loss_scaling_factor(0, 8, "sqrt") == 0.0
    with pytest.raises(UserError, match="did you mean 'linear'"):
        loss_scaling_factor(2, 8, "liner")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="9 kept groups out of 8"):
        loss_scaling_factor(9, 8)


@pytest.mark.parametrize(
    ("rewards", "words"),
    [
        ([1.0, 0.0], "flat list"),
        (np.zeros((2, 2, 2)), "reshape"),
        ([["a", "b"]], "numbers"),
        ([[1.0, math.inf]], "group 0 has an infinite reward"),
    ],
)
def test_rewards_that_are_not_numbers_by_group_are_refused(rewards, words):
    with pytest.raises(UserError, match=words):
        group_stats(rewards)


def test_an_empty_batch_has_empty_statistics():
    stats = group_stats([])
    assert stats.mean_P.size == stats.dead_P.size == 0
    assert group_stats([[None, None]]).dead_P.tolist() == [True]
    assert np.isnan(group_stats([[None, None]]).mean_P[0])
