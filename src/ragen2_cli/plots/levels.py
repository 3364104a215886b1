"""A quantity against the level of one setting: arms side by side, seeds as dots."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ragen2_cli.plots import style
from ragen2_cli.plots.series import Row, over_runs
from ragen2_cli.records import RunLog


def draw_levels(
    axes: Axes, rows: Sequence[Row], looks: dict[str, style.Look], levels: Sequence[Any]
) -> None:
    """Draw medians with interval bars and a dot per run at evenly spaced levels.

    Args:
        axes: Where.
        rows: Each with ``level``, ``series``, ``median``, ``low``, ``high`` and ``values``, the
            runs' own numbers.
        looks: By series.
        levels: All levels in order.
    """
    if not rows:
        style.no_data(axes)
        return
    place = {level: index for index, level in enumerate(levels)}
    shift = 0.24 / max(len(looks) - 1, 1)
    for index, (series, look) in enumerate(looks.items()):
        chosen = sorted(
            (row for row in rows if row["series"] == series), key=lambda row: place[row["level"]]
        )
        if not chosen:
            continue
        offset = shift * (index - (len(looks) - 1) / 2)
        x = np.array([place[row["level"]] for row in chosen]) + offset
        middle = np.array([row["median"] for row in chosen])
        low, high = (np.array([row[end] for row in chosen]) for end in ("low", "high"))
        for at, row in zip(x, chosen, strict=True):
            axes.plot(
                np.full(len(row["values"]), at + 0.07),
                row["values"],
                linestyle="",
                marker="o",
                markersize=3.2,
                color=look.color,
                alpha=0.5,
                markeredgewidth=0,
                zorder=2,
            )
        barred = ~np.isnan(low)
        axes.errorbar(
            x[barred],
            middle[barred],
            yerr=[(middle - low)[barred], (high - middle)[barred]],
            fmt="none",
            ecolor=look.color,
            elinewidth=1.3,
            capsize=3,
        )
        style.line(axes, x, middle, look, series, zorder=3)
    axes.set_xticks(range(len(levels)), [_text(level) for level in levels])
    axes.set_xlim(-0.5, len(levels) - 0.5)


def _text(level: Any) -> str:
    return f"{level:g}" if isinstance(level, int | float) else str(level)


def value_rows(
    keyed: dict[tuple[Any, ...], list[tuple[RunLog, float | None]]], names: Sequence[str]
) -> list[Row]:
    """Return one row per key with the median of its runs' values and the values themselves."""
    return [
        dict(zip(names, key, strict=True))
        | over_runs(measured)
        | {"values": [value for _, value in measured if value is not None]}
        for key, measured in keyed.items()
    ]
