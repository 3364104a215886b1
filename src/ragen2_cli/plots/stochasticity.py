"""Success against the noise of the environment, with and without the filter."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ragen2_cli.plots import style
from ragen2_cli.plots.levels import draw_levels, value_rows
from ragen2_cli.plots.series import Row, filter_name, over_seeds, seeds_text
from ragen2_cli.records import RunLog


def data(logs: Sequence[RunLog], ceilings: Mapping[float, float] | None = None) -> list[Row]:
    """Return one row per level and filter: n, median final success, interval, ceiling.

    Args:
        logs: Runs at one or more levels.
        ceilings: Mean success of the best policy by level in percent, where it can be computed.
    """
    found: dict[tuple[object, ...], list[float | None]] = {}
    for log in logs:
        rows = [row for row in log.evaluations if row.decoding == "sampled" and row.step > 0]
        if rows:
            env = log.config["env"]
            key = (float(env["stochasticity"]), filter_name(log), env["kind"])
            found.setdefault(key, []).append(max(rows, key=lambda row: row.step).success)
    rows_ = value_rows(found, ("level", "series", "kind"), over_seeds)
    return [row | {"ceiling": (ceilings or {}).get(row["level"])} for row in rows_]


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``."""
    levels = sorted({row["level"] for row in rows})
    figure, grid = style.canvas(max(4.8, 0.72 * len(levels) + 2.6), 3.9)
    axes = grid[0, 0]
    looks = style.looks(list(dict.fromkeys(row["series"] for row in rows)))
    draw_levels(axes, rows, looks, levels)
    best = {row["level"]: row["ceiling"] for row in rows if row.get("ceiling") is not None}
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
    kinds = ", ".join(sorted({str(row["kind"]) for row in rows}))
    style.labels(axes, f"stochasticity ({kinds}, percent)", "held-out success (share)")
    style.from_zero(axes)
    style.head(figure, "Success against stochasticity", [axes])
    ceiling = " Dotted: mean over held-out boards of the best policy's success." if best else ""
    style.caption(figure, f"Small dots are runs. {seeds_text(rows)}{ceiling}")
    return figure
