"""Final success against each swept setting: top-p, KL, entropy, group size and others."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ragen2_cli.plots import style
from ragen2_cli.plots.levels import draw_levels, value_rows
from ragen2_cli.plots.series import Row, filter_name, seeds_text
from ragen2_cli.records import RunLog

_NAMES = {
    "kl": "KL coefficient",
    "algorithm.kl": "KL coefficient",
    "entropy": "entropy coefficient",
    "algorithm.entropy": "entropy coefficient",
    "top-p": "top-p value",
    "filter.value": "filter value",
    "group-size": "rollouts per prompt G",
}


def data(logs: Sequence[RunLog]) -> list[Row]:
    """Return one row per swept axis, level and filter: n, median final success, interval.

    A run counts on every axis that its sweep varied, with everything else pooled;
    where other settings differ as well there is no interval over seeds.
    """
    found: dict[tuple[object, ...], list[tuple[RunLog, float | None]]] = {}
    for log in logs:
        rows = [row for row in log.evaluations if row.decoding == "sampled" and row.step > 0]
        if not rows:
            continue
        success = max(rows, key=lambda row: row.step).success
        for axis, label in log.labels.items():
            of_filter = axis in ("top-p", "filter.value")
            # An unfiltered run has a value that filters nothing, unless its level says "none".
            idle = log.config["filter"]["strategy"] == "none" and label != "none"
            if axis in ("filter", "filter.strategy") or (of_filter and idle):
                continue
            series = "one arm per value" if of_filter else filter_name(log)
            found.setdefault((axis, label, series), []).append((log, success))
    axes = {key[0] for key in found if len({k[1] for k in found if k[0] == key[0]}) > 1}
    kept = {key: values for key, values in found.items() if key[0] in axes}
    return value_rows(kept, ("axis", "level", "series"))


def _order(level: str) -> tuple[int, float, str]:
    try:
        return (0, float(level), level)
    except ValueError:
        return (1, 0.0, level)


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``, a panel per axis."""
    names = list(dict.fromkeys(row["axis"] for row in rows))
    figure, grid = style.canvas(
        max(4.6, 3.0 * max(len(names), 1) + 0.8), 3.7, 1, max(len(names), 1), sharey=True
    )
    looks = style.looks(list(dict.fromkeys(row["series"] for row in rows)))
    if not names:
        style.no_data(grid[0, 0], "no setting with two or more levels")
    for axes, name in zip(grid[0], names, strict=False):
        here = [row for row in rows if row["axis"] == name]
        there = {row["series"] for row in here}
        levels = sorted({row["level"] for row in here}, key=_order)
        draw_levels(axes, here, {k: v for k, v in looks.items() if k in there}, levels)
        first = "held-out success (share)" if axes is grid[0, 0] else ""
        style.labels(axes, _NAMES.get(name, name), first)
        style.from_zero(axes)
    style.head(figure, "Sensitivity of success", list(grid.flat))
    style.caption(figure, f"Small dots are runs. {seeds_text(rows)}")
    return figure
