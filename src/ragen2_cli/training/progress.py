"""The live view of a training run, on stderr: a few rows of numbers and the time left."""

import sys
import time
from collections import deque
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ragen2_cli.records import Evaluation, Step

_COLUMNS = (
    "step",
    "success",
    "return",
    "kept",
    "dead",
    "invalid",
    "entropy",
    "length",
    "tokens/s",
    "left",
)


class Progress(Protocol):
    """What a training run tells whoever watches it."""

    def note(self, text: str) -> None:
        """Say one thing that happened."""

    def step(self, row: Step) -> None:
        """Show one optimizer step."""

    def evaluation(self, row: Evaluation) -> None:
        """Show one held-out measurement."""

    def close(self) -> None:
        """Stop drawing."""


class Silent:
    """Shows nothing (``--quiet``, ``--json``)."""

    def note(self, text: str) -> None:
        """Ignore it."""

    def step(self, row: Step) -> None:
        """Ignore it."""

    def evaluation(self, row: Evaluation) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Do nothing."""


class Lines:
    """One plain line now and then, for logs and pipes."""

    def __init__(self, total: int, every: int | None = None) -> None:
        """Print every ``every`` steps; by default about twenty times in ``total`` steps."""
        self._total = total
        self._every = every or max(1, total // 20)
        self._clock = _Clock(total)

    def note(self, text: str) -> None:
        """Print it."""
        sys.stderr.write(f"{text}\n")

    def step(self, row: Step) -> None:
        """Print the step when its turn has come."""
        cells = _cells(row, self._total, self._clock)
        if row.step % self._every == 0 or row.step == 1:
            pairs = zip(_COLUMNS, cells, strict=True)
            sys.stderr.write("  ".join(f"{name} {cell}" for name, cell in pairs) + "\n")
            sys.stderr.flush()

    def evaluation(self, row: Evaluation) -> None:
        """Print it."""
        self.note(evaluation_text(row))

    def close(self) -> None:
        """Flush."""
        sys.stderr.flush()


class View:
    """A table of the latest steps that redraws itself on a terminal."""

    def __init__(self, total: int, console: Console, rows: int = 8) -> None:
        """Show the latest ``rows`` of ``total`` steps on ``console``."""
        self._total = total
        self._rows: deque[list[str]] = deque(maxlen=rows)
        self._clock = _Clock(total)
        self._live = Live(self._table(), console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for name in _COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        for index, cells in enumerate(self._rows):
            table.add_row(*cells, style="bold" if index == len(self._rows) - 1 else "dim")
        return table

    def note(self, text: str) -> None:
        """Print it above the table."""
        self._live.console.print(text, markup=False, highlight=False)

    def step(self, row: Step) -> None:
        """Add the step to the table."""
        self._rows.append(_cells(row, self._total, self._clock))
        self._live.update(self._table())

    def evaluation(self, row: Evaluation) -> None:
        """Print it above the table."""
        self.note(evaluation_text(row))

    def close(self) -> None:
        """Stop redrawing; the last table stays."""
        self._live.stop()


def progress_for(total: int, *, quiet: bool) -> Progress:
    """Choose the view: nothing, plain lines when piped, a live table on a terminal."""
    if quiet:
        return Silent()
    console = Console(stderr=True)
    return View(total, console) if console.is_terminal else Lines(total)


def evaluation_text(row: Evaluation) -> str:
    """Return one line about a held-out measurement, with its n and interval."""
    how = "greedy" if row.decoding == "greedy" else f"sampled at T = {row.temperature:g}"
    return (
        f"held-out success after step {row.step}, {how}: {row.success:.1%} "
        f"[{row.ci_low:.1%}, {row.ci_high:.1%}], n = {row.episodes}"
    )


class _Clock:
    """Time left from the recent seconds per step."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._marks: deque[tuple[int, float]] = deque(maxlen=20)

    def left(self, step: int) -> str:
        self._marks.append((step, time.monotonic()))
        (first, then), (last, now) = self._marks[0], self._marks[-1]
        if last == first:
            return "-"
        seconds = round((now - then) / (last - first) * (self._total - step))
        minutes, seconds = divmod(max(seconds, 0), 60)
        return f"{minutes}:{seconds:02d}"


def _cells(row: Step, total: int, clock: _Clock) -> list[str]:
    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    speed = row.tokens / row.rollout_seconds if row.rollout_seconds > 0 else None
    return [
        f"{row.step}/{total}",
        number(row.success, ".0%"),
        number(row.episode_return, ".2f"),
        f"{row.kept_groups}/{row.groups}",
        str(row.dead_groups),
        number(row.invalid_rate, ".0%"),
        number(row.entropy, ".2f"),
        number(row.response_length, ".0f"),
        number(speed, ",.0f"),
        clock.left(row.step),
    ]
