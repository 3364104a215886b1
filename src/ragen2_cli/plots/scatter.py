"""Information and entropy against success: one point per checkpoint of each run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ragen2_cli.errors import counted
from ragen2_cli.plots import style
from ragen2_cli.plots.series import Row, arms
from ragen2_cli.records import RunLog

_AXES = {
    "mi_estimate": "MI estimate (nats per token)",
    "conditional_entropy": "conditional entropy H(Z|X) (nats per token)",
}


def data(logs: Sequence[RunLog], points: Sequence[Any]) -> list[Row]:
    """Return one row per measured checkpoint.

    Args:
        logs: The pool.
        points: What ``sweeps.correlations.points`` made of it, one per checkpoint.
    """
    # By filter; by whatever else was swept where there is one filter only.
    series = {id(log): name for _, name, runs in arms(logs) for log in runs}
    return [
        {
            "run": point.run,
            "series": series[id(logs[point.run])],
            "step": point.step,
            "success": point.success,
            **{name: point.diagnostics.get(name) for name in _AXES},
        }
        for point in points
    ]


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``: runs as faint paths, later checkpoints larger."""
    figure, grid = style.canvas(9.2, 4.2, 1, 2, sharey=True)
    names = list(dict.fromkeys(row["series"] for row in rows))
    looks = style.looks(names[: len(style.LOOKS)])
    rest = style.Look("#9a9a9a", ".", "-", True)
    last = max((row["step"] for row in rows), default=1) or 1
    for axes, (metric, text) in zip(grid[0], _AXES.items(), strict=True):
        here = [row for row in rows if row[metric] is not None]
        if not here:
            style.no_data(axes, f"no {metric}")
        for run in dict.fromkeys(row["run"] for row in here):
            path = [row for row in here if row["run"] == run]
            look = looks.get(path[0]["series"], rest)
            x, y = [row[metric] for row in path], [row["success"] for row in path]
            axes.plot(x, y, color=look.color, linewidth=0.7, alpha=0.3)
            sizes = 14 + 46 * np.array([row["step"] for row in path]) / last
            axes.scatter(
                x,
                y,
                s=sizes,
                marker=look.marker,
                facecolors=look.color if look.filled else "none",
                edgecolors=look.color,
                alpha=0.75,
                linewidths=1.1,
                label=path[0]["series"] if path[0]["series"] in looks else "other arms",
            )
        style.labels(axes, text, "held-out success (share)" if axes is grid[0, 0] else "")
        style.from_zero(axes)
    style.head(figure, "Information, entropy and success", list(grid[0]))
    runs = len({row["run"] for row in rows})
    style.caption(
        figure,
        f"n = {counted(len(rows), 'checkpoint')} of {counted(runs, 'run')}, which are "
        "not independent of each other within a run. Larger marks are later; "
        "lines join one run's checkpoints.",
    )
    return figure
