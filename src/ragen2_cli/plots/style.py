"""The look of every figure: readable in gray, by color-blind readers, and without a display."""

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, MUTED, GRID = "#222222", "#6b6b6b", "#e4e4e4"
_CHARACTERS_PER_INCH = 15.5


class Look(NamedTuple):
    """How one series is drawn; any two differ in color, lightness, marker and dash."""

    color: str
    marker: str
    dash: Any
    filled: bool


LOOKS = (
    Look("#0b4f8a", "o", "-", True),
    Look("#d98200", "s", (0, (5, 2)), False),
    Look("#1b7f5c", "^", (0, (6, 1.5, 1, 1.5)), True),
    Look("#b5527f", "D", (0, (1.2, 1.4)), False),
    Look("#5aa9d6", "v", "-", False),
    Look("#222222", "X", (0, (3, 1, 1, 1, 1, 1)), True),
    Look("#a3a000", "P", (0, (8, 3)), True),
    Look("#7a5195", "*", (0, (2, 2)), False),
)
_FIXED = {"top-p": 0, "no": 1, "top-k": 2, "resample": 3}


def looks(names: Sequence[str]) -> dict[str, Look]:
    """Give each series a look; filters have theirs in every figure, others take what is left."""
    chosen: dict[str, Look] = {}
    for name in names:
        words = name.rpartition(", ")[2].split()
        fixed = _FIXED.get(words[0]) if words else None
        if fixed is not None and LOOKS[fixed] not in chosen.values():
            chosen[name] = LOOKS[fixed]
    free = [look for look in LOOKS if look not in chosen.values()]
    for index, name in enumerate(name for name in names if name not in chosen):
        chosen[name] = free[index % len(free)] if free else LOOKS[index % len(LOOKS)]
    return chosen


def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **keywords: Any
) -> tuple[Figure, Any]:
    """Return a figure that needs no display, and its axes as a (rows, columns) array.

    Args:
        width: Inches.
        height: Inches.
        rows: Rows of panels.
        columns: Columns of panels.
        **keywords: Passed on to ``Figure.subplots``.
    """
    figure = Figure(figsize=(width, height), layout="constrained", dpi=160)
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, **keywords)
    for axes in grid.flat:
        plain(axes)
    return figure, grid


def plain(axes: Axes) -> None:
    """Quiet frame, light grid, small ticks."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, colors=INK, length=3)


def title(axes: Axes, text: str) -> None:
    """Write a panel's title, left-aligned."""
    axes.set_title(text, loc="left", fontsize=9.5, fontweight="bold", color=INK)


def labels(axes: Axes, x: str = "", y: str = "") -> None:
    """Name the axes, with their units."""
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)


def caption(figure: Figure, text: str) -> None:
    """Write what is shown, n and the kind of interval below the panels."""
    width = int(figure.get_figwidth() * _CHARACTERS_PER_INCH)
    lines = "\n".join(textwrap.wrap(text, width))
    figure.supxlabel(lines, x=0.012, ha="left", fontsize=8, color=MUTED)


def no_data(axes: Axes, why: str = "") -> None:
    """Say that there is nothing to draw, where a line at zero would lie."""
    text = "no data" + (f"\n{textwrap.fill(why, 38)}" if why else "")
    axes.text(
        0.5,
        0.5,
        text,
        transform=axes.transAxes,
        ha="center",
        va="center",
        color=MUTED,
        fontsize=9,
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)


def line(axes: Axes, x: Any, y: Any, look: Look, label: str, **keywords: Any) -> None:
    """Draw a series with its markers, thinned out where there are many points."""
    every = max(1, len(x) // 10)
    axes.plot(
        x,
        y,
        color=look.color,
        linestyle=look.dash,
        linewidth=1.7,
        marker=look.marker,
        markersize=5,
        markerfacecolor=look.color if look.filled else "white",
        markeredgecolor=look.color,
        markevery=every,
        label=label,
        **keywords,
    )


def band(axes: Axes, x: Any, low: Any, high: Any, look: Look) -> None:
    """Shade an interval; positions without one stay open."""
    low, high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    there = ~(np.isnan(low) | np.isnan(high))
    axes.fill_between(
        np.asarray(x), low, high, where=there.tolist(), color=look.color, alpha=0.16, linewidth=0
    )


def bar(axes: Axes, x: float, low: float, high: float, look: Look) -> None:
    """Draw one interval as an upright bar; nothing where it is NaN."""
    axes.plot([x, x], [low, high], color=look.color, linewidth=1.4, solid_capstyle="butt")


def head(figure: Figure, text: str, axes: Sequence[Axes]) -> None:
    """Write the figure's title and below it one legend for all panels, without repeats."""
    found: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    head_of(figure, text, list(found.values()), list(found))


def head_of(figure: Figure, text: str, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Write the figure's title and below it a legend of these handles, as wide as the figure."""
    if not handles:
        figure.suptitle(text, x=0.012, ha="left", fontsize=11.5, fontweight="bold", color=INK)
        return
    widest = max(len(name) for name in names) + 8
    figure.legend(
        handles,
        names,
        loc="outside upper left",
        title=text,
        title_fontproperties={"weight": "bold", "size": 11.5},
        alignment="left",
        ncols=max(1, min(len(names), int(figure.get_figwidth() * 11 / widest))),
        frameon=False,
        fontsize=8.5,
        handlelength=3.2,
        borderaxespad=0.3,
        columnspacing=1.6,
    )


def from_zero(axes: Axes) -> None:
    """Let the y axis begin just below 0, so that marks at 0 are whole.

    Where panels share the axis, one that is drawn later still makes it longer.
    """
    top = axes.get_ylim()[1]
    axes.set_ylim(-0.03 * top, top, auto=None)


def number(value: Any) -> float:
    """Return a number, NaN for what is absent: absent values are absent, never 0."""
    return float("nan") if value is None else float(value)
