"""The group filter: golden data, hand-computed cases, then invariants."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2_cli.core.filters import KEEPS, MASSES, PRESETS, STRATEGIES, GroupFilter
from ragen2_cli.errors import UserError

GOLDENS = Path(__file__).parent / "goldens"
CASES = [
    pytest.param(case, id=case["id"])
    for name in ("filter_selection", "filter_rules")
    for case in json.loads((GOLDENS / f"{name}.json").read_text())["cases"]
]


@pytest.mark.parametrize("case", CASES)
def test_golden_selection(case):
    selection = GroupFilter(**case["config"]).select(case["rewards"])
    expected = case["expected"]
    # the recorded scores are float32: exact to 1e-5 absolute, or to their own rounding when huge
    assert selection.score_P == pytest.approx(expected["scores"], abs=1e-5, rel=1e-5)
    if expected.get("tie_at_boundary", False):
        scores = np.array(expected["scores"])[expected["kept_groups"]]
        assert selection.kept.size == expected["kept_count"]
        kept_scores = sorted(selection.score_P[selection.kept])
        assert kept_scores == pytest.approx(sorted(scores), abs=1e-5, rel=1e-5)
    else:
        assert selection.kept.tolist() == expected["kept_groups"]
    if "dead_groups" in expected:
        assert np.flatnonzero(selection.dead_P).tolist() == expected["dead_groups"]
    assert bool(selection.reason) == (selection.kept.size == 0)


def test_case_1_the_statistic_decides():
    # variances 18, 2, 2, 2: 0.6 x 24 = 14.4, the first is enough.
    # stds 4.243 and 3 x 1.414: 0.6 x 8.485 = 5.091, two are needed.
    rewards = [[0, 6], [0, 2], [0, 2], [0, 2]]
    assert GroupFilter(value=0.6, score="reward_var").select(rewards).kept.tolist() == [0]
    assert GroupFilter(value=0.6, score="reward_std").select(rewards).kept.tolist() == [0, 1]


SPARSE = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]], float)


def test_case_2_absolute_eps_swallows_small_rewards_and_says_so():
    # variances 1/3, 1/4, 0, 0, 1/4: target 0.9 x 5/6 - 0.01 = 0.74 needs all three.
    # rewards x 0.1: target 0.9 x 0.00833 - 0.01 < 0.
    rule = GroupFilter(value=0.9, eps=0.01)
    assert rule.select(SPARSE).kept.tolist() == [0, 1, 4]
    small = rule.select(SPARSE * 0.1)
    assert small.kept.size == 0
    assert small.target == pytest.approx(-0.0025)
    assert "zero or below" in small.reason
    assert "eps_rel" in small.reason
    assert GroupFilter(value=0.9, eps_rel=0.01).select(SPARSE * 0.1).kept.tolist() == [0, 1, 4]


def test_case_3_linear_and_softmax_masses_differ():
    # linear: 0.58 >= 0.5 x 1.03. softmax: e^.58 + k e^.05 >= 0.5 (e^.58 + 9 e^.05) = 5.62 at k = 4.
    scores = [0.58] + [0.05] * 9
    rewards = np.zeros((10, 4))
    linear = GroupFilter(value=0.5, score="entropy")
    assert linear.select(rewards, score_P=scores).kept.tolist() == [0]
    softmax = GroupFilter(value=0.5, score="entropy", mass="softmax")
    assert softmax.select(rewards, score_P=scores).kept.tolist() == [0, 1, 2, 3, 4]


def test_case_3_a_quarter_of_seven_groups_is_one():
    rewards = [[0, k] for k in range(1, 8)]
    assert GroupFilter("top-k", 0.25).select(rewards).kept.tolist() == [6]
    # 0.29 x 100 is 28.999... in binary, and 29 groups in any reader's mind
    hundred = [[0, k] for k in range(1, 101)]
    assert GroupFilter("top-k", 0.29).select(hundred).kept.size == 29


def test_case_4_top_p_one_keeps_every_candidate():
    selection = GroupFilter(value=1.0, eps=0.01, score="length").select(
        np.zeros((3, 2)), score_P=[0.3, 0.2, 0.005]
    )
    assert selection.kept.tolist() == [0, 1, 2]


def test_case_5_every_group_ties():
    selection = GroupFilter().select([[1, 1], [0, 0]])
    assert selection.kept.size == 0
    assert "every group is dead" in selection.reason
    assert selection.weight_P.tolist() == [0.0, 0.0]
    assert GroupFilter("none").select([[1, 1], [0, 0]]).kept.tolist() == [0, 1]


def test_case_6_ten_scores_of_a_tenth_keep_the_first_nine():
    rewards = np.tile([0.0, 0.2**0.5], (10, 1))  # variance 0.1 each
    assert GroupFilter(value=0.9).select(rewards).kept.tolist() == list(range(9))
    for number in (0.1, np.float32(0.1), 1e-30, 1e30):
        kept = GroupFilter(value=0.9).select(rewards, score_P=[number] * 10).kept
        assert kept.tolist() == list(range(9))


def test_case_10_style_groups_of_one_never_keep_and_never_nan():
    selection = GroupFilter().select([[1.0], [0.0]])
    assert selection.kept.size == 0
    assert selection.score_P.tolist() == [0.0, 0.0]
    assert selection.dead_P.all()


def test_soft_weight_is_spread_over_largest_spread():
    selection = GroupFilter().select([[0, 6], [0, 2], [1, 1]])
    assert selection.weight_P == pytest.approx([1.0, 2 / 18, 0.0])
    by_std = GroupFilter(score="reward_std").select([[0, 6], [0, 2], [1, 1]])
    assert by_std.weight_P == pytest.approx([1.0, 1 / 3, 0.0])
    by_mean = GroupFilter(score="reward_mean").select([[0, 6], [0, 2], [1, 1]])
    assert by_mean.weight_P == pytest.approx([1.0, 2 / 18, 0.0])


def test_samples_mass_counts_rollouts_of_uneven_groups():
    # 2 + 2 + 6 rollouts; half is 5. Best first: group 0 (2), group 1 (4), group 2 (10).
    rewards = [[0, 9], [0, 5], [0, 1, 0, 1, 0, 1]]
    with pytest.warns(UserWarning, match="uneven"):
        kept = GroupFilter(value=0.5, mass="samples").select(rewards).kept
    assert kept.tolist() == [0, 1, 2]
    # an unscored rollout is a rollout: 4 of 8 reach 0.5, 3 of 4 groups reach 0.7 (5.6 rollouts)
    even = [[0, None], [0, 5], [0, 4], [0, 3]]
    assert GroupFilter(value=0.5, mass="samples").select(even).kept.tolist() == [1, 2]


def test_keep_smallest_prefers_the_least_spread_among_the_living():
    rewards = [[0, 6], [0, 2], [1, 1], [0, 4]]
    assert GroupFilter("top-k-abs", 1, keep="smallest").select(rewards).kept.tolist() == [1]
    # variances 18, 2, 8: min-p keeps what is at most 2 / 0.25 = 8
    assert GroupFilter("min-p", 0.25, keep="smallest").select(rewards).kept.tolist() == [1, 3]


def test_given_scores_are_required_and_checked():
    with pytest.raises(UserError, match="pass score_P="):
        GroupFilter(score="entropy").select([[0, 1]])
    with pytest.raises(UserError, match=r"shape \(1,\), got \(2,\)"):
        GroupFilter().select([[0, 1]], score_P=[1, 2])
    with pytest.raises(UserError, match="infinite"):
        GroupFilter().select([[0, 1]], score_P=[np.inf])
    selection = GroupFilter(score="entropy").select([[0, 1], [0, 1]], score_P=[np.nan, 2.0])
    assert selection.kept.tolist() == [1]


def test_an_outcome_only_spread_drops_a_group_that_differs_in_format_alone():
    returns = [[1.0, 0.9], [1.0, 0.0]]
    outcome_var = [0.0, 0.5]
    assert GroupFilter(value=1.0).select(returns).kept.tolist() == [0, 1]
    assert GroupFilter(value=1.0).select(returns, score_P=outcome_var).kept.tolist() == [1]


def test_unscored_groups_are_never_kept_by_a_mean():
    rewards = [[-5, -6], [None, None]]
    selection = GroupFilter("top-k-abs", 2, score="reward_mean", include_zero=True).select(rewards)
    assert selection.kept.tolist() == [0]


def test_no_groups_at_all():
    for strategy in STRATEGIES:
        value = 1 if strategy == "top-k-abs" else 0.9
        selection = GroupFilter(strategy, value).select([])
        assert selection.kept.size == 0
        assert selection.reason == "the batch has no groups"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"strategy": "top_p"}, "did you mean 'top-p'"),
        ({"mass": "liner"}, "did you mean 'linear'"),
        ({"score": "reward_variance"}, "did you mean 'reward_var'"),
        ({"keep": "large"}, "did you mean 'largest'"),
        ({"value": 0.0}, r"share in \(0, 1\], got 0.0"),
        ({"value": 90}, r"share in \(0, 1\], got 90"),
        ({"value": float("nan")}, "finite"),
        ({"value": True}, "expected a number"),
        ({"value": "0.9"}, "expected a number"),
        ({"strategy": "top-k-abs"}, "use top-k for a share"),
        ({"eps": -0.1}, "0 or more"),
        ({"eps_rel": 1.0}, r"\[0, 1\)"),
        ({"include_zero": "no"}, "true or false"),
    ],
)
def test_wrong_arguments_are_refused_at_construction(arguments, words):
    with pytest.raises(UserError, match=words):
        GroupFilter(**arguments)


def test_filter_pickles_hashes_and_is_frozen():
    rule = GroupFilter("min-p", 0.5)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert len({rule, GroupFilter("min-p", 0.5)}) == 1
    with pytest.raises(AttributeError):
        rule.value = 0.4  # type: ignore[misc]


def test_presets_construct():
    assert GroupFilter(**PRESETS["ragen2-code"]).eps == 0.01
    assert GroupFilter(**PRESETS["ragen2-main-table"]).mass == "softmax"


# Quarter-integer rewards keep exact ties exact, so that only rounding could break an invariant.
BATCHES = st.lists(
    st.lists(
        st.one_of(st.none(), st.integers(-12, 12).map(lambda k: k / 4)), min_size=3, max_size=3
    ),
    min_size=1,
    max_size=9,
)
VALUES = st.integers(1, 20).map(lambda k: k / 20)
RULES = st.builds(
    GroupFilter,
    strategy=st.sampled_from(["top-p", "top-k", "min-p"]),
    value=VALUES,
    mass=st.sampled_from(MASSES),
    score=st.sampled_from(["reward_var", "reward_std", "reward_mean"]),
    keep=st.sampled_from(KEEPS),
    include_zero=st.booleans(),
)


@settings(deadline=None)
@given(RULES, BATCHES, st.integers(0, 1000))
def test_permuting_groups_keeps_the_same_scores(rule, rewards, seed):
    order = np.random.default_rng(seed).permutation(len(rewards))
    plain, mixed = rule.select(rewards), rule.select([rewards[k] for k in order])
    assert plain.score_P[order].tolist() == mixed.score_P.tolist()
    assert sorted(plain.score_P[plain.kept]) == pytest.approx(sorted(mixed.score_P[mixed.kept]))


@settings(deadline=None)
@given(VALUES, BATCHES, st.sampled_from([0.1, 0.01, 1e-6, 3.0, 1e6]))
def test_scaling_rewards_never_changes_the_default_rule(value, rewards, factor):
    rule = GroupFilter(value=value)
    scaled = [[None if r is None else r * factor for r in row] for row in rewards]
    assert rule.select(rewards).kept.tolist() == rule.select(scaled).kept.tolist()


@settings(deadline=None)
@given(RULES, BATCHES)
def test_kept_is_a_prefix_of_the_sorted_candidates(rule, rewards):
    selection = rule.select(rewards)
    kept = set(selection.kept.tolist())
    assert selection.kept.tolist() == sorted(kept)
    sign = 1 if rule.keep == "largest" else -1
    scored = [any(r is not None for r in row) for row in rewards]
    for dropped in set(range(len(rewards))) - kept:
        if not scored[dropped] or (selection.score_P[dropped] == 0 and not rule.include_zero):
            continue
        for index in kept:
            gap = sign * (selection.score_P[index] - selection.score_P[dropped])
            assert gap >= -1e-9 * abs(selection.score_P[index])
            assert gap > 1e-9 * abs(selection.score_P[index]) or index < dropped


@settings(deadline=None)
@given(BATCHES, st.sampled_from(MASSES), st.sampled_from(["top-p", "top-k"]))
def test_a_larger_value_never_keeps_fewer(rewards, mass, strategy):
    kept: set[int] = set()
    for step in range(1, 21):
        now = set(GroupFilter(strategy, step / 20, mass=mass).select(rewards).kept.tolist())
        assert kept <= now
        kept = now


@settings(deadline=None)
@given(BATCHES)
def test_dead_groups_have_score_and_weight_zero_and_the_rest_do_not(rewards):
    selection = GroupFilter().select(rewards)
    assert (selection.score_P[selection.dead_P] == 0).all()
    assert (selection.weight_P[selection.dead_P] == 0).all()
    assert (selection.score_P[~selection.dead_P] > 0).all()
    assert ((selection.weight_P >= 0) & (selection.weight_P <= 1)).all()
    assert not set(selection.kept) & set(np.flatnonzero(selection.dead_P))
