"""Every figure: from records to numbers to a picture, without a display, absent where absent.

Cases 44 and 45 of the list of cases are held here for the plots: undefined is not drawn as 0, and
nothing to draw says "no data".
"""

import csv
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from log_helpers import evaluation, log, step, write, write_sweep
from ragen2_cli.commands import figures
from ragen2_cli.commands.plot import plot
from ragen2_cli.commands.plot import write as write_figure
from ragen2_cli.core.statistics import paired_difference
from ragen2_cli.plots import (
    curves,
    dead_share,
    dynamics,
    filter,
    gradients,
    heatmap,
    lengths,
    levels,
    scatter,
    sensitivity,
    series,
    spearman,
    stochasticity,
    style,
)
from ragen2_cli.records import Cell, Episode, RunLog
from ragen2_cli.runs import RunDirectory
from ragen2_cli.sweeps import compare
from ragen2_cli.sweeps.folder import SweepDirectory

ROW_PLOTS = (
    curves,
    dead_share,
    dynamics,
    filter,
    gradients,
    heatmap,
    lengths,
    scatter,
    sensitivity,
    spearman,
    stochasticity,
)


def measured(mi: float, entropy: float = 0.3):
    return (
        {"step": 5, "mi_estimate": 2.0, "conditional_entropy": 0.2},
        {"step": 10, "mi_estimate": mi, "conditional_entropy": entropy},
    )


def pool(seeds: int = 5):
    return [
        log(
            f"{name}-{share}-{seed}",
            labels={"filter": name, "env.dead_share": share},
            seed=seed,
            successes=(20, 30, base + seed),
            diagnostics=measured(1.0 + seed / 10),
            config={
                "filter": {"strategy": name},
                "env": {"dead_share": float(share), "stochasticity": 100 * float(share)},
            },
        )
        for share in ("0", "0.75")
        for name, base in (("top-p", 40), ("none", 30))
        for seed in range(seeds)
    ]


def texts(figure) -> str:
    found = []
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts]
    return " ".join(found)


@pytest.mark.parametrize("module", ROW_PLOTS, ids=lambda module: module.__name__.split(".")[-1])
def test_nothing_to_draw_says_so(module) -> None:
    # case 45
    figure = module.draw([])
    assert "no data" in texts(figure)
    assert not any(line.get_xydata().size for axes in figure.axes for line in axes.lines)


def test_a_curve_is_the_median_over_seeds_with_its_interval() -> None:
    rows = curves.data(pool())
    row = next(
        r
        for r in rows
        if (r["quantity"], r["series"], r["step"], r["panel"])
        == ("success", "top-p 0.9", 10, "dead share 0")
    )
    # Seeds end at .40, .41, .42, .43, .44: median .42; five values: the extremes, 93.75 %.
    assert (row["n"], row["median"], row["low"], row["high"]) == (5, 0.42, 0.40, 0.44)
    assert row["coverage"] == 0.9375
    assert "retrieval_accuracy" not in {r["quantity"] for r in rows}  # nobody measured it


def test_named_arms_are_series_of_one_panel() -> None:
    names = {"top-p 0.9": {}, "no filter, KL 0.05": {"algorithm": {"kl": 0.05}}}
    logs = [log(labels={"arm": name}, config=config) for name, config in names.items()]
    assert [(panel, name) for panel, name, _ in series.arms(logs)] == [("", n) for n in names]


def test_one_seed_has_no_band() -> None:
    rows = curves.data(pool(1))
    assert all(r["n"] == 1 and r["low"] != r["low"] for r in rows)
    assert "no interval" in series.seeds_text(rows)


@pytest.mark.parametrize(("arms", "banded"), [(4, True), (5, False)])
def test_many_arms_have_bars_at_the_end_in_place_of_bands(arms: int, banded: bool) -> None:
    logs = [
        log(f"{arm}-{seed}", labels={"arm": f"arm {arm}"}, seed=seed, successes=(20, 30, 40 + seed))
        for arm in range(arms)
        for seed in range(5)
    ]
    figure = curves.draw(curves.data(logs))
    success = figure.axes[0]
    bars = [line for line in success.lines if len(set(line.get_xdata())) == 1]
    if banded:
        assert (len(success.collections), len(bars)) == (arms, 0)
    else:
        assert (len(success.collections), len(bars)) == (0, arms)
        assert len({line.get_xdata()[0] for line in bars}) == arms
        assert {tuple(line.get_ydata()) for line in bars} == {(0.40, 0.44)}


