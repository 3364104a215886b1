"""Success against the noise of the environment, with and without the filter."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ragen2_cli.plots import style
from ragen2_cli.plots.levels import draw_levels, value_rows
from ragen2_cli.plots.series import Row, filter_name, other_labels, seeds_text
from ragen2_cli.records import RunLog

_LEVEL_AXES = ("stochasticity", "env.stochasticity")


def data(logs: Sequence[RunLog], ceilings: Sequence[float | None] = ()) -> list[Row]:
    """Return one row per panel, level and filter: n, median final success, interval, ceiling.

    What was swept besides level and filter makes panels, unless each arm has one value of it.

    Args:
        logs: Runs at one or more levels.
        ceilings: Mean success of the best policy in the environment of each run, None where it
            cannot be computed; or nothing.
    """
    arms = [(float(log.config["env"]["stochasticity"]), filter_name(log)) for log in logs]
    panels = [other_labels(log, _LEVEL_AXES) for log in logs]
    if len(set(arms)) == len(set(zip(arms, panels, strict=True))):
        panels = [""] * len(logs)
    found: dict[tuple[object, ...], list[tuple[RunLog, float | None]]] = {}
    best: dict[tuple[object, ...], set[float | None]] = {}
    best_of = ceilings or [None] * len(logs)
    for log, arm, panel, ceiling in zip(logs, arms, panels, best_of, strict=True):
        rows = [row for row in log.evaluations if row.decoding == "sampled" and row.step > 0]
        if rows:
            key = (panel, *arm, log.config["env"]["kind"])
            last = max(rows, key=lambda row: row.step)
            found.setdefault(key, []).append((log, last.success))
            best.setdefault(key, set()).add(ceiling)
    return [
        row | {"ceiling": next(iter(several)) if len(several) == 1 else None}
        for row, several in zip(
            value_rows(found, ("panel", "level", "series", "kind")), best.values(), strict=True
        )
    ]


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``, a column per panel."""
    panels = list(dict.fromkeys(row["panel"] for row in rows)) or [""]
    levels = sorted({row["level"] for row in rows})
    figure, grid = style.canvas(
        max(4.8, (0.72 * len(levels) + 1.6) * len(panels) + 1.0), 3.9, 1, len(panels), sharey=True
    )
    looks = style.looks(list(dict.fromkeys(row["series"] for row in rows)))
    kinds = ", ".join(sorted({str(row["kind"]) for row in rows}))
    for axes, panel in zip(grid[0], panels, strict=True):
        here = [row for row in rows if row["panel"] == panel]
        draw_levels(axes, here, looks, levels)
        best = {row["level"]: row["ceiling"] for row in here if row["ceiling"] is not None}
        for index, level in enumerate(levels):
            if level in best:
                axes.hlines(
                    best[level],
                    index - 0.36,
                    index + 0.36,
                    color=style.MUTED,
                    linewidth=1.4,
                    linestyle=":",
                    label="best policy",
                )
        first = "held-out success (share)" if axes is grid[0, 0] else ""
        style.labels(axes, f"stochasticity ({kinds}, percent)", first)
        if panel:
            style.title(axes, panel)
    style.from_zero(grid[0, 0])
    style.head(figure, "Success against stochasticity", list(grid.flat))
    known = any(row["ceiling"] is not None for row in rows)
    ceiling = " Dotted: mean over held-out boards of the best policy's success." * known
    style.caption(figure, f"Small dots are runs. {seeds_text(rows)}{ceiling}")
    return figure
