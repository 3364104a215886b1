"""Raw rewards, final advantages and group scores, by numbers derived in comments."""

import numpy as np
import pytest

from ragen2_cli.core.filters import GroupFilter
from ragen2_cli.errors import UserError
from ragen2_cli.training.selection import (
    Rules,
    normalized_rewards,
    score_from_rows,
    weighted_rewards,
)

NAN = float("nan")


def test_weighted_rewards_leave_unscored_functions_out():
    # 0.5 * 2 + 2 * 1 = 3; 2 * 1 = 2 where the first gave none; no score at all stays NaN.
    rewards = weighted_rewards([[2, 1], [NAN, 1], [NAN, NAN]], [0.5, 2])
    assert rewards[:2].tolist() == [3, 2]
    assert np.isnan(rewards[2])


A, B = [0.9, -0.1], [1, 0]


@pytest.mark.parametrize(
    ("rule", "groups", "kept"),
    [
        # Variances 1/3 six times and 1/4 twice: 0.9 of 2.5 is 2.25 = 6/3 + 1/4.
        (GroupFilter("top-p", 0.9), [[0.9, 0.9, -0.1, -0.1]] * 6 + [[1, 0, 0, 0]] * 2, range(7)),
        # All four spread by 1, variance 1/2: ties go by order, and all pass a share of the best.
        (GroupFilter("top-k-abs", 2), [A, B, B, A], [0, 1]),
        (GroupFilter("min-p", 1.0), [A, B, B, A], range(4)),
        (GroupFilter("top-p", 0.5, keep="smallest"), [A, B, B, A], [0, 1]),
    ],
)
def test_ties_survive_the_float32_that_trl_keeps_rewards_in(rule, groups, kept):
    rewards = weighted_rewards(np.float32(groups).reshape(-1, 1), np.ones(1, np.float32))
    assert rewards.tolist() == np.ravel(groups).tolist()
    decision = Rules(rule).decide(rewards, rewards, np.zeros(len(rewards)), len(groups[0]))
    assert decision.selection.kept.tolist() == list(kept)
    # Two functions of weight 0.1 whose z-scores are the same in all groups.
    both = np.float32(np.repeat(np.reshape([A, B, B, A], (-1, 1)), 2, axis=1))
    judged = normalized_rewards(both, np.float32([0.1, 0.1]), 2)
    assert judged == pytest.approx(np.tile(judged[:2], 4), rel=1e-12)


def test_normalized_rewards_are_weighted_z_scores():
    # Three functions that pick one, one and two of four rows; every weighted sum is 1.
    # First: mean 1/4, std sqrt((9 + 3) / 16 / 3) = 1/2: 1.5, -0.5, -0.5, -0.5; second alike.
    # Third: mean 1/2, std sqrt(4 * 1/4 / 3) = 0.57735: -0.86603 twice, then 0.86603 twice.
    # Sums 1.5 - 0.5 - 0.86603 = 0.13397 twice, -0.5 - 0.5 + 0.86603 = -0.13397 twice.
    rewards = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert weighted_rewards(rewards, [1, 1, 1]).tolist() == [1, 1, 1, 1]
    found = normalized_rewards(rewards, [1, 1, 1], 4)
    assert found == pytest.approx([0.13397, 0.13397, -0.13397, -0.13397], abs=2e-4)
    # Opposite functions cancel exactly, though their raw sum 3, 2, 1 differs; 0.1 is 0.1.
    opposite = [[0.3, 0, 0.1], [0.2, 0.1, 0.1], [0.1, 0.2, 0.1]]
    assert normalized_rewards(opposite, [1, 1, 1], 3).tolist() == [0, 0, 0]
    # A row without any score stays so; one with a single score has that one's, 1/sqrt(2) * 2.
    missing = normalized_rewards([[1, NAN], [0, NAN], [NAN, NAN]], [2, 1], 3)
    assert missing[:2] == pytest.approx([2**0.5, -(2**0.5)], abs=1e-3)
    assert np.isnan(missing[2])


def test_scores_from_rows():
    values = np.array([1, 2, NAN, 5, NAN, NAN])
    # Groups [1, 2, -] and [5, -, -]: means 1.5 and 5; variance (0.25 + 0.25) / 1, undefined.
    assert score_from_rows(values, 3, "length").tolist() == [1.5, 5]
    variance = score_from_rows(values, 3, "entropy_var")
    assert variance[0] == 0.5
    assert np.isnan(variance[1])


def decide(rules, rewards, spread=None):
    rewards_N = np.array(rewards, dtype=float).ravel()
    spread_N = rewards_N if spread is None else np.array(spread, dtype=float).ravel()
    return rules.decide(rewards_N, spread_N, np.full(len(rewards_N), 2.0), len(rewards[0]))


def test_kept_rows_are_scored_rows_of_kept_groups():
    decision = decide(Rules(GroupFilter("top-p", 1.0)), [[1, NAN, 0], [1, 1, 1], [0, 1, 0]])
    assert decision.kept_N.tolist() == [1, 0, 1, 0, 0, 0, 1, 1, 1]
    # Dead groups and unscored rows are exactly 0, the rest is what came in.
    assert decision.advantages_N.tolist() == [2, 0, 2, 0, 0, 0, 2, 2, 2]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        # 1 of 2 groups kept: 2 * 1/2 and 2 * sqrt(1/2).
        ({"loss_scaling": "linear"}, [1, 1]),
        ({"loss_scaling": "sqrt"}, [2**0.5, 2**0.5]),
        # Variances 1/2 and 2: weights 1/4 and 1.
        ({"soft_weighting": True}, [0.5, 2]),
    ],
)
def test_advantages_are_scaled(rules, expected):
    decision = decide(Rules(GroupFilter("top-k-abs", 1), **rules), [[0, 1], [0, 2]])
    assert decision.selection.kept.tolist() == [1]
    assert decision.advantages_N.tolist() == pytest.approx(np.repeat(expected, 2).tolist())


def test_the_filter_judges_the_spread_and_the_log_shows_the_rewards():
    rules = Rules(GroupFilter("top-p", 1.0))
    decision = decide(rules, [[0, -0.1], [1, 0]], spread=[[0, 0], [1, 0]])
    assert decision.selection.kept.tolist() == [1]
    assert decision.advantages_N.tolist() == [2, 2, 2, 2]
    metrics = decision.metrics()
    # Variances 0.005 and 0.5.
    assert metrics["group_reward_var"] == pytest.approx(0.2525)
    assert (metrics["groups"], metrics["kept_groups"], metrics["dead_groups"]) == (2, 1, 0)
    assert metrics["kept_ratio"] == 0.5


def test_no_target_is_no_metric():
    assert "filter_target" not in decide(Rules(GroupFilter("none")), [[0, 1]]).metrics()


def test_an_unknown_scaling_is_refused():
    with pytest.raises(UserError, match="did you mean 'linear'"):
        Rules(GroupFilter("none"), loss_scaling="lineal")
