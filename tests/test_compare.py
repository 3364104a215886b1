"""Paired differences between arms."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from log_helpers import evaluation, log, write, write_sweep
from ragen2_cli.commands.compare import compare as command
from ragen2_cli.core.statistics import PairedDifference
from ragen2_cli.errors import UserError
from ragen2_cli.sweeps.compare import SUCCESS, compare, pair_up, read_arm
from ragen2_cli.sweeps.folder import SweepDirectory
from ragen2_cli.sweeps.plan import plan
from ragen2_cli.sweeps.results import load


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
    first = replace(first, evaluations=(evaluation(5, 56, 70),))
    second = replace(second, evaluations=(evaluation(5, 48, 80),))
    row = compare([(first, second)])[0]
    assert row.difference.mean == pytest.approx(0.2)
    assert row.difference.ci_low == pytest.approx(0.0524, abs=5e-5)
    assert row.difference.ci_high == pytest.approx(0.3339, abs=5e-5)
    assert row.interval == "held-out episodes"


def test_levels_of_a_seed_are_one_observation() -> None:
    # Differences by seed and level: .1 .2 .3, .0 .1 .2, .2 .3 .4; their means .2, .1, .3 have mean
    # .2, sd .1, se .0577; t(2, .975) = 4.3027; half .2484. Nine pairs are still three seeds.
    counts = {0: (40, 50, 60), 1: (30, 40, 50), 2: (50, 60, 70)}

    def arm(name: str, plus: dict[int, tuple[int, ...]]):
        return [
            log(
                f"{name}-{level}-{seed}",
                labels={"filter": name, "level": str(level)},
                seed=seed,
                successes=(20, found),
            )
            for seed, levels in plus.items()
            for level, found in enumerate(levels)
        ]

    pairs, alone = pair_up(arm("top-p", counts), arm("none", dict.fromkeys(counts, (30,) * 3)))
    row = next(row for row in compare(pairs) if row.quantity == SUCCESS)
    assert (len(pairs), alone, row.difference.n) == (9, 0, 3)
    assert (row.a, row.b, row.difference.mean) == pytest.approx((0.5, 0.3, 0.2))
    assert row.difference.ci_high == pytest.approx(0.2 + 0.2484, abs=1e-4)
    assert row.interval == "seeds, mean over 3 levels"
    # Without one run its seed's mean is over two levels: .25 for seed 0 when level 0 is gone.
    fewer = next(row for row in compare(pairs[1:]) if row.quantity == SUCCESS)
    assert fewer.difference.mean == pytest.approx((0.25 + 0.1 + 0.3) / 3)
    assert fewer.interval == "seeds, mean over 2 to 3 levels"
    # One seed alone has no interval, however many levels it has.
    (one,) = (row for row in compare(pairs[:3]) if row.quantity == SUCCESS)
    assert (one.difference.n, one.interval) == (1, "")
    assert math.isnan(one.difference.ci_low)


def test_the_one_complete_pair_need_not_be_the_first() -> None:
    # Seed 0 was only evaluated before training; seed 1 is Newcombe's example again.
    whole = [
        replace(log(seed=1), evaluations=(evaluation(5, successes, n),))
        for successes, n in ((56, 70), (48, 80))
    ]
    half = log(seed=0, successes=(20,))
    row = compare([(half, half), (whole[0], whole[1])])[0]
    assert row.difference.ci_low == pytest.approx(0.0524, abs=5e-5)
    assert (row.difference.n, row.difference.dropped) == (1, 1)


def test_runs_of_unequal_length_are_said(tmp_path: Path, capsys) -> None:
    stopped = {**log().summary, "stopped": "collapse"}
    long = log(seed=0, successes=(20, 30, 40, 50, 60))
    write(tmp_path / "long", long)
    write(tmp_path / "short", replace(log(successes=(20, 30)), summary=stopped))
    write(tmp_path / "open", replace(log(successes=(20, 30, 40)), summary=None))
    command(str(tmp_path / "long"), str(tmp_path / "short"))
    said = capsys.readouterr().out
    assert "last evaluation at step 20 in A, 5 in B" in said
    assert "B: 1 run stopped early (short)" in said
    assert "warning: in 1 pair these steps differ" in said
    assert "best of 4 in A, of 1 in B" in said
    command(str(tmp_path / "long"), str(tmp_path / "open"), json_=True)
    (pair,) = json.loads(capsys.readouterr().out)["runs"]
    assert pair["b"] == {"run": "open", "step": 10, "evaluations": 2, "ended": "unfinished"}
    command(str(tmp_path / "long"), str(tmp_path / "long"))
    same = capsys.readouterr().out
    assert "last evaluation at step 20 in A, 20 in B" in same
    assert "warning" not in same
    warned: list[str] = []
    load([tmp_path / name for name in ("long", "short", "open")], warned.append)
    assert warned == [
        "warning: the runs are not equally long: 1 run of 3 unfinished (open); "
        "1 run of 3 stopped early (short); last evaluations at steps 5 to 20; "
        "1 to 4 evaluations, of which a best one is chosen"
    ]
    load([tmp_path / "long"], warned.append)
    assert len(warned) == 1
    half = write_sweep(tmp_path / "half", arms({"none": [30, 30]}))
    (half.run_path(half.cells["none-1"]) / "summary.json").unlink()
    assert len(load([half.path], warned.append)) == 1
    assert warned[1:] == [f"warning: {half.path}: unfinished and left out: 1 of 2 cells"]


def test_a_sweep_that_grew_an_axis(tmp_path: Path) -> None:
    # The cells of the first call have no label kl; those of the second one have 0.1.
    first = plan({"filter": "top-p,none"}, [], "2", flags={"steps": 10})
    second = plan({"filter": "top-p,none", "kl": "0.1"}, [], "2", flags={"steps": 10})
    SweepDirectory.create(tmp_path / "s", first).close()
    sweep = SweepDirectory.create(tmp_path / "s", second)
    for cell in sweep.cells.values():
        gain = 10 * ("kl" in cell.labels) + 20 * (cell.labels["filter"] == "top-p") + cell.seed
        found = replace(log(seed=cell.seed, successes=(20, 30 + gain)), config=cell.config)
        write(sweep.run_path(cell), found)
        sweep.record(cell, status="done", seconds=1.0)
    sweep.close()

    def success(a: str, b: str) -> float:
        pairs, alone = pair_up(*(read_arm(f"{tmp_path / 's'}@{arm}") for arm in (a, b)))
        assert (len(pairs), alone) == (2, 0)
        return next(row for row in compare(pairs) if row.quantity == SUCCESS).difference.mean

    assert success("filter=top-p,kl=0.1", "filter=none,kl=0.1") == pytest.approx(0.2)
    assert success("filter=none,kl=0.1", "filter=none,kl=") == pytest.approx(0.1)
    with pytest.raises(UserError, match=r"no finished '0.2'; it has \['', '0.1'\]"):
        read_arm(f"{tmp_path / 's'}@kl=0.2")


def test_json_names_its_fields(tmp_path: Path, capsys) -> None:
    write_sweep(tmp_path / "s", arms({"top-p": [50], "none": [30]}))
    command(f"{tmp_path / 's'}@filter=top-p", f"{tmp_path / 's'}@filter=none", json_=True)
    rows = {row["quantity"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert set(rows[SUCCESS]["difference"]) == set(PairedDifference._fields)
    assert rows[SUCCESS]["difference"]["mean"] == pytest.approx(0.2)
    assert rows["tokens sampled"]["difference"]["ci_low"] is None  # one pair has no interval


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


def test_a_path_may_hold_the_mark(tmp_path: Path) -> None:
    write(tmp_path / "run@home", log(successes=(20, 70)))
    write_sweep(tmp_path / "s@home", arms({"a@b": [40], "none": [30]}))
    (run,) = read_arm(str(tmp_path / "run@home"))
    assert run.evaluations[-1].success == 0.7
    assert len(read_arm(str(tmp_path / "s@home"))) == 2
    (cell,) = read_arm(f"{tmp_path / 's@home'}@filter=a@b")
    assert cell.labels == {"filter": "a@b"}


def test_a_label_may_hold_a_comma(tmp_path: Path) -> None:
    labels = [{"remedy": "filter, SEAL", "env": "x"}, {"remedy": "filter", "env": "x"}]
    write_sweep(
        tmp_path / "s",
        [log(f"cell-{i}", labels=one) for i, one in enumerate(labels)],
    )
    for one in labels:
        (found,) = read_arm(f"{tmp_path / 's'}@remedy={one['remedy']},env=x")
        assert found.labels == one
