"""Correlations over a pool of runs: what is paired, what is resampled, what is refused."""

import math
from pathlib import Path

import pytest

from log_helpers import log, write, write_sweep
from ragen2_cli.errors import UserError
from ragen2_cli.sweeps.correlations import correlate, default_levels, points
from ragen2_cli.sweeps.results import load


def measured(*values, metric="mi_estimate"):
    """Diagnostics every 5 steps from step 5."""
    return tuple({"step": 5 * (k + 1), metric: value} for k, value in enumerate(values))


def pool(mi, success, **more):
    return [
        log(f"run-{k}", seed=k, successes=(10, count), diagnostics=measured(value), **more)
        for k, (value, count) in enumerate(zip(mi, success, strict=True))
    ]


def row(rows, metric="mi_estimate", scope="pooled"):
    return next(r for r in rows if r.metric == metric and r.scope == scope)


def test_three_runs_in_perfect_order_have_p_one_third() -> None:
    # case 44: of 3! orders the identity and its reverse have |rho| 1, so p = 2/6.
    found = row(correlate(pool([1.0, 2.0, 3.0], [10, 20, 30]))).result
    assert (found.rho, found.n, found.method) == (1.0, 3, "exact")
    assert found.p_value == pytest.approx(1 / 3)
    assert math.isnan(found.ci_low)
    assert "8 needed" in found.reason


def test_constant_success_is_undefined_and_says_so() -> None:
    found = row(correlate(pool([1.0, 2.0, 3.0], [20, 20, 20]))).result
    assert math.isnan(found.rho)
    assert "constant" in found.reason


def test_a_missing_value_is_dropped_and_counted() -> None:
    found = row(correlate(pool([1.0, None, 2.0, 3.0], [10, 90, 20, 30]))).result
    assert (found.n, found.dropped, found.rho) == (3, 1, 1.0)


def test_the_interval_resamples_runs_and_not_checkpoints() -> None:
    # Seven runs of many checkpoints are still seven independent runs: no interval.
    logs = [
        log(f"r{k}", seed=k, successes=(0, 10 + k, 20 + k, 25 + k), diagnostics=measured(k, k, k))
        for k in range(7)
    ]
    found = row(correlate(logs, rule="per-checkpoint"))
    assert (found.result.n, found.runs) == (21, 7)
    assert math.isnan(found.result.ci_low)
    # Orders of 21 pairs are not equally likely when 7 runs gave 3 each: no p.
    assert math.isnan(found.result.p_value)
    assert found.result.method == "none"
    assert found.result.reason.startswith("no p: 21 pairs of 7 units are not independent; no inter")
    eight = [*logs, log("r7", seed=7, successes=(0, 17, 27, 32), diagnostics=measured(7, 7, 7))]
    with_interval = row(correlate(eight, rule="per-checkpoint")).result
    assert with_interval.ci_low <= with_interval.rho <= with_interval.ci_high
    assert math.isnan(with_interval.p_value)
    final = row(correlate(eight)).result  # one pair of each run: p is back
    assert (final.n, final.method) == (8, "exact")
    # Three of ten runs measure it, three times each: 9 pairs, not more than the runs, yet no p.
    ten = [*logs[:3], *(log(f"x{k}", diagnostics=measured(k, metric="x")) for k in range(7))]
    few = row(correlate(ten, rule="per-checkpoint")).result
    assert (few.n, few.method) == (9, "none")


def test_the_rule_decides_which_checkpoint_counts() -> None:
    one = log(successes=(50, 10, 40, 20), diagnostics=measured(1.0, 2.0, 3.0))
    assert [(p.step, p.success) for p in points([one], rule="final")] == [(15, 0.2)]
    assert [(p.step, p.success) for p in points([one], rule="best")] == [(10, 0.4)]
    every = points([one], rule="per-checkpoint")
    # The evaluation before training comes before any diagnostics and is left out.
    assert [(p.step, p.diagnostics["mi_estimate"]) for p in every] == [
        (5, 1.0),
        (10, 2.0),
        (15, 3.0),
    ]


def test_within_levels_only_agreement_inside_counts() -> None:
    # Two levels: level b has higher MI and lower success. Pooled rho is negative; within each
    # level success rises with MI, so the residual correlation is positive.
    logs = [
        log(
            f"{level}{k}",
            seed=k,
            labels={"level": level},
            successes=(0, base + k),
            diagnostics=measured(mi + k),
        )
        for level, base, mi in (("a", 60, 0.0), ("b", 10, 10.0))
        for k in range(5)
    ]
    rows = correlate(logs, within=["level"])
    assert row(rows).result.rho < 0
    assert row(rows, scope="within level").result.rho == pytest.approx(1.0)
    assert row(rows, scope="within level").result.method == "permutation"
    by_key = correlate(logs, within=["env.name"])  # one level: the same as pooled
    assert row(by_key, scope="within env.name").result.rho == pytest.approx(row(by_key).result.rho)
    with pytest.raises(UserError, match="did you mean 'level'"):
        correlate(logs, within=["levl"])


