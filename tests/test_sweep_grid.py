"""What a sweep varies, and the cells that come of it."""

import dataclasses
from pathlib import Path

import pytest

from ragen2_cli.commands.sweep import with_levels
from ragen2_cli.errors import UserError
from ragen2_cli.sweeps import axes
from ragen2_cli.sweeps.folder import SweepDirectory
from ragen2_cli.sweeps.grid import cell_name, expand
from ragen2_cli.sweeps.plan import plan


def planned(seeds="2", over=(), file=None, zipped=False, flags=None, sets=(), **given):
    names = {name.replace("_", "-"): value for name, value in given.items()}
    return plan(names, over, seeds, file=file, zipped=zipped, flags=flags, sets=sets)


def test_a_grid_is_every_combination_with_the_seed_fastest() -> None:
    cells = planned(stochasticity="0,80%", filter="top-p:0.8,none")
    # 2 levels x 2 filters x 2 seeds
    assert [(c.labels["stochasticity"], c.labels["filter"], c.seed) for c in cells][:3] == [
        ("0", "top-p:0.8", 0),
        ("0", "top-p:0.8", 1),
        ("0", "none", 0),
    ]
    assert len(cells) == 8
    assert cells[-1].config["env"]["stochasticity"] == 80.0
    assert cells[0].config["filter"] == {**cells[0].config["filter"], "value": 0.8}
    assert len({cell.name for cell in cells}) == 8


def test_the_number_of_prompts_is_an_axis() -> None:
    cells = planned("1", prompts="4,8")
    assert [cell.config["rollout"]["prompts"] for cell in cells] == [4, 8]
    assert [cell.labels for cell in cells] == [{"prompts": "4"}, {"prompts": "8"}]


def test_half_means_half_a_percent() -> None:
    assert planned("1", stochasticity="0.5")[0].config["env"]["stochasticity"] == 0.5


def test_zip_takes_values_together() -> None:
    cells = planned("1", kl="0,0.01", entropy="0,0.1", zipped=True)
    pairs = [(c.config["algorithm"]["kl"], c.config["algorithm"]["entropy"]) for c in cells]
    assert pairs == [(0.0, 0.0), (0.01, 0.1)]
    with pytest.raises(UserError, match="kl 1, entropy 2"):
        planned("1", kl="0", entropy="0,0.1", zipped=True)


def test_top_p_values_and_none_share_an_axis() -> None:
    cells = planned("1", top_p="1,.9,none")
    found = [(c.config["filter"]["strategy"], c.config["filter"]["value"]) for c in cells]
    assert found[:2] == [("top-p", 1.0), ("top-p", 0.9)]
    assert found[2][0] == "none"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seeds": "1,2,1"}, "seed 1 is there twice"),
        ({"seeds": "0"}, "no cells"),
        ({"seeds": "99999999999"}, "99,999,999,999 are more than the 10,000 of a sweep"),
        ({"seeds": "x"}, "neither a count nor a list"),
        ({"stochasticity": ","}, "no cells"),
        ({"stochasticity": "0,0%"}, "twice"),
        ({"stochasticity": "120"}, "between 0 and 100"),
        ({"over": ["filter.nope=1,2"]}, "nope"),
        ({"over": ["filter.value"]}, "section.key=a,b,c"),
        ({"filter": "topp"}, "did you mean 'top-p'"),
        ({"over": ["steps=2,3", "steps=4"]}, "steps is swept twice"),
        ({"group_size": "8,1"}, "group_size"),
        ({"seeds": "\u00b2"}, "neither a count nor a list"),
        ({"filter": "top-p:0.5,none", "top_p": "0.9,0.8"}, "filter and top-p both set filter.str"),
        ({"kl": "0,0.1", "over": ["algorithm.kl=0.5"]}, "kl and algorithm.kl both set"),
        ({"over": ["env.options={a=1}", "env.options.a=1,2"]}, "both set env.options.a"),
        ({"over": ["seed=1,2,3"]}, "give seeds with --seeds"),
        ({"over": ["optimizer.lr=0.001,1e-3"]}, "lr-0.001_seed-0 and lr-1e-3_seed-0 are the same"),
        ({"kl": "0,0.0"}, "kl-0_seed-0 and kl-0.0_seed-0 are the same run"),
        ({"filter": "top-p,top-p:0.9"}, "filter-top-p_seed-0 and .* are the same run"),
        ({"sets": ["seed=abc"], "seeds": None}, "seed: .*got 'abc'"),
        ({"sets": ["seed.x=1"], "seeds": None}, "seed: .*got {'x': 1}"),
    ],
)
def test_what_makes_no_sweep_is_one_line(asked, said) -> None:
    with pytest.raises(UserError, match=said) as caught:
        planned(**asked)
    assert "\n" not in str(caught.value)


