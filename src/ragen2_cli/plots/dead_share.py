"""What silent prompts do: success, information and entropy by regularizer, filter on and off."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ragen2_cli.plots import style
from ragen2_cli.plots.levels import draw_levels, value_rows
from ragen2_cli.plots.series import Row, filter_name, other_labels, seeds_text
from ragen2_cli.records import RunLog

QUANTITIES = {
    "success": "held-out success\n(share)",
    "mi_estimate": "MI estimate\n(nats per token)",
    "entropy": "sampling entropy\n(nats per token)",
}
_SHARE_AXES = ("env.dead_share", "dead-share", "dead_share")


def data(logs: Sequence[RunLog]) -> list[Row]:
    """Return one row per quantity, regularizer, dead share and filter, at the end of the runs."""
    found: dict[tuple[object, ...], list[tuple[RunLog, float | None]]] = {}
    for log in logs:
        panel = other_labels(log, _SHARE_AXES).removeprefix("regularizer ")
        key = (panel, 100 * float(log.config["env"]["dead_share"]), filter_name(log))
        rows = [row for row in log.evaluations if row.decoding == "sampled" and row.step > 0]
        if rows:
            last = max(rows, key=lambda row: row.step)
            found.setdefault(("success", *key), []).append((log, last.success))
            found.setdefault(("entropy", *key), []).append((log, last.entropy))
        measured = [row for row in log.diagnostics if row.get("mi_estimate") is not None]
        if measured:
            newest = max(measured, key=lambda row: row["step"])
            found.setdefault(("mi_estimate", *key), []).append((log, float(newest["mi_estimate"])))
    return value_rows(found, ("quantity", "panel", "level", "series"))


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``: a column per regularizer, a row per quantity."""
    panels = list(dict.fromkeys(row["panel"] for row in rows)) or [""]
    levels = sorted({row["level"] for row in rows})
    looks = style.looks(list(dict.fromkeys(row["series"] for row in rows)))
    figure, grid = style.canvas(
        max(4.6, 2.55 * len(panels) + 0.9), 7.0, 3, len(panels), sharey="row", sharex="col"
    )
    for line, (quantity, text) in enumerate(QUANTITIES.items()):
        for column, panel in enumerate(panels):
            axes = grid[line, column]
            here = [row for row in rows if (row["quantity"], row["panel"]) == (quantity, panel)]
            draw_levels(axes, here, looks, levels)
            style.labels(
                axes, "silent prompts (percent)" if line == 2 else "", text if column == 0 else ""
            )
            if line == 0:
                style.title(axes, panel or "all runs")
        style.from_zero(grid[line, 0])
    style.head(figure, "Prompts without signal", list(grid.flat))
    style.caption(
        figure,
        "Silent prompts pay nothing whatever the policy does; held-out boards are never silent. "
        f"Values at the end of training; small dots are runs. {seeds_text(rows)}",
    )
    return figure
