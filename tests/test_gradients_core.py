"""Quantile buckets and the gradient report, with a two-parameter policy worked out by hand."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2_cli.core.gradients import TermNorms, gradient_table, quantile_buckets
from ragen2_cli.core.groups import advantages, group_stats
from ragen2_cli.errors import UserError
from ragen2_cli.training.gradient_sums import GradientSums

GOLDEN = Path(__file__).parent / "goldens" / "rv_buckets.json"
CASES = [pytest.param(case, id=case["id"]) for case in json.loads(GOLDEN.read_text())["cases"]]


@pytest.mark.parametrize("case", CASES)
def test_golden_buckets_with_the_remainder_in_the_last(case):
    buckets = quantile_buckets(case["scores"], case["num_buckets"], remainder="last")
    assert [bucket.tolist() for bucket in buckets] == case["expected_groups_low_to_high"]


def test_case_10_eleven_groups_in_six_buckets():
    sizes = [len(bucket) for bucket in quantile_buckets(range(11))]
    assert sizes == [2, 2, 2, 2, 2, 1]
    assert [len(bucket) for bucket in quantile_buckets(range(11), remainder="last")] == [1] * 5 + [
        6
    ]
    assert [bucket.tolist() for bucket in quantile_buckets([5, 4, 3, 2, 1])] == [
        [4],
        [3],
        [2],
        [1],
        [0],
    ]
    assert quantile_buckets([]) == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 8))
def test_buckets_partition_the_groups_in_score_order(scores, wanted):
    for remainder in ("spread", "last"):
        buckets = quantile_buckets(scores, wanted, remainder)
        assert len(buckets) == min(wanted, len(scores))
        assert sorted(np.concatenate(buckets).tolist()) == list(range(len(scores)))
        values = np.asarray(scores)
        for low, high in itertools.pairwise(buckets):
            assert values[low].max() <= values[high].min()
        if remainder == "spread":
            sizes = [len(bucket) for bucket in buckets]
            assert max(sizes) - min(sizes) <= 1


def test_bucket_arguments_are_checked():
    with pytest.raises(UserError, match="did you mean 'last'"):
        quantile_buckets([1, 2], remainder="lasts")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="at least 1"):
        quantile_buckets([1, 2], 0)
    with pytest.raises(UserError, match="without NaN"):
        quantile_buckets([1, math.nan])


def gradients(task, **regularizers):
    """Gradients of one parameter by term: the policy loss, and ``entropy`` and ``kl`` if given."""
    sums = GradientSums(["none", *regularizers])
    for term, gradient in {"none": task, **regularizers}.items():
        sums.add(term, [torch.tensor(gradient, dtype=torch.float64)])
    return sums


def summed(parts):
    total = GradientSums(["none", "entropy", "kl"])
    for part in parts:
        total.absorb(part)
    return total


def term_norms(sums):
    return sums.norms("none")


def _two_parameter_policy(rewards_P_G, actions_P_G, theta, entropy_coef):
    """Gradients per group of a softmax over two actions, over the rows of the whole batch.

    d log p(a) / d theta = onehot(a) - p; dH / d theta_k = -p_k (log p_k + H).
    """
    p = np.exp(theta) / np.exp(theta).sum()
    entropy = -(p * np.log(p)).sum()
    entropy_gradient = -p * (np.log(p) + entropy)
    rows = rewards_P_G.size
    found = []
    for advantage_G, action_G in zip(advantages(rewards_P_G, "none"), actions_P_G, strict=True):
        score = np.eye(2)[action_G] - p
        task = -(advantage_G[:, None] * score).sum(axis=0) / rows
        entropy_term = -entropy_coef * entropy_gradient * len(action_G) / rows
        found.append(gradients(task, entropy=entropy_term))
    return found


def test_two_parameter_policy_by_hand():
    # Uniform p. Group 0: rewards 1, 0 on actions 0, 1: advantages +-1/2, scores +-(1/2, -1/2):
    # loss gradient -(1/2, -1/2)/4, norm sqrt(1/2)/4. Group 1 ties: exactly 0. H is at its maximum.
    rewards, actions = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[0, 1], [0, 1]])
    live, dead = _two_parameter_policy(rewards, actions, np.zeros(2), 0.1)
    assert term_norms(live).task == pytest.approx(math.sqrt(0.5) / 4)
    assert term_norms(dead).task == 0.0
    assert term_norms(dead).regularizer == pytest.approx(0.0, abs=1e-12)

    # p = (3/4, 1/4): H = 3/4 log(4/3) + 1/4 log 4 = 0.5623; dH/dtheta_0 = -3/4 (log(3/4) + H)
    # = -0.2060, and its negative. Per group 2/4 x 0.1 x 0.2060 x sqrt 2 = 0.01457, spread or not.
    live, dead = _two_parameter_policy(rewards, actions, np.log([3.0, 1.0]), 0.1)
    assert term_norms(live).entropy == pytest.approx(0.01457, abs=1e-5)
    assert term_norms(dead).entropy == pytest.approx(term_norms(live).entropy)
    # scores: onehot - p are (1/4, -1/4) and (-3/4, 3/4): sum 1/2 (1, -1), over 4 rows
    assert term_norms(live).task == pytest.approx(math.sqrt(0.5) / 4)
    assert term_norms(dead).task == 0.0
    assert term_norms(dead).snr == 0.0


def test_table_adds_up_and_rescales():
    # 3-4-5: task (3, 0) and (0, 4) in two buckets, together 5. Regularizers (1, 0) + KL (0, 1).
    one = gradients([3.0, 0.0], entropy=[1.0, 0.0], kl=[0.0, 1.0])
    two = gradients([0.0, 4.0], entropy=[1.0, 0.0], kl=[0.0, 1.0])
    rewards = [[0.0, 2.0], [0.0, 0.0], [0.0, 6.0]]
    stats = group_stats(rewards)
    buckets = quantile_buckets(stats.var_P, 2)
    assert [bucket.tolist() for bucket in buckets] == [[0, 1], [2]]
    low, high, whole = gradient_table(
        [term_norms(one), term_norms(two)],
        term_norms(summed([one, two])),
        buckets,
        score_P=stats.var_P,
        dead_P=stats.dead_P,
        rows_P=[2, 2, 2],
        tokens_P=[10, 20, 5],
        denominator_of="rows",
    )
    assert [row.bucket for row in (low, high, whole)] == ["Q1", "Q2", "all"]
    assert (low.groups, low.dead_groups, low.rows, low.tokens) == (2, 1, 4, 30)
    assert (low.score_low, low.score_mean, low.score_high) == (0.0, 1.0, 2.0)
    assert whole.norms.task == pytest.approx(5.0)
    assert whole.norms.regularizer == pytest.approx(2 * math.sqrt(2))
    assert whole.norms.regularizer_sum == pytest.approx(4.0)
    assert low.norms.snr == pytest.approx(3 / math.sqrt(2))
    assert low.norms.snr_sum == pytest.approx(1.5)
    # 6 rows in the batch: per row of Q1 x 6/4, per token of Q1 x 6/30
    assert low.per("row").task == pytest.approx(4.5)
    assert low.per("token").task == pytest.approx(0.6)
    assert low.per("batch") == low.norms
    assert whole.per("row") == whole.norms
    assert low.per("token").snr == pytest.approx(low.norms.snr)
    with pytest.raises(UserError, match="did you mean 'token'"):
        low.per("tokens")  # type: ignore[arg-type]


def test_a_term_that_is_off_is_absent_not_zero():
    norms = term_norms(gradients([3.0, 4.0]))
    assert norms == TermNorms(task=5.0)
    assert norms.regularizer_sum is None
    assert norms.snr is None
    assert TermNorms(task=1.0, entropy=0.0, regularizer=0.0).snr is None


def test_norms_that_do_not_match_the_buckets_are_refused():
    with pytest.raises(UserError, match="1 norms for 2 buckets"):
        gradient_table(
            [TermNorms(1.0)],
            TermNorms(1.0),
            [np.array([0]), np.array([1])],
            score_P=[1, 2],
            dead_P=[False, False],
            rows_P=[1, 1],
            tokens_P=[1, 1],
            denominator_of="rows",
        )


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_buckets_of_any_split_add_up_to_the_whole(seed):
    rng = np.random.default_rng(seed)
    rewards = rng.integers(0, 3, (8, 4)).astype(float)
    groups = _two_parameter_policy(rewards, rng.integers(0, 2, (8, 4)), rng.normal(size=2), 0.02)
    whole = term_norms(summed(groups))
    buckets = quantile_buckets(group_stats(rewards).var_P, 3)
    parts = [summed([groups[k] for k in bucket]) for bucket in buckets]
    again = term_norms(summed(parts))
    assert again.task == pytest.approx(whole.task, abs=1e-12)
    assert again.regularizer == pytest.approx(whole.regularizer, abs=1e-12)
    assert whole.task <= sum(term_norms(part).task for part in parts) + 1e-12
