"""The time left of a sweep, and its view."""

from dataclasses import replace

import pytest
from rich.console import Console

from ragen2_cli.records import Cell
from ragen2_cli.sweeps import progress
from ragen2_cli.sweeps.progress import SweepView, Tally, describe


def cells(*statuses: str) -> list[Cell]:
    return [
        Cell(f"c{k}", {"filter": "none"}, k, {"steps": 10}, status)  # type: ignore[arg-type]
        for k, status in enumerate(statuses)
    ]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_time_left_follows_the_steps_done(clock: list[float]) -> None:
    tally = Tally()
    todo = cells("planned", "planned")
    tally.plan(todo, todo)
    assert tally.left() == "-"
    tally.begin(1, todo[0])
    tally.at_step(1, 0)
    clock[0] = 10.0
    tally.at_step(1, 5)
    # 5 steps in 10 s; 15 of 20 steps are left: 30 s.
    assert tally.left() == "0:30"
    clock[0] = 20.0
    tally.end(replace(todo[0], status="done"))
    assert tally.headline() == "1/2 cells done, 0:20 left"


def test_steps_of_an_earlier_session_are_not_counted_as_speed(clock: list[float]) -> None:
    tally = Tally()
    todo = cells("interrupted")
    tally.plan(todo, todo)
    tally.begin(1, todo[0])
    tally.at_step(1, 6)
    clock[0] = 4.0
    tally.at_step(1, 8)
    # 2 steps in 4 s, 2 left.
    assert tally.left() == "0:04"


def test_failed_and_finished_cells_are_counted_from_the_start() -> None:
    tally = Tally()
    all_cells = cells("done", "failed", "planned")
    tally.plan(all_cells, all_cells[2:])
    assert tally.headline() == "1/3 cells done, 1 failed, - left"
    assert describe(all_cells[2]) == "filter none, seed 2"


def test_the_view_shows_a_line_per_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rich.console.Console", lambda **_: Console(record=True, force_terminal=True, width=90)
    )
    view = SweepView()
    todo = cells("planned", "planned")
    view.plan(todo, todo)
    view.worker(1, "starting")
    view.begin(2, todo[0])
    view.at_step(2, 4)
    view.end(replace(todo[0], status="failed", reason="no [red] room"))
    view.close()
    shown = view._console.export_text()
    assert "worker 2" in shown
    assert "failed: filter none, seed 0: no [red] room" in shown
