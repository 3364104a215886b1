"""Entropy phases, verdicts and the live alarm.

Case 25: 120 points, 40 a cycle, noise 5 % of the amplitude; six verdicts, each also with NaN gaps.
"""

import json
import math
from collections import Counter

import numpy as np
import pytest

from ragen2_cli.core.eruption import (
    EruptionAlarm,
    alarm_positions,
    classify,
    pattern_course,
)
from ragen2_cli.errors import UserError

POINTS, CYCLE, NOISE, SEEDS = 120, 40, 0.05, 50
T = np.arange(POINTS)


def eruptions(descent=16, rise=4):
    """Amplitude 1: a descent of 0.4, a sharp rise to 1, a slow fall back to 0.4."""
    u = T % CYCLE
    subsidence = CYCLE - descent - rise
    fall = 0.4 * (1 - u / descent)
    back = 1 - 0.6 * (u - descent - rise) / subsidence
    return np.where(u < descent, fall, np.where(u < descent + rise, (u - descent) / rise, back))


SERIES = {
    "stable": [np.ones(POINTS)],
    "spike": [
        1 + np.exp(-0.5 * ((T - 60) / 4) ** 2),
        np.where(T >= 50, 1 + np.exp(-(T - 50) / 10.0), 1.0),
    ],
    "sustained rise": [1 + T / POINTS, 1 + 1 / (1 + np.exp((60 - T) / 10))],
    "collapse": [2 - T / POINTS, 0.05 + np.exp(-T / 20)],
    "cyclical eruption": [
        0.3 + eruptions(),
        0.3 + eruptions(rise=8),
        0.5 + (1 - np.cos(2 * np.pi * T / CYCLE)) / 2,
        1 + (T % CYCLE) / CYCLE,
        2 - (T % CYCLE) / CYCLE,
    ],
    "too short": [(1 + T / POINTS)[:20]],
}


def noisy(clean, seed):
    return clean + NOISE * np.random.default_rng(seed).normal(size=clean.size)


def with_gaps(series, seed):
    """15 % of single values and one block of 6 missing."""
    rng = np.random.default_rng([seed, 1])
    holed = series.copy()
    holed[rng.random(series.size) < 0.15] = np.nan
    start = int(rng.integers(0, series.size - 6))
    holed[start : start + 6] = np.nan
    return holed


CASES = [
    pytest.param(verdict, clean, id=f"{verdict} {number}")
    for verdict, shapes in SERIES.items()
    for number, clean in enumerate(shapes)
]


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
@pytest.mark.parametrize(("verdict", "clean"), CASES)
def test_case_25_each_series_gets_its_verdict(verdict, clean, gaps):
    found = Counter()
    for seed in range(SEEDS):
        series = noisy(clean, seed)
        found[classify(with_gaps(series, seed) if gaps else series).verdict] += 1
    assert found[verdict] >= 48, found


@pytest.mark.parametrize(("verdict", "clean"), CASES)
def test_noise_free_series_and_other_units_get_the_same_verdict(verdict, clean):
    assert classify(clean).verdict == verdict
    series = noisy(clean, 0)
    plain = classify(series)
    for unit in (1e-3, 1e3):
        scaled = classify(series * unit)
        assert scaled.verdict == plain.verdict
        assert [(p.start, p.end) for p in scaled.phases] == [(p.start, p.end) for p in plain.phases]


def test_phases_of_three_clean_cycles():
    # Cycle k falls from 40 k to 40 k + 16, rises over 4, falls back over 20 and to the next low.
    report = classify(0.3 + eruptions())
    assert [phase.kind for phase in report.phases] == [
        "descent",
        "eruption",
        "subsidence",
        "eruption",
        "subsidence",
        "eruption",
        "subsidence",
    ]
    rises = [phase for phase in report.phases if phase.kind == "eruption"]
    # within a tenth of the height: start at the low itself, end at the top itself
    assert [(rise.start, rise.end) for rise in rises] == [(16, 20), (56, 60), (96, 100)]
    assert [rise.height for rise in rises] == pytest.approx([1.0, 1.0, 1.0])
    assert [rise.period for rise in rises] == [None, 40, 40]
    assert report.period == 40
    assert report.cycles == 3
    first = report.phases[0]
    # the descent from 0.7 to 0.3: a tenth done at 1.6 points, a tenth left at 14.4
    assert (first.start, first.end) == (1, 15)
    assert first.height == pytest.approx(0.4)


def test_phases_keep_their_place_when_values_are_missing():
    series = 0.3 + eruptions()
    series[[3, 4, 5, 30, 31, 70]] = np.nan
    report = classify(series)
    rises = [phase.start for phase in report.phases if phase.kind == "eruption"]
    assert rises == [16, 56, 96]
    assert (report.points, report.missing) == (114, 6)


def test_a_gap_never_makes_a_cycle():
    for seed in range(SEEDS):
        series = noisy(np.ones(POINTS), seed)
        series[20:50] = np.nan
        series[80:90] = np.nan
        assert classify(series).phases == ()


def test_nothing_to_judge():
    for series in ([], [1.0] * 23, [math.nan] * 200, [None] * 50):
        report = classify(series)
        assert report.verdict == "too short"
        assert report.phases == ()
        assert report.period is None
    assert classify([1.0] * 24).verdict == "stable"
    assert classify([0.0] * 40).verdict == "stable"
    assert classify([1.0] * 40 + [math.inf] * 3).missing == 3
    with pytest.raises(UserError, match="flat list"):
        classify([[1.0, 2.0]])
    with pytest.raises(UserError, match="numbers"):
        classify(["high"])