def seeded(arms: int, seeds: int = 5, noise: tuple[int, ...] = (0,)):
    """MI rises by 1 per arm, as success does, and by 100 per seed, which success does not."""
    return [
        log(
            f"a{arm}s{seed}n{level}",
            labels={"arm": str(arm), "noise": str(level)},
            seed=seed,
            successes=(0, 10 + 10 * arm),
            diagnostics=measured(100.0 * seed + arm),
            config={"env": {"name": "frozenlake", "stochasticity": level}},
        )
        for arm in range(arms)
        for seed in range(seeds)
        for level in noise
    ]


def test_runs_of_equal_seed_are_compared_within_it_by_default() -> None:
    # Pooled, 3 arms of 5 seeds: ranks of MI are 3 s + a + 1, mean 8, squares (15^3 - 15) / 12 = 280
    # in all; success has the mid-ranks 3, 8, 13, squares 2 * 5 * 25 = 250; products 5 * 5 * 2 = 50.
    # Within a seed both rise by arm: rho 1. Of the 3! orders of arms two are that far apart.
    rows = correlate(seeded(3))
    assert row(rows).result.rho == pytest.approx(50 / math.sqrt(280 * 250))
    within = rows[-1]
    assert (within.scope, within.unit) == ("within seed", "arm")
    assert within.result.rho == pytest.approx(1.0)
    assert (within.result.method, within.result.p_value) == ("exact", pytest.approx(1 / 3))
    assert within.result.reason == "no interval: 3 independent units, 8 needed"
    eight = correlate(seeded(8, seeds=2))[-1].result
    assert (eight.ci_low, eight.ci_high) == (pytest.approx(1.0), pytest.approx(1.0))
    assert eight.p_value == pytest.approx(2 / math.factorial(8))
    lost = correlate(seeded(3)[1:])[-1].result  # arms cannot be exchanged whole
    assert (lost.method, lost.n) == ("none", 14)
    assert lost.reason.startswith("no p: 14 pairs of 3 units")
    assert {one.scope for one in correlate(seeded(3), within=())} == {"pooled"}


def test_levels_are_what_varies_over_arms() -> None:
    assert default_levels(seeded(1)) == []  # a run per seed leaves nothing within it
    assert default_levels(seeded(1, noise=(0, 20))) == ["env.stochasticity"]
    assert default_levels(seeded(2, noise=(0, 20))) == ["env.stochasticity"]  # pairs within seeds
    assert default_levels(seeded(3, noise=(0, 20))) == ["env.stochasticity", "seed"]


def test_the_figure_shows_the_correlation_within_seeds(tmp_path: Path) -> None:
    from ragen2_cli.commands.figures import spearman

    write_sweep(tmp_path / "sweep", seeded(3))
    drawn = spearman([tmp_path / "sweep"], None, lambda text: None)[-1]
    assert (drawn["scope"], drawn["unit"]) == ("within seed", "arm")
    assert drawn["rho"] == pytest.approx(1.0)


def test_a_pool_that_cannot_be_correlated_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 runs cannot show"):
        correlate(pool([1.0, 2.0], [10, 20]))
    with pytest.raises(UserError, match="run-x: no diagnostics"):
        correlate([*pool([1.0, 2.0], [10, 20]), log("run-x")])
    with pytest.raises(UserError, match="no evaluation after"):
        correlate([*pool([1.0, 2.0], [1, 2]), log(diagnostics=({"step": 99},))])
    folder = write(tmp_path / "run", log()).path
    with pytest.raises(UserError, match="given twice"):
        load([folder, folder], lambda text: None)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"schema_version": 1', '"schema_version": 9', 1))
    with pytest.raises(UserError, match="schema version 9"):
        load([folder], lambda text: None)


def test_runs_of_equal_settings_share_an_arm(tmp_path: Path) -> None:
    from ragen2_cli.sweeps.results import by_arm

    for seed in (1, 2):
        write(tmp_path / f"p{seed}", log(seed=seed))
        write(tmp_path / f"k{seed}", log(seed=seed, config={"algorithm": {"kl": 0.1}}))
    found = load([tmp_path / name for name in ("p1", "p2", "k1", "k2")], lambda text: None)
    arms = by_arm(found)
    assert [len(arm) for arm in arms.values()] == [2, 2]
    assert any("algorithm.kl 0.1" in name for name in arms)