def test_a_table_of_arms_sets_several_keys_at_once(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        "steps = 3\n[sweep]\nseeds = [4, 7]\n[sweep.over]\n'env.dead_share' = [0.0, 0.75]\n"
        "[sweep.arms.regularizer]\nnone = {}\n'entropy 0.02' = {algorithm.entropy = 0.02}\n"
    )
    cells = planned(None, file=file)
    assert len(cells) == 8
    last = cells[-1]
    assert last.labels == {"env.dead_share": "0.75", "regularizer": "entropy 0.02"}
    assert (last.seed, last.config["algorithm"]["entropy"]) == (7, 0.02)
    # Flags replace an axis of the same name, and the seeds.
    again = planned("1", over=["env.dead_share=0.5"], file=file)
    assert [cell.labels["env.dead_share"] for cell in again] == ["0.5", "0.5"]


def test_a_table_has_the_right_shape(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text("sweep = 5\n")
    with pytest.raises(UserError, match="sweep is a table"):
        planned(None, file=file)
    file.write_text("[sweep]\nzip = 'no'\n")
    with pytest.raises(UserError, match="zip is true or false"):
        planned(None, file=file)
    file.write_text("[sweep.arms.which]\nplain = {}\nfirst = {seed = 1}\n")
    with pytest.raises(UserError, match="which sets the seed"):
        planned(None, file=file)


def test_axes_with_other_keys_of_a_section_are_not_in_each_others_way() -> None:
    # filter without a value leaves filter.value to the other axis: 2 x 2 cells, all different.
    cells = planned("1", filter="top-p,top-k", over=["filter.value=0.5,0.8"])
    found = [(c.config["filter"]["strategy"], c.config["filter"]["value"]) for c in cells]
    assert found == [("top-p", 0.5), ("top-p", 0.8), ("top-k", 0.5), ("top-k", 0.8)]


def test_names_are_safe_and_differ_where_labels_do() -> None:
    plain = cell_name({"filter": "top-p"}, 3)
    assert plain == "filter-top-p_seed-3"
    slashes = [cell_name({"model": model}, 0) for model in ("org/a b", "org/a-b", "org-a/b")]
    assert len(set(slashes)) == 3
    assert all("/" not in name and " " not in name for name in slashes)
    assert len(cell_name({"x": "y" * 500}, 0)) < 140


def test_a_bare_stochasticity_means_the_levels_of_the_sources() -> None:
    assert with_levels(["--stochasticity", "--seeds", "2"])[1] == axes.LEVELS
    assert with_levels(["--stochasticity"]) == ["--stochasticity", axes.LEVELS]
    assert with_levels(["--stochasticity", "5"]) == ["--stochasticity", "5"]


def test_a_folder_takes_more_cells_but_no_other_settings(tmp_path: Path) -> None:
    first = SweepDirectory.create(tmp_path / "s", planned("1", filter="none"))
    first.close()
    more = SweepDirectory.create(tmp_path / "s", planned("2", filter="none,top-p"))
    assert len(more.cells) == 4
    more.close()
    with pytest.raises(UserError, match=r"another steps \(100 there, 9 here\)"):
        SweepDirectory.create(tmp_path / "s", planned("1", filter="none", flags={"steps": 9}))
    # kl 0 is the default, so its cell without a filter is there already; nothing is added.
    before = (tmp_path / "s" / "cells.jsonl").read_bytes()
    with pytest.raises(UserError, match="filter-none_seed-0 and filter-none_kl-0_seed-0 are the s"):
        SweepDirectory.create(tmp_path / "s", planned("1", filter="none", kl="0.1,0"))
    assert (tmp_path / "s" / "cells.jsonl").read_bytes() == before
    with pytest.raises(UserError, match="no cells"):
        SweepDirectory.create(tmp_path / "t", expand({}, [], []))
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not a sweep"):
        SweepDirectory.create(other, planned("1"))


def test_a_setting_that_came_later_does_not_make_a_cell_another_one(tmp_path: Path) -> None:
    (cell,) = planned("1")
    old = {key: value for key, value in cell.config.items() if key != "diagnostics"}
    SweepDirectory.create(tmp_path / "s", [dataclasses.replace(cell, config=old)]).close()
    again = SweepDirectory.create(tmp_path / "s", [cell])
    assert list(again.cells) == [cell.name]
    again.close()
    # The command that Ctrl-C prints gives the stored cells back.
    stored = SweepDirectory.open(tmp_path / "s").cells.values()
    assert list(SweepDirectory.create(tmp_path / "s", stored).cells) == [cell.name]


def test_status_survives_and_a_torn_line_does_not_hurt(tmp_path: Path) -> None:
    sweep = SweepDirectory.create(tmp_path / "s", planned("2"))
    cell = next(iter(sweep.cells.values()))
    sweep.record(cell, status="failed", reason="no room", seconds=1.5)
    sweep.close()
    with (tmp_path / "s" / "cells.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "name": "half')
    again = SweepDirectory.open(tmp_path / "s")
    assert [c.status for c in again.cells.values()] == ["failed", "planned"]
    assert again.cells[cell.name].reason == "no room"
