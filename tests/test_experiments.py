"""Every file under experiments/ is a sweep that could start."""

from pathlib import Path

import pytest

from ragen2_cli.config.presets import PRESETS
from ragen2_cli.records import Cell
from ragen2_cli.sweeps.plan import plan

FILES = sorted((Path(__file__).parents[1] / "experiments").glob("*.toml"))


def cells_of(name: str) -> list[Cell]:
    return plan({}, [], None, file=next(file for file in FILES if file.stem == name))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_experiment_makes_cells(file: Path) -> None:
    cells = plan({}, [], None, file=file)
    assert cells
    assert len({cell.name for cell in cells}) == len(cells)
    if file.stem.endswith("-laptop"):
        assert all(cell.config["model"]["name"] == "embedded" for cell in cells)
        assert file.stem == "default-laptop" or len({cell.seed for cell in cells}) >= 5


def test_the_flagship_has_its_levels_regularizers_and_seeds() -> None:
    cells = cells_of("dead-share-grid")
    assert len(cells) == 5 * 2 * 4 * 5
    assert {cell.config["env"]["dead_share"] for cell in cells} == {0.0, 0.25, 0.5, 0.75, 0.9}
    assert {cell.config["filter"]["strategy"] for cell in cells} == {"top-p", "none"}
    pairs = {(c.config["algorithm"]["entropy"], c.config["algorithm"]["kl"]) for c in cells}
    assert pairs == {(0.0, 0.0), (0.02, 0.0), (0.05, 0.0), (0.0, 0.1)}
    assert {cell.seed for cell in cells} == {0, 1, 2, 3, 4}


def test_a_part_of_an_experiment_is_a_part_of_its_cells() -> None:
    whole = {cell.name: cell.config for cell in cells_of("dead-share-grid")}
    file = next(f for f in FILES if f.stem == "dead-share-grid")
    part = plan({}, ["env.dead_share=0.75"], "2", file=file)
    assert len(part) == 1 * 2 * 4 * 2
    assert all(whole[cell.name] == cell.config for cell in part)
    laptop = cells_of("dead-share-laptop")
    assert len(laptop) == 2 * 2 * 2 * 5
    assert all(whole[cell.name] == cell.config for cell in laptop)


@pytest.mark.parametrize("name", [f.stem for f in FILES if f.stem.endswith("-paper")])
def test_paper_files_have_the_sources_settings(name: str) -> None:
    preset = PRESETS["paper"]
    for cell in cells_of(name):
        for section in ("model", "rollout", "optimizer", "evaluation"):
            found = {key: cell.config[section][key] for key in preset[section]}
            assert found == preset[section]
        algorithm = cell.config["algorithm"]
        assert (algorithm["clip_low"], algorithm["clip_high"]) == (0.2, 0.28)
        assert cell.config["steps"] == preset["steps"]
