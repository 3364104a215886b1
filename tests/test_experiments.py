"""Every file under experiments/ is a sweep that could start."""

from pathlib import Path

import pytest

from ragen2_cli.sweeps.plan import plan

FILES = sorted((Path(__file__).parents[1] / "experiments").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_experiment_makes_cells(file: Path) -> None:
    cells = plan({}, [], None, file=file)
    assert cells
    assert len({cell.name for cell in cells}) == len(cells)
    if file.stem.endswith("-laptop"):
        assert all(cell.config["model"]["name"] == "embedded" for cell in cells)
        assert file.stem == "default-laptop" or len({cell.seed for cell in cells}) >= 3


def test_the_flagship_has_its_levels_regularizers_and_seeds() -> None:
    cells = plan({}, [], None, file=next(f for f in FILES if f.stem == "dead-share-laptop"))
    assert {cell.config["env"]["dead_share"] for cell in cells} == {0.0, 0.75}
    assert {cell.config["filter"]["strategy"] for cell in cells} == {"top-p", "none"}
    pairs = {(c.config["algorithm"]["entropy"], c.config["algorithm"]["kl"]) for c in cells}
    assert pairs == {(0.0, 0.0), (0.02, 0.0), (0.05, 0.0)}
    assert {cell.seed for cell in cells} == {0, 1, 2, 3, 4}


def test_a_part_of_an_experiment_is_a_part_of_its_cells() -> None:
    file = next(f for f in FILES if f.stem == "dead-share-laptop")
    whole = {cell.name: cell.config for cell in plan({}, [], None, file=file)}
    part = plan({}, ["env.dead_share=0.75"], "2", file=file)
    assert len(part) == 1 * 2 * 3 * 2
    assert all(whole[cell.name] == cell.config for cell in part)
