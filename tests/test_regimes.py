import json

import pytest

from ragen2_cli.core.regimes import NOT_ENOUGH, CollapseWatch, Thresholds, judge


def scored(step, mi, entropy, retrieval=0.9, rows=64, std=0.5, **more):
    return {
        "step": step,
        "rows": rows,
        "scored_rows": rows,
        "prompts": 8,
        "mi_estimate": mi,
        "mi_seq_estimate": 10 * mi,
        "marginal_std": std,
        "marginal_std_seq": 10 * std,
        "conditional_entropy": entropy,
        "retrieval_accuracy": retrieval,
        "retrieval_chance": 0.125,
        **more,
    }


def text(step, mi, z, entropy, unique=0.3, rows=64):
    return {
        "step": step,
        "rows": rows,
        "prompts": 8,
        "prefix_mi": mi,
        "prefix_mi_zscore": z,
        "prefix_conditional_entropy": entropy,
        "unique_prefix_rate": unique,
    }


@pytest.mark.parametrize(
    ("mi", "entropy", "regime"),
    [
        (1.0, 1.0, "diverse"),
        (0.4, 1.0, "template collapse"),
        (1.0, 0.4, "compressed"),
        (0.4, 0.4, "low-entropy collapse"),
    ],
)
def test_the_four_regimes_against_the_runs_own_start(mi, entropy, regime):
    verdict = judge([scored(1, 1.0, 1.0), scored(5, mi, entropy)])
    assert verdict.regime == regime
    assert verdict.basis == "cross-scoring"
    assert (verdict.step, verdict.measurements, verdict.rows) == (5, 2, 64)
    assert verdict.information["baseline"] == 1.0
    assert verdict.next_step.startswith("ragen2 ")
    without = judge([text(1, 1.0, 20.0, 1.0), text(5, mi, 9.0, entropy)])
    assert (without.regime, without.basis) == (regime, "text")


def test_chance_level_counts_even_without_a_fall():
    # chance .125, n 64: two deviations are 2 sqrt(.125 x .875 / 64) = .0827
    assert judge([scored(1, 1, 1), scored(2, 1, 1, retrieval=0.20)]).regime == "template collapse"
    assert judge([scored(1, 1, 1), scored(2, 1, 1, retrieval=0.21)]).regime == "diverse"
    assert judge([text(1, 1, 9, 1), text(2, 1, 1.9, 1)]).regime == "template collapse"


def test_thresholds_are_configurable_and_stated():
    series = [scored(1, 1.0, 1.0), scored(5, 0.4, 1.0)]
    verdict = judge(series, Thresholds(share=0.3))
    assert verdict.regime == "diverse"
    assert "not below 30%" in verdict.reasons[0]
    assert "against 1 at first" in verdict.reasons[0]


def test_first_and_last_measurements_are_averaged():
    # Baseline (1 + 1.2 + 0.8) / 3 = 1, last three (.2 + .9 + .7) / 3 = .6: not below half.
    values = [1, 1.2, 0.8, 0.2, 0.9, 0.7]
    verdict = judge([scored(i, mi, 1.0) for i, mi in enumerate(values)])
    assert verdict.information["value"] == pytest.approx(0.6)
    assert verdict.information["baseline"] == pytest.approx(1.0)
    assert verdict.regime == "diverse"


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        ([], "no measurements"),
        ([scored(1, 1.0, 1.0)], "one measurement has no baseline"),
        ([scored(1, 1, 1, rows=8), scored(2, 1, 1, rows=8)], "no measurement has 16 rows"),
        ([{"step": 1, "rows": 64, "prompts": 1, "prefix_mi": None}], "one prompt only"),
        ([text(1, 2, None, 1, unique=1.0), text(2, 2, None, 1, unique=1.0)], "words of its own"),
    ],
)
def test_not_enough_data_is_a_verdict_with_its_reason(series, reason):
    verdict = judge(series)
    assert verdict.regime == NOT_ENOUGH
    assert reason in verdict.reasons[0]


def test_the_same_words_for_everybody_are_a_low_entropy_collapse():
    verdict = judge([text(1, 1, 20, 1), text(2, 0.0, None, 0.0, unique=1 / 64)])
    assert verdict.regime == "low-entropy collapse"
    assert "same for every prompt" in verdict.reasons[0]


