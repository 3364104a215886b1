"""The regime plane: information against entropy, one point per measurement, colored by step."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_AXES = {
    "cross-scoring": (
        ("conditional_entropy", "conditional entropy H(Z|X), nats per token"),
        ("mi_estimate", "mutual information, nats per token"),
    ),
    "text": (
        ("prefix_conditional_entropy", "entropy of the first words given the prompt, nats"),
        ("prefix_mi", "information of the first words about the prompt, nats"),
    ),
}
_CORNERS = (
    (0.98, 0.98, "diverse", "right", "top"),
    (0.98, 0.02, "template collapse", "right", "bottom"),
    (0.02, 0.98, "compressed", "left", "top"),
    (0.02, 0.02, "low-entropy collapse", "left", "bottom"),
)


def draw(records: Sequence[Mapping[str, Any]], verdict: Mapping[str, Any]) -> Figure:
    """Return the figure; it never touches a display.

    Args:
        records: Measurements by step, as ``ragen2 diagnose --json`` lists them under ``steps``.
        verdict: Its ``verdict``: which axes, and the thresholds drawn as dashed lines.
    """
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    (x_name, x_label), (y_name, y_label) = _AXES[verdict["basis"]]
    points = [
        (row["step"], row[x_name], row[y_name])
        for row in records
        if row.get(x_name) is not None and row.get(y_name) is not None
    ]
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if not points:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center")
        return figure
    steps, entropy, information = zip(*points, strict=True)
    axes.plot(entropy, information, color="0.8", linewidth=1, zorder=1)
    dots = axes.scatter(entropy, information, c=steps, cmap="viridis", zorder=2)
    figure.colorbar(dots, ax=axes, label="step")
    axes.annotate(f"step {steps[-1]}", (entropy[-1], information[-1]), xytext=(6, 6),
                  textcoords="offset points")  # fmt: skip
    for axis, line in (("information", axes.axhline), ("entropy", axes.axvline)):
        numbers = verdict[axis]
        if numbers.get("baseline") is not None:
            line(numbers["share"] * numbers["baseline"], color="0.5", linestyle="--", linewidth=1)
    for x, y, name, horizontal, vertical in _CORNERS:
        axes.text(x, y, name, transform=axes.transAxes, ha=horizontal, va=vertical, color="0.45")
    axes.set_xlim(left=min(0.0, *entropy))
    axes.margins(0.12)
    axes.set_title(f"{verdict['regime']} ({verdict['basis']}, n = {verdict['rows']} a step)")
    return figure
