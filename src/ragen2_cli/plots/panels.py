"""Small multiples of quantities over steps: rows are quantities, columns are panels of arms."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ragen2_cli.plots import style
from ragen2_cli.plots.series import Row, seeds_text

MOST_COLUMNS = 5
MOST_BANDS = 4  # more would lie over each other: then a bar for the last step, beside the others


def draw_steps(
    rows: Sequence[Row], quantities: dict[str, str], *, heading: str, caption: str = ""
) -> Figure:
    """Draw ``by_step`` rows.

    Args:
        rows: What ``series.by_step`` returned.
        quantities: The quantities in order, and the text of their axis with its unit; one without
            rows gets a panel that says "no data".
        heading: The figure's title.
        caption: What the caption says before n and intervals.
    """
    panels = list(dict.fromkeys(row["panel"] for row in rows)) or [""]
    pages = panels[:MOST_COLUMNS]
    looks = style.looks(list(dict.fromkeys(row["series"] for row in rows)))
    columns = len(pages)
    figure, grid = style.canvas(
        max(4.6, 2.5 * columns + 1.2),
        2.05 * len(quantities) + 1.25,
        len(quantities),
        columns,
        sharex="col",
        sharey="row",
    )
    for line, (quantity, text) in enumerate(quantities.items()):
        for column, panel in enumerate(pages):
            axes = grid[line, column]
            here = [row for row in rows if row["quantity"] == quantity and row["panel"] == panel]
            if not here:
                style.no_data(axes)
            end = max((row["step"] for row in here), default=0)
            for place, (series, look) in enumerate(looks.items()):
                chosen = [row for row in here if row["series"] == series]
                if chosen:
                    steps = [row["step"] for row in chosen]
                    style.line(axes, steps, [row["median"] for row in chosen], look, series)
                    if len(looks) > MOST_BANDS:
                        beside = steps[-1] + end * 0.02 * (1 + place)
                        style.bar(axes, beside, chosen[-1]["low"], chosen[-1]["high"], look)
                    else:
                        lows, highs = ([row[side] for row in chosen] for side in ("low", "high"))
                        style.band(axes, steps, lows, highs, look)
            style.labels(
                axes,
                "optimizer step" if line == len(quantities) - 1 else "",
                text if column == 0 else "",
            )
            if line == 0 and panel:
                style.title(axes, panel)
    style.head(figure, heading, list(grid.flat))
    left_out = len(panels) - len(pages)
    more = f" {left_out} more panels are in the CSV." if left_out else ""
    bars = " Bars: the last step." if len(looks) > MOST_BANDS else ""
    style.caption(figure, f"{caption} {seeds_text(rows)}{bars}{more}".strip())
    return figure