def test_a_later_panel_is_not_cut_by_an_earlier_ones_axis() -> None:
    figure, grid = style.canvas(4, 3, 1, 2, sharey=True)
    for axes, highest in zip(grid[0], (0.3, 0.4), strict=True):
        axes.plot([0, 1], [0.2, highest])
        style.from_zero(axes)
    figure.canvas.draw()
    for axes in grid[0]:
        low, high = axes.get_ylim()
        assert low < 0 < 0.4 < high < 0.5


def test_smoothing_looks_back_only_and_skips_what_is_absent() -> None:
    points = [(1, 1.0), (2, None), (3, 3.0), (4, 8.0)]
    assert series.smooth(points, 2) == [(1, 1.0), (3, 2.0), (4, 5.5)]


def test_steps_without_new_rollouts_are_no_zero_in_the_dynamics() -> None:
    empty = step(3, groups=0, kept_groups=0, dead_groups=0, success=None, reward_std=None)
    one = replace(log(), steps=(step(1), step(2), empty))
    rows = dynamics.data([one])
    assert {r["step"] for r in rows} == {1, 2}


def test_the_dead_share_figure_has_a_panel_per_regularizer() -> None:
    logs = [
        replace(one, labels={**one.labels, "regularizer": name})
        for name in ("none", "entropy 0.02")
        for one in pool(2)
    ]
    rows = dead_share.data(logs)
    assert {r["panel"] for r in rows} == {"no regularizer", "entropy 0.02"}
    assert {r["level"] for r in rows} == {0.0, 75.0}
    mi = next(r for r in rows if r["quantity"] == "mi_estimate" and r["series"] == "no filter")
    assert mi["values"] == [1.0, 1.1]  # the last measurement of each run
    figure = dead_share.draw(rows)
    assert len(figure.axes) == 6


def test_stochasticity_levels_and_ceilings() -> None:
    logs = pool(3)
    slips = [log.config["env"]["stochasticity"] for log in logs]
    rows = stochasticity.data(logs, [None if slip else 1.0 for slip in slips])
    assert [(r["level"], r["series"], r["ceiling"]) for r in rows][:2] == [
        (0.0, "top-p 0.9", 1.0),
        (0.0, "no filter", 1.0),
    ]
    assert all(r["ceiling"] is None for r in rows if r["level"] == 75.0)
    assert {r["panel"] for r in rows} == {""}  # the share of silent prompts goes with the level
    stochasticity.draw(rows)


def crossed() -> list[RunLog]:
    """Two levels x two algorithms x three seeds: grpo ends at .40 to .42, dapo at .60 to .62."""
    return [
        log(
            f"{name}-{slip}-{seed}",
            labels={"stochasticity": str(slip), "algorithm": name},
            seed=seed,
            successes=(20, 30, base + seed),
            config={"algorithm": {"name": name}, "env": {"stochasticity": float(slip)}},
        )
        for slip in (0, 50)
        for name, base in (("grpo", 40), ("dapo", 60))
        for seed in range(3)
    ]


def test_another_axis_makes_panels_of_stochasticity() -> None:
    logs = crossed()
    rows = stochasticity.data(logs, [0.9 if "grpo" in each.name else 0.8 for each in logs])
    found = [(r["panel"], r["level"], r["n"], r["median"], r["ceiling"]) for r in rows]
    assert found == [
        ("algorithm grpo", 0.0, 3, 0.41, 0.9),
        ("algorithm dapo", 0.0, 3, 0.61, 0.8),
        ("algorithm grpo", 50.0, 3, 0.41, 0.9),
        ("algorithm dapo", 50.0, 3, 0.61, 0.8),
    ]
    figure = stochasticity.draw(rows)
    assert len(figure.axes) == 2
    assert "3 seeds" in series.seeds_text(rows)