def test_a_small_move_of_a_quiet_series_is_stable_and_a_brief_dip_too():
    # 4 % of the level, however clear it is against no noise at all
    assert classify(2.0 + 0.08 * T / POINTS).verdict == "stable"
    assert classify(2.0 + 0.20 * T / POINTS).verdict == "sustained rise"
    dip = np.ones(POINTS)
    dip[60:64] = 0.3
    assert classify(dip).verdict == "stable"
    # down for most of the run and then up again: the rise is what matters
    assert classify(1 + np.abs(T - 60) / 60).verdict == "sustained rise"


def stairs(*levels):
    """20 points at each level."""
    return np.repeat(np.array(levels, dtype=float), 20)


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        # The range is 1.35, so a move counts from 0.34 on: 1.35 down after 0.4 up is 0.95 beyond.
        ((1.0, 1.0, 1.4, 0.05, 0.05, 0.05), "collapse"),
        # 0.6 down after 0.4 up is 0.2 beyond, and a quarter of the range is 0.15
        ((1.0, 1.0, 1.4, 0.8, 0.8, 0.8), "collapse"),
        # 0.5 down after 0.4 up is 0.1 beyond, less than a quarter of 0.5
        ((1.0, 1.0, 1.4, 0.9, 0.9, 0.9), "spike"),
        # A first fall is the level that the spike rises from.
        ((0.7, 0.3, 1.3, 0.3, 0.3, 0.3), "spike"),
        ((1.0, 0.5, 1.0, 0.05, 0.05, 0.05), "collapse"),
        # Up 1, down 1, up 3: 2 beyond a quarter of 3.
        ((1.0, 2.0, 1.0, 4.0, 4.0, 4.0), "sustained rise"),
        # Two spikes are not three cycles.
        ((1.0, 2.0, 1.0, 2.0, 1.0, 1.0), "spike"),
        ((1.0, 2.0, 1.0, 2.0, 1.0, 2.0), "cyclical eruption"),
    ],
)
def test_the_last_move_decides_between_a_spike_and_what_stays(levels, verdict):
    series = stairs(*levels)
    assert classify(series).verdict == verdict
    assert classify(series + 0.01 * np.random.default_rng(0).normal(size=120)).verdict == verdict


def test_alarm_warns_within_a_tenth_of_a_cycle_after_each_onset():
    late = 0
    for seed in range(SEEDS):
        alarms = alarm_positions(noisy(0.3 + eruptions(), seed))
        for onset in (16, 56, 96):
            late += not any(onset <= alarm <= onset + CYCLE // 10 for alarm in alarms)
    assert late <= 2 * 3  # 48 of 50 seeds


def test_no_alarm_in_500_stable_windows():
    alarms = sum(len(alarm_positions(noisy(np.ones(POINTS), [25, seed]))) for seed in range(500))
    assert alarms == 0


def test_alarm_on_a_step_by_hand():
    # Noise-free at 1, so only the floor counts: 5 % of the level. At the first 2: the mean of the
    # last two is 1.5 against 1. It is over once the six before are 2 as well.
    alarm = EruptionAlarm()
    raised = [alarm.update(value) for value in [1.0] * 30 + [2.0] * 10]
    assert raised.index(True) == 30
    assert sum(raised) == 1
    assert not alarm.active
    quiet = EruptionAlarm()
    assert not any(quiet.update(value) for value in [1.0] * 30 + [1.04] * 10)


def test_alarm_does_not_look_ahead_and_skips_gaps():
    series = noisy(0.3 + eruptions(), 3)
    alarms = alarm_positions(series)
    for end in range(20, POINTS, 7):
        assert alarm_positions(series[:end]) == tuple(a for a in alarms if a < end)
    holed = np.repeat(series, 2)
    holed[1::2] = np.nan
    assert alarm_positions(holed) == tuple(2 * alarm for alarm in alarms)
    assert EruptionAlarm().update(None) is False


def test_alarm_resumes_from_its_saved_state():
    series = noisy(0.3 + eruptions(), 5)
    whole = EruptionAlarm()
    expected = [whole.update(value) for value in series]
    for cut in (10, 19, 58):
        first, second = EruptionAlarm(), EruptionAlarm()
        before = [first.update(value) for value in series[:cut]]
        second.restore(json.loads(json.dumps(first.state())))
        assert before + [second.update(value) for value in series[cut:]] == expected
        assert second.active == whole.active


def test_pattern_rate_falls_back_or_accumulates():
    report = classify(0.3 + eruptions())
    high = np.zeros(POINTS)
    for phase in report.phases:
        if phase.kind != "descent":
            high[phase.start : phase.end + 1] = 0.5
    fell = pattern_course(high, report)
    # outside eruption and subsidence the rate is 0: all of the increase is gone afterwards
    assert fell.course == "falls back"
    assert fell.recovered == pytest.approx(1.0)
    assert fell.mean_by_kind == pytest.approx({"descent": 0.0, "eruption": 0.5, "subsidence": 0.5})
    stairs = 0.2 * np.searchsorted([16, 56, 96], T, side="right")
    piled = pattern_course(stairs, report)
    assert piled.course == "accumulates"
    assert piled.before == 0.0
    assert list(piled.after) == sorted(piled.after)
    assert pattern_course(np.full(POINTS, 0.3), report).course == "unaffected"
    assert pattern_course(np.full(POINTS, np.nan), report).course == "unknown"
    assert pattern_course(stairs, classify(np.ones(POINTS))).course == "unknown"
