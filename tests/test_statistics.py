"""Intervals and rank correlation: known answers, then brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2_cli.core.statistics import (
    bootstrap_interval,
    mid_ranks,
    paired_difference,
    spearman,
    wilson,
)
from ragen2_cli.errors import UserError


def test_wilson_of_five_in_ten():
    # z = 1.96, z^2 = 3.8415: center 0.5; half = 1.96 sqrt(.025 + .0096) / 1.3841 = 0.2634
    interval = wilson(5, 10)
    assert interval.estimate == 0.5
    assert interval.low == pytest.approx(0.2366, abs=5e-5)
    assert interval.high == pytest.approx(0.7634, abs=5e-5)


def test_wilson_at_the_ends_stays_inside():
    # 0 of 10: high = z^2/n / (1 + z^2/n) = 3.8415 / 13.8415
    none = wilson(0, 10)
    assert none.low == 0.0
    assert none.high == pytest.approx(3.841459 / 13.841459, abs=1e-6)
    assert wilson(10, 10).high == 1.0
    assert wilson(10, 10).low == pytest.approx(1 - none.high)
    assert math.isnan(wilson(0, 0).estimate)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    with pytest.raises(UserError, match="11 of 10"):
        wilson(11, 10)
    with pytest.raises(UserError, match="confidence"):
        wilson(1, 10, confidence=95)


@settings(deadline=None)
@given(st.integers(1, 2000), st.floats(0, 1))
def test_wilson_contains_the_rate_and_narrows_with_n(n, share):
    interval = wilson(round(share * n), n)
    wider = wilson(round(share * n), n, confidence=0.99)
    assert 0 <= wider.low <= interval.low <= interval.estimate
    assert interval.estimate <= interval.high <= wider.high <= 1


def test_mid_ranks_share_their_mean():
    # 10 < 20 = 20 < 30: ranks 1, 2.5, 2.5, 4
    assert mid_ranks(np.array([20.0, 10.0, 30.0, 20.0])).tolist() == [2.5, 1.0, 4.0, 2.5]


def test_case_44_three_perfect_pairs_have_exact_p_one_third():
    # 3! = 6 orders, two of them (up, down) are as extreme
    result = spearman([1, 2, 3], [10, 20, 40])
    assert result.rho == pytest.approx(1.0)
    assert result.p_value == pytest.approx(1 / 3)
    assert (result.n, result.method) == (3, "exact")
    assert math.isnan(result.ci_low)
    assert "3 independent units, 8 needed" in result.reason


def test_case_44_constant_input_is_undefined():
    result = spearman([1, 1, 1, 1], [1, 2, 3, 4])
    assert math.isnan(result.rho)
    assert math.isnan(result.p_value)
    assert result.reason == "x is constant"
    assert spearman([1, 2], [5, 5]).reason == "y is constant"
    assert spearman([1], [5]).reason == "1 complete pairs, 2 needed"
    assert spearman([], []).n == 0


def test_case_44_missing_pairs_are_dropped_and_counted():
    result = spearman([1, None, 3, 4, 5], [1, 2, math.nan, 4, 5])
    assert (result.n, result.dropped) == (3, 2)
    assert result.rho == pytest.approx(1.0)


def test_hand_computed_rho_with_ties():
    # ranks x 1, 2.5, 2.5, 4; y 1, 2, 3, 4. Centered: -1.5,0,0,1.5 and -1.5,-.5,.5,1.5.
    # rho = 4.5 / sqrt(4.5 x 5) = 0.9487
    result = spearman([1, 2, 2, 3], [1, 2, 3, 4])
    assert result.rho == pytest.approx(4.5 / math.sqrt(22.5))
    # Orders of y with |sum| >= 4.5 put -1.5 and 1.5 at the ends, either way round: 2 x 2 of 24
    assert result.p_value == pytest.approx(4 / 24)


def _brute_force_p(x, y):
    from scipy.stats import spearmanr

    observed = abs(spearmanr(x, y).statistic)
    orders = list(itertools.permutations(y))
    return np.mean([abs(spearmanr(x, order).statistic) >= observed - 1e-9 for order in orders])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("n", [3, 4])
def test_p_value_equals_enumeration(n, seed):
    rng = np.random.default_rng([n, seed])
    x, y = rng.integers(0, 4, n), rng.permutation(n)
    if len(set(x.tolist())) == 1:
        x[0] += 1
    assert spearman(x, y).p_value == pytest.approx(_brute_force_p(x, y))


@pytest.mark.parametrize("n", [6, 7])
def test_p_value_equals_rank_sum_enumeration(n):
    # without ties |rho| is ordered as |sum of products of centered ranks|: exact in integers
    rng = np.random.default_rng(n)
    x, y = rng.permutation(n), rng.permutation(n)
    centered = [2 * k - (n - 1) for k in range(n)]
    a, b = [centered[k] for k in x], [centered[k] for k in y]
    observed = abs(sum(p * q for p, q in zip(a, b, strict=True)))
    sums = [
        abs(sum(p * q for p, q in zip(a, order, strict=True)))
        for order in itertools.permutations(b)
    ]
    expected = sum(value >= observed for value in sums) / math.factorial(n)
    assert spearman(x, y).p_value == pytest.approx(expected)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from([3, 4, 5, 6, 7, 10, 20, 30]))
def test_rho_equals_scipy(seed, n):
    from scipy.stats import spearmanr

    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, n), rng.normal(size=n)
    if len(set(x.tolist())) > 1:
        result = spearman(x, y, permutations=9, resamples=2)
        assert result.rho == pytest.approx(spearmanr(x, y).statistic)
        assert spearman(x, np.exp(y), permutations=9, resamples=2).rho == result.rho


def test_permutation_p_is_seeded_and_near_the_exact_one():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=10), rng.normal(size=10)
    first = spearman(x, y, seed=1)
    assert first.method == "permutation"
    assert first == spearman(x, y, seed=1)
    assert first.p_value != spearman(x, y, seed=2).p_value
    from scipy.stats import spearmanr

    assert first.p_value == pytest.approx(spearmanr(x, y).pvalue, abs=0.05)
    assert spearman(range(20), range(20)).p_value == pytest.approx(1 / 10_000)


def test_interval_is_over_runs_not_over_checkpoints():
    # 8 runs of 50 near-copies each: the copies add nothing to what 8 runs know
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=8), rng.normal(size=8)
    runs = np.repeat(np.arange(8), 50)
    many_x = x[runs] + 1e-6 * rng.normal(size=400)
    many_y = y[runs] + 1e-6 * rng.normal(size=400)
    few = spearman(x, y)
    clustered = spearman(many_x, many_y, clusters=runs.tolist(), permutations=9, resamples=500)
    pretended = spearman(many_x, many_y, permutations=9, resamples=500)
    assert few.ci_low <= few.rho <= few.ci_high
    width = clustered.ci_high - clustered.ci_low
    assert width == pytest.approx(few.ci_high - few.ci_low, rel=0.25)
    assert pretended.ci_high - pretended.ci_low < width / 2
    assert "7 independent" in spearman(x, y, clusters=[0, 0, 1, 2, 3, 4, 5, 6]).reason


def test_levels_remove_agreement_between_levels():
    # within each level y falls with x; across levels both rise
    x, y = [1, 2, 3, 11, 12, 13], [3, 2, 1, 13, 12, 11]
    assert spearman(x, y).rho > 0.5
    within = spearman(x, y, levels=list("aaabbb"))
    # centered ranks -1,0,1,-1,0,1 against 1,0,-1,1,0,-1
    assert within.rho == pytest.approx(-1.0)
    # 36 orders, of which 2 have |sum| = 4 (both levels up or both down)
    assert within.p_value == pytest.approx(2 / 36, abs=0.02)
    assert "within levels" in spearman([1, 1, 2, 2], [1, 2, 3, 4], levels=list("aabb")).reason


def test_lengths_that_differ_are_refused():
    with pytest.raises(UserError, match="differ in length"):
        spearman([1, 2], [1])
    with pytest.raises(UserError, match="pair them"):
        paired_difference([1, 2], [1])
    with pytest.raises(UserError, match="cluster ids"):
        bootstrap_interval([1, 2], clusters=["a"])
    with pytest.raises(UserError, match="flat list"):
        spearman([[1, 2]], [[1, 2]])


def test_bootstrap_covers_the_mean_about_as_often_as_it_says():
    hits = 0
    for seed in range(100):
        values = np.random.default_rng(seed).normal(size=40)
        interval = bootstrap_interval(values, seed=seed, resamples=300)
        hits += interval.low <= 0 <= interval.high
    assert 86 <= hits <= 99  # 95 of 100 expected; the percentile method is a little narrow


def test_bootstrap_edges():
    assert bootstrap_interval([]).n == 0
    assert math.isnan(bootstrap_interval([]).estimate)
    single = bootstrap_interval([3.0, None])
    assert (single.estimate, single.n) == (3.0, 1)
    assert math.isnan(single.low)
    same = bootstrap_interval([2.0, 2.0, 2.0], np.median)
    assert (same.low, same.high) == (2.0, 2.0)
    spread = bootstrap_interval([1, 2, 3, 4, 5], np.median, seed=4)
    assert spread == bootstrap_interval([1, 2, 3, 4, 5], np.median, seed=4)
    assert spread.low < 3 < spread.high


def test_paired_difference_by_hand():
    # differences 1, 2, 3: mean 2, sd 1, t(2, .975) = 4.3027, half 4.3027 / sqrt(3) = 2.4841
    result = paired_difference([2, 4, 6, None], [1, 2, 3, 9])
    assert (result.mean, result.n, result.dropped) == (2.0, 3, 1)
    assert result.ci_low == pytest.approx(2 - 2.4841, abs=1e-4)
    assert result.ci_high == pytest.approx(2 + 2.4841, abs=1e-4)
    flipped = paired_difference([1, 2, 3], [2, 4, 6])
    assert flipped.mean == -result.mean
    assert math.isnan(paired_difference([1], [0]).ci_low)
    assert math.isnan(paired_difference([], []).mean)