def test_pooled_settings_are_no_seeds() -> None:
    # Per level .40 .41 .42 .60 .61 .62: median .51 of six runs, but of three seeds.
    rows = [r for r in sensitivity.data(crossed()) if r["axis"] == "stochasticity"]
    assert [(r["n"], r["median"], r["pooled"]) for r in rows] == [(6, 0.51, True)] * 2
    assert all(math.isnan(r["low"]) and math.isnan(r["coverage"]) for r in rows)
    assert series.seeds_text(rows) == (
        "Median over n = 6 runs, other settings pooled: no interval where they differ."
    )
    sensitivity.draw(rows)
    one_arm = sensitivity.data([each for each in crossed() if "dapo" in each.name])
    assert [(r["n"], r["pooled"]) for r in one_arm] == [(3, False)] * 2
    # A setting that only the newer run has was the default of the older one.
    old, new = log(seed=0), log(seed=1)
    del old.config["critic"]
    assert not series.mixed([old, new])


def test_frozenlake_has_a_ceiling_that_falls_with_slip() -> None:
    import ragen2_cli.commands.figures as module

    few = module.CEILING_BOARDS
    module.CEILING_BOARDS = 8
    try:
        found = figures.ceilings(pool(1))
    finally:
        module.CEILING_BOARDS = few
    still, slips = found[0], found[-1]  # pool: 0 percent first, 75 percent last
    assert still == 1.0
    assert 0.0 < slips < 1.0
    assert found == [still, still, slips, slips]


def test_sensitivity_pools_what_was_not_swept_on_its_axis() -> None:
    rows = sensitivity.data(pool(3))
    assert {r["axis"] for r in rows} == {"env.dead_share"}  # the filter is the series
    assert {r["n"] for r in rows} == {3}
    top_p = [
        log(labels={"top-p": value}, seed=k, config={"filter": {"value": float(value)}})
        for value in ("0.9", "0.6")
        for k in range(2)
    ]
    assert {r["series"] for r in sensitivity.data(top_p)} == {"one arm per value"}
    without = {"filter": {"strategy": "none"}}
    top_p += [log(labels={"top-p": "none"}, seed=k, config=without) for k in range(2)]
    assert [r["level"] for r in sensitivity.data(top_p)] == ["0.9", "0.6", "none"]


def test_runs_of_their_own_have_the_default_as_a_level_too(tmp_path: Path) -> None:
    # Entropy 0 is the default: it is a level all the same, alone and beside a sweep of that key.
    runs = [
        write(
            tmp_path / str(entropy),
            log(
                successes=(20, 30, success),
                config={"algorithm": {"entropy": entropy}, "filter": {"strategy": "none"}},
            ),
        ).path
        for entropy, success in ((0.0, 40), (0.01, 50))
    ]
    rows = figures.make("sensitivity", runs, None, lambda text: None)[0]
    assert {(r["axis"], r["level"], r["median"]) for r in rows} == {
        ("algorithm.entropy", "0", 0.4),
        ("algorithm.entropy", "0.01", 0.5),
    }
    swept = log("a", labels={"algorithm.entropy": "0.05"}, config={"algorithm": {"entropy": 0.05}})
    write_sweep(tmp_path / "sweep", [swept])
    paths = [tmp_path / "sweep", runs[0]]
    rows = figures.make("sensitivity", paths, None, lambda text: None)[0]
    assert [(r["axis"], r["level"]) for r in rows] == [
        ("algorithm.entropy", "0.05"),
        ("algorithm.entropy", "0"),
    ]
    # No filter has no value: it is no level of one.
    mixed = [
        write(
            tmp_path / f"f{strategy}{value}",
            log(config={"filter": {"strategy": strategy, "value": value}}),
        ).path
        for strategy, value in (("top-p", 0.8), ("top-p", 0.6), ("none", 0.9))
    ]
    rows = figures.make("sensitivity", mixed, None, lambda text: None)[0]
    assert [(r["axis"], r["level"]) for r in rows] == [
        ("filter.value", "0.8"),
        ("filter.value", "0.6"),
    ]


