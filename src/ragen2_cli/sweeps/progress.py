"""The view of a running sweep, on stderr: a line per worker, cells done, time left."""

import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from ragen2_cli.records import Cell


class SweepProgress(Protocol):
    """What a sweep tells whoever watches it."""

    def plan(self, cells: Collection[Cell], waiting: Iterable[Cell]) -> None:
        """The sweep begins; ``waiting`` is what still has to run."""

    def worker(self, number: int, state: str) -> None:
        """A worker starts or ends."""

    def begin(self, number: int, cell: Cell) -> None:
        """A worker begins a cell."""

    def at_step(self, number: int, step: int) -> None:
        """A worker's cell has come to a step."""

    def end(self, cell: Cell) -> None:
        """A cell has ended."""

    def close(self) -> None:
        """Stop drawing."""


@dataclass
class _Under:
    """A cell under way, and the step its run began at."""

    cell: Cell
    first: int | None = None
    step: int = 0


class Tally:
    """Counts cells and steps, and tells the time left from the steps per second so far."""

    def __init__(self) -> None:
        self.total = self.done = self.failed = 0
        self.states: dict[int, str] = {}
        self._under: dict[int, _Under] = {}
        self._steps_left = self._steps_done = 0
        self._start = time.monotonic()

    def plan(self, cells: Collection[Cell], waiting: Iterable[Cell]) -> None:
        """Take up what there is and what must be run."""
        waiting = list(waiting)
        self.total = len(cells)
        names = {cell.name for cell in waiting}
        others = [cell.status for cell in cells if cell.name not in names]
        self.done, self.failed = others.count("done"), others.count("failed")
        self._steps_left = sum(cell.config["steps"] for cell in waiting)
        self._start = time.monotonic()

    def worker(self, number: int, state: str) -> None:
        """Note what a worker does."""
        self.states[number] = state

    def begin(self, number: int, cell: Cell) -> None:
        """Note a cell under way."""
        self._under[number] = _Under(cell)
        self.states[number] = f"{describe(cell)}  starting"

    def at_step(self, number: int, step: int) -> None:
        """Note how far it is; a resumed cell starts at the step it has."""
        under = self._under[number]
        if under.first is None:
            under.first = step if under.cell.status in ("running", "interrupted") else 0
        under.step = max(step, under.first)
        total = under.cell.config["steps"]
        self.states[number] = f"{describe(under.cell)}  step {step}/{total}"

    def end(self, cell: Cell) -> None:
        """Count a cell that has ended."""
        for number, under in list(self._under.items()):
            if under.cell.name == cell.name:
                del self._under[number]
                self._steps_done += cell.config["steps"] - (under.first or 0)
                self._steps_left -= cell.config["steps"]
                self.states[number] = "idle"
        self.done += cell.status == "done"
        self.failed += cell.status == "failed"

    def left(self) -> str:
        """Return the time left as ``1:02:03`` or ``2:03``; ``-`` before anything is known."""
        here = sum(under.step - (under.first or 0) for under in self._under.values())
        done = self._steps_done + here
        if done <= 0:
            return "-"
        left = self._steps_left - sum(under.step for under in self._under.values())
        seconds = round((time.monotonic() - self._start) / done * max(left, 0))
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"

    def headline(self) -> str:
        """Return one line about the whole sweep."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done}/{self.total} cells done{failed}, {self.left()} left"


def describe(cell: Cell) -> str:
    """Return a cell in words: ``filter top-p, stochasticity 20, seed 3``."""
    arms = [f"{name} {label}" for name, label in cell.labels.items()]
    return ", ".join([*arms, f"seed {cell.seed}"])


class SilentSweep(Tally):
    """Shows nothing (``--quiet``, ``--json``)."""

    def close(self) -> None:
        """Do nothing."""


class SweepLines(Tally):
    """One plain line per cell, for logs and pipes."""

    def end(self, cell: Cell) -> None:
        """Say how a cell ended."""
        super().end(cell)
        seconds = "" if cell.seconds is None else f" in {cell.seconds:.0f} s"
        reason = f" ({cell.reason})" if cell.reason else ""
        sys.stderr.write(f"{describe(cell)}: {cell.status}{seconds}{reason}; {self.headline()}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Flush."""
        sys.stderr.flush()


class SweepView(Tally):
    """A few lines that redraw themselves on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live("", console=self._console, refresh_per_second=2, transient=True)
        self._live.start()

    def _draw(self) -> None:
        from rich.text import Text

        rows = [f"worker {number}  {state}" for number, state in sorted(self.states.items())]
        self._live.update(Text("\n".join([*rows, self.headline()])))

    def worker(self, number: int, state: str) -> None:
        """Redraw."""
        super().worker(number, state)
        self._draw()

    def begin(self, number: int, cell: Cell) -> None:
        """Redraw."""
        super().begin(number, cell)
        self._draw()

    def at_step(self, number: int, step: int) -> None:
        """Redraw."""
        super().at_step(number, step)
        self._draw()

    def end(self, cell: Cell) -> None:
        """Redraw; a failure is printed above, so that it stays."""
        super().end(cell)
        if cell.status == "failed":
            text = f"failed: {describe(cell)}: {cell.reason}"
            self._console.print(text, markup=False, highlight=False)
        self._draw()

    def close(self) -> None:
        """Stop redrawing."""
        self._live.stop()


def sweep_progress(*, quiet: bool) -> SweepProgress:
    """Choose the view: nothing, plain lines when piped, live lines on a terminal."""
    if quiet:
        return SilentSweep()
    return SweepView() if sys.stderr.isatty() else SweepLines()
