"""Paired differences between arms."""

from pathlib import Path

import pytest

from log_helpers import log, write, write_sweep
from ragen2_cli.errors import UserError
from ragen2_cli.sweeps.compare import SUCCESS, compare, pair_up, read_arm


def arms(counts_by_filter: dict[str, list[int]], **more):
    return [
        log(f"{name}-{seed}", labels={"filter": name}, seed=seed, successes=(20, count), **more)
        for name, counts in counts_by_filter.items()
        for seed, count in enumerate(counts)
    ]


def test_the_interval_is_student_t_over_pairs(tmp_path: Path) -> None:
    # Differences .10, .20, .30: mean .20, sd .10, se .0577; t(2, .975) = 4.3027; half .2484.
    write_sweep(tmp_path / "s", arms({"top-p": [40, 55, 60], "none": [30, 35, 30]}))
    first, second = (read_arm(f"{tmp_path / 's'}@filter={name}") for name in ("top-p", "none"))
    pairs, alone = pair_up(first, second)
    row = next(row for row in compare(pairs) if row.quantity == SUCCESS)
    assert alone == 0
    assert row.difference.n == 3
    assert row.difference.mean == pytest.approx(0.2)
    assert row.difference.ci_low == pytest.approx(0.2 - 0.2484, abs=1e-4)
    assert row.interval == "pairs of runs"
    # Swapping the arms flips the sign.
    back = next(r for r in compare([(b, a) for a, b in pairs]) if r.quantity == SUCCESS)
    assert back.difference.mean == pytest.approx(-0.2)


def test_two_runs_get_the_interval_of_their_episodes() -> None:
    # 56/70 against 48/80, Newcombe's own example (1998, method 10): 0.2000, [0.0524, 0.3339].
    first, second = log(successes=(0, 1)), log(successes=(0, 1))
    from dataclasses import replace

    from log_helpers import evaluation

    first = replace(first, evaluations=(evaluation(5, 56, 70),))
    second = replace(second, evaluations=(evaluation(5, 48, 80),))
    row = compare([(first, second)])[0]
    assert row.difference.mean == pytest.approx(0.2)
    assert row.difference.ci_low == pytest.approx(0.0524, abs=5e-5)
    assert row.difference.ci_high == pytest.approx(0.3339, abs=5e-5)
    assert row.interval == "held-out episodes"


def test_pairs_share_seed_and_every_other_label() -> None:
    first = [log("a", labels={"filter": "top-p", "level": v}, seed=1) for v in ("0", "80")]
    second = [log("b", labels={"filter": "none", "level": v}, seed=1) for v in ("80", "20")]
    pairs, alone = pair_up(first, second)
    assert [(a.labels["level"], b.labels["level"]) for a, b in pairs] == [("80", "80")]
    assert alone == 2


def test_what_was_not_measured_is_absent_not_zero() -> None:
    quantities = {row.quantity for row in compare([(log(), log())])}
    assert "mi_estimate (nats)" not in quantities
    with_mi = log(diagnostics=({"step": 5, "mi_estimate": 2.0}, {"step": 10, "mi_estimate": 1.5}))
    row = next(r for r in compare([(with_mi, with_mi)]) if r.quantity == "mi_estimate (nats)")
    assert row.a == 1.5  # the last measurement


def test_wrong_arms_are_one_line(tmp_path: Path) -> None:
    sweep = tmp_path / "s"
    write_sweep(sweep, arms({"top-p": [40], "none": [30]}))
    with pytest.raises(UserError, match="did you mean 'filter'"):
        read_arm(f"{sweep}@filtr=none")
    with pytest.raises(UserError, match="no finished 'top-k'"):
        read_arm(f"{sweep}@filter=top-k")
    with pytest.raises(UserError, match="axis=label"):
        read_arm(f"{sweep}@filter")
    with pytest.raises(UserError, match="no run at"):
        read_arm(str(tmp_path / "nowhere"))
    run = write(tmp_path / "alone", log()).path
    with pytest.raises(UserError, match="not a sweep"):
        read_arm(f"{run}@filter=none")
    with pytest.raises(UserError, match="same settings and seed"):
        pair_up([log("a"), log("b")], [log("c")])
    with pytest.raises(UserError, match="nothing is paired"):
        pair_up([log("a", seed=1), log("b", seed=2)], [log("c", seed=3)])


def test_a_label_may_hold_a_comma(tmp_path: Path) -> None:
    labels = [{"remedy": "filter, SEAL", "env": "x"}, {"remedy": "filter", "env": "x"}]
    write_sweep(
        tmp_path / "s",
        [log(f"cell-{i}", labels=one) for i, one in enumerate(labels)],
    )
    for one in labels:
        (found,) = read_arm(f"{tmp_path / 's'}@remedy={one['remedy']},env=x")
        assert found.labels == one