def test_undefined_correlations_are_words_not_bars() -> None:
    from ragen2_cli.sweeps.correlations import correlate

    logs = [
        log(f"r{k}", seed=k, successes=(1, 20, 20), diagnostics=measured(1.0 + k)) for k in range(3)
    ]
    rows = spearman.data(correlate(logs), {"mi_estimate": "MI"})
    figure = spearman.draw(rows)
    assert "undefined: success is constant" in texts(figure)
    assert not figure.axes[0].patches
    assert "No intervals" in figure.get_supxlabel()


def test_the_scatter_has_a_point_per_checkpoint() -> None:
    from ragen2_cli.sweeps.correlations import points

    logs = pool(2)
    rows = scatter.data(logs, points(logs, rule="per-checkpoint"))
    assert len(rows) == 8 * 2
    assert {row["series"] for row in rows} == {"top-p 0.9", "no filter"}
    scatter.draw(rows)


def episodes():
    returns = {0: [0.0, 0.0], 1: [1.0, 0.0], 2: [0.0, -0.1]}
    kept = {0: False, 1: True, 2: False}
    return [
        Episode(
            step=7,
            group=group,
            rollout=number,
            seed=group,
            prompt="",
            turns=(),
            episode_return=value,
            outcome=value,
            success=value == 1.0,
            status="failure",
            kept=kept[group],
        )
        for group, values in returns.items()
        for number, value in enumerate(values)
    ]


def test_the_filter_figure_sorts_by_spread_and_marks_the_dead() -> None:
    rows = filter.data(episodes())
    # Variances (ddof 1): 1/2, 0.005, 0.
    assert [(r["group"], r["dead"], r["kept"]) for r in rows] == [
        (1, False, True),
        (2, False, False),
        (0, True, False),
    ]
    assert rows[0]["spread"] == 0.5
    assert filter.data(episodes(), score="reward_std")[0]["spread"] == pytest.approx(0.5**0.5)
    figure = filter.draw(rows)
    assert "1 of 3 groups kept, which hold 99% of the spread; 1 dead" in figure.get_supxlabel()


def test_the_heatmap_keeps_the_order_of_prompts() -> None:
    probes = [
        {"step": 50, "seeds": [7, 9], "returns": [[1.0, 0.0], [1.0, 1.0]]},
        {"step": 10, "seeds": [7, 9], "returns": [[1.0, 1.0], [0.0, None]]},
    ]
    rows = heatmap.data(probes)
    assert [(r["step"], r["seed"], r["mean_return"], r["dead"]) for r in rows] == [
        (10, 7, 1.0, True),
        (10, 9, 0.0, True),
        (50, 7, 0.5, False),
        (50, 9, 1.0, True),
    ]
    picture = heatmap.draw(rows).axes[0].images[0].get_array()
    # Prompt 9 comes first: it had the lower return at step 10.
    assert picture.tolist() == [[0.0, 1.0], [1.0, 0.5]]


def test_any_two_looks_differ_without_color() -> None:
    looks = style.looks(["top-p 0.9", "no filter", "resample", "top-k 0.5", "x", "y"])
    assert len({(look.marker, str(look.dash)) for look in looks.values()}) == 6
    assert looks["no filter"] == style.looks(["no filter"])["no filter"]


def test_a_figure_comes_with_its_numbers_and_its_origin(tmp_path: Path) -> None:
    rows = levels.value_rows({("a", 1): [(log(), 0.5), (log(), None)]}, ("series", "level"))
    file = tmp_path / "deep" / "x.png"
    write_figure(curves.draw([]), rows, file, [tmp_path])
    assert file.read_bytes().startswith(b"\x89PNG")
    table = list(csv.DictReader(file.with_suffix(".csv").open()))
    assert table[0]["median"] == "0.5"
    assert table[0]["low"] == ""  # absent, not 0
    about = json.loads(file.with_suffix(".json").read_text())
    assert {"command", "date", "versions"} <= set(about)