FIXED = text(1, 0.0, None, 0.0, unique=1 / 64)  # "Okay, so I need to figure out how ..." 64 times
LATE = text(1, 0.01, 0.4, 2.0, unique=1.0)  # words of its own, its prompt named after them


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        ([FIXED, FIXED], "same for every prompt: at chance level from the start"),
        ([LATE, LATE], "prefix_mi_zscore 0.4 against 2 by chance: at chance level from the start"),
        # The fourth word tells the prompt, every word of an opening is fixed: entropy 0 against 0.
        ([text(1, 0.5, 30, 0.0), text(2, 0.5, 30, 0.0)], "0 at first: a fixed opening"),
        # All of the 1 standard deviation may be chance: 0.4, 0.4, 1.4 to -0.6.
        ([LATE, LATE, text(3, 0.01, -0.6, 2.0)], "at chance level from the start"),
    ],
)
def test_first_words_alone_prove_no_collapse_by_their_level(series, reason):
    verdict = judge(series)
    assert verdict.regime == NOT_ENOUGH
    assert reason in verdict.reasons[0]
    assert "--model" in verdict.reasons[0]


def test_first_words_above_chance_after_a_start_at_chance_are_information():
    # 0.5 of 1 would be a fall, but the 1 was chance.
    series = [text(1, 1.0, 0.5, 2.0), text(2, 0.4, 9.0, 2.0)]
    assert judge(series).regime == "diverse"


def test_a_score_that_only_wavers_about_the_limit_is_no_fall():
    # 1.9 is not below half of 2.1, 1.0 is.
    assert judge([text(1, 1, 2.1, 1), text(2, 1, 1.9, 1)]).regime == "diverse"
    assert judge([text(1, 1, 2.1, 1), text(2, 1, 1.0, 1)]).regime == "template collapse"


def test_a_run_that_starts_at_chance_is_not_called_diverse():
    series = [scored(step, 0.01, 2.0, retrieval=0.13) for step in (1, 2, 3)]
    assert judge(series).regime == "template collapse"


def feed(watch, rows):
    return [watch.update(row) for row in rows]


def test_warns_when_information_falls_and_entropy_does_not():
    # Three falls in a row, 1 / 1 / .9 / .7: no warning before the fourth measurement.
    rows = [scored(i, mi, 1.0) for i, mi in enumerate([1.0, 0.95, 0.9, 0.7])]
    seen = feed(CollapseWatch(), rows)
    assert [len(row["warnings"]) for row in seen] == [0, 0, 0, 1]
    assert "losing its prompt" in seen[-1]["warnings"][0]
    # mi_zscore_ema = 0.7 / (0.5 + 0.001)
    assert seen[-1]["mi_zscore_ema"] == pytest.approx(0.7 / 0.501)


def test_does_not_warn_when_entropy_falls_too_or_the_fall_is_small():
    falls = [1.0, 0.9, 0.8, 0.7]
    together = [scored(i, v, v) for i, v in enumerate(falls)]
    assert feed(CollapseWatch(), together)[-1]["warnings"] == []
    small = [scored(i, 1 - 0.01 * i, 1.0) for i in range(6)]
    assert feed(CollapseWatch(), small)[-1]["warnings"] == []


def test_does_not_warn_when_only_the_marginals_spread_out():
    # The z-score falls from 2 to 1 because sigma grows; MI stays where it was.
    rows = [scored(i, 1.0, 1.0, std=spread) for i, spread in enumerate([0.5, 1.0, 4.0, 16.0])]
    seen = feed(CollapseWatch(), rows)
    scores = [row["mi_zscore_ema"] for row in seen]
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] < 0.8 * scores[0]
    assert seen[-1]["warnings"] == []


def test_invalid_and_truncated_shares_are_named_apart():
    rows = [scored(i, 1, 1, invalid=0.05 * i, truncated=0.0) for i in range(4)]
    assert feed(CollapseWatch(), rows)[-1]["warnings"] == [
        "the invalid share climbed 3 times in a row, 0% to 15%"
    ]
    rows = [scored(i, 1, 1, invalid=None, truncated=0.04 * i) for i in range(4)]
    assert "truncated share" in feed(CollapseWatch(), rows)[-1]["warnings"][0]


def test_stops_after_two_collapse_verdicts_and_resumes_the_same():
    rows = [scored(1, 1, 1), scored(5, 0.1, 1), scored(10, 0.1, 1)]
    watch = CollapseWatch()
    reasons = []
    for row in rows:
        watch.update(row)
        reasons.append(watch.stop_reason())
    assert reasons[:2] == [None, None]
    assert reasons[2].startswith("template collapse in 2 measurements in a row")
    resumed = CollapseWatch()
    first = CollapseWatch()
    feed(first, rows[:2])
    resumed.load(json.loads(json.dumps(first.state())))
    assert resumed.update(rows[2]) == feed(CollapseWatch(), rows)[-1]
    assert resumed.stop_reason() == reasons[2]


def test_measurements_without_a_model_are_folded_too():
    watch = CollapseWatch()
    seen = feed(watch, [text(1, 1, 20, 1), text(2, 0.1, 1, 1), text(3, 0.1, 1, 1)])
    assert [row["regime"] for row in seen] == [NOT_ENOUGH, "template collapse", "template collapse"]
    assert watch.stop_reason() is not None
