"""Entropy with its phases shaded, and the rates of degenerate patterns beneath it."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ragen2_cli.core.courses import RATES
from ragen2_cli.plots import style

Row = dict[str, Any]
MOST_COLUMNS = 4
_SHADES = {"descent": "#cfe3d6", "eruption": "#f3c9a5", "subsidence": "#cfdcea"}
_DRAWN = tuple(name for name in RATES if name != "repeated_10gram_mass")


def draw(rows: Sequence[Row]) -> Figure:
    """Draw rows of entropy, phase, alarm and rates by path and step (``commands.entropy.rows``).

    One column per path, at most ``MOST_COLUMNS``; a path without any rate says so.
    """
    by_path = [(path, list(of)) for path, of in groupby(rows, key=lambda row: row["path"])]
    pages = by_path[:MOST_COLUMNS]
    looks = dict(zip(_DRAWN, style.LOOKS[1:], strict=False))
    count = max(1, len(pages))
    figure, grid = style.canvas(max(5.2, 3.4 * count), 5.2, 2, count, sharex="col", sharey="row")
    for column, (path, chosen) in enumerate(pages):
        top, below = grid[:, column]
        steps = [row["step"] for row in chosen]
        for axes in (top, below):
            _shade(axes, chosen)
        style.line(
            top, steps, [style.number(row["entropy"]) for row in chosen], style.LOOKS[0], "entropy"
        )
        alarms = [(row["step"], row["entropy"]) for row in chosen if row["alarm"]]
        for number, (step, value) in enumerate(alarms):
            label = "live alarm" if number == 0 else "_again"
            top.plot(step, style.number(value), "v", color="#b3261e", markersize=8, label=label)
        _rates(below, steps, chosen, looks)
        style.title(top, Path(path).name)
        style.labels(top, "", "entropy (nats)" if column == 0 else "")
        style.labels(below, "optimizer step", "rate (share)" if column == 0 else "")
    if not pages:
        for axes in grid.flat:
            style.no_data(axes)
    handles, names = _legend(grid)
    style.head_of(figure, "Entropy and what degenerates with it", handles, names)
    left_out = len(by_path) - len(pages)
    more = f" {left_out} more are in the CSV." if left_out else ""
    style.caption(
        figure,
        "Shaded: phases that the detector found. Rates are means over the turns of a step's "
        f"episodes; higher is worse.{more}",
    )
    return figure


def _shade(axes: Axes, rows: Sequence[Row]) -> None:
    for kind, of in groupby(rows, key=lambda row: row["phase"]):
        steps = [row["step"] for row in of]
        if kind is not None:
            axes.axvspan(steps[0], steps[-1], color=_SHADES[kind], linewidth=0, zorder=0)


def _rates(axes: Axes, steps: list[int], rows: Sequence[Row], looks: dict[str, style.Look]) -> None:
    there = [name for name in looks if any(row.get(name) is not None for row in rows)]
    for name in there:
        values = [style.number(row.get(name)) for row in rows]
        style.line(axes, steps, values, looks[name], name.replace("_", " "))
    if there:
        style.from_zero(axes)
    else:
        style.no_data(axes, "no texts beside the entropy")


def _legend(grid: Any) -> tuple[list[Any], list[str]]:
    found: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    patches = [Patch(color=color, label=kind) for kind, color in _SHADES.items()]
    return [*found.values(), *patches], [*found, *_SHADES]