def test_a_figure_of_a_sweep_lies_beside_the_numbers_of_its_runs(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    logs = pool(3)
    logs[0] = replace(logs[0], diagnostics=(), evaluations=logs[0].evaluations[:1])
    write_sweep(sweep, logs)
    plot("curves", [sweep], str(tmp_path / "c.png"), "png", None, False)
    with (tmp_path / "c.runs.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["run"] for row in rows] == [each.name for each in logs]
    assert [row["seed"] for row in rows] == [str(each.seed) for each in logs]
    first, second = rows[0], rows[1]
    assert {first[name] for name in ("step", "success, final (share)", "mi_estimate (nats)")} == {
        ""
    }
    last = logs[1].evaluations[-1]
    assert float(second["success, final (share)"]) == pytest.approx(last.success)
    assert (second["step"], second["episodes"]) == (str(last.step), str(last.episodes))
    assert float(second["sampling entropy (nats)"]) == last.entropy
    assert float(second["mi_estimate (nats)"]) == logs[1].diagnostics[-1]["mi_estimate"]
    assert (second["time (seconds)"], second["env.dead_share"]) == ("10", "0")
    # The paired difference over seeds is the one that compare gives.
    arms = [
        compare.read_arm(f"{sweep}@filter={name},env.dead_share=0.75") for name in ("top-p", "none")
    ]
    found = compare.compare(compare.pair_up(*arms)[0])[0].difference

    def column(name: str) -> list[float]:
        chosen = [r for r in rows if (r["filter"], r["env.dead_share"]) == (name, "0.75")]
        chosen.sort(key=lambda row: int(row["seed"]))
        return [float(row["success, final (share)"]) for row in chosen]

    again = paired_difference(column("top-p"), column("none"))
    assert again == pytest.approx(found)
    assert again.n == 3
    assert again.mean == pytest.approx(0.1)


def test_plot_all_works_without_a_display(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    write_sweep(sweep, pool(2))
    environment = {**os.environ, "MPLBACKEND": "TkAgg", "DISPLAY": ""}
    done = subprocess.run(
        [sys.executable, "-m", "ragen2_cli", "plot", "all", str(sweep)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    drawn = {Path(line).stem for line in done.stdout.split()}
    assert {"curves", "dead-share", "dynamics", "lengths", "stochasticity"} <= drawn
    assert "no gradients: no data" in done.stderr
    assert "no filter:" in done.stderr
    for line in done.stdout.split():
        assert Path(line).stat().st_size > 1000
        assert Path(line).with_suffix(".csv").is_file()
        assert Path(line).with_suffix(".runs.csv").is_file() == (
            Path(line).stem in figures.FROM_LOGS
        )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["plot", "curves", "nowhere"], "no run at nowhere"),
        (["plot", "curve", "x"], "curves"),
        (["plot", "curves", "x", "--step", "5"], "--step: curves has no single step"),
        (["compare", "nowhere", "nowhere"], "no run at nowhere"),
        (["analyze", "correlations", "nowhere"], "no run at nowhere"),
        (["sweep", "--seeds", "1,1"], "seed 1 is there twice"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(tmp_path: Path, args, said) -> None:
    # case 46
    done = subprocess.run(
        [sys.executable, "-m", "ragen2_cli", *args],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_on_its_own_is_drawn_too(tmp_path: Path) -> None:
    run = write(tmp_path / "run", replace(log(), evaluations=(evaluation(5, 40),)))
    rows, figure = figures.make("curves", [run.path], None, lambda text: None)
    assert [r["median"] for r in rows if r["quantity"] == "success"] == [0.4]
    assert "n = 1 run per arm" in figure.get_supxlabel()


def test_the_heatmap_of_a_sweep_shows_one_run(tmp_path: Path) -> None:
    # Runs of a sweep play the same held-out prompts: put together, one would hide the other.
    cells = [Cell(f"seed-{seed}", {}, seed, {"seed": seed}, "planned") for seed in (0, 1)]
    sweep = SweepDirectory.create(tmp_path / "sweep", cells)
    for cell, returns in zip(cells, ([[1.0, 0.0]], [[1.0, 1.0]]), strict=True):
        run = RunDirectory.create(sweep.run_path(cell), {})
        run.write_json("probes/step-000010.json", {"step": 10, "seeds": [7], "returns": returns})
        run.write_summary({})
    rows, _ = figures.make("heatmap", [sweep.path], None, lambda text: None)
    assert [(row["seed"], row["mean_return"]) for row in rows] == [(7, 0.5)]
