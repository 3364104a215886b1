"""How each diagnostic goes with success: rank correlations with their intervals."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ragen2_cli.errors import counted
from ragen2_cli.plots import style
from ragen2_cli.plots.series import Row

PAPER = {
    "mi_zscore_ema": 0.39,
    "mi_seq_estimate": 0.22,
    "mi_zscore_ema_seq": 0.09,
    "conditional_entropy": -0.14,
    "reasoning_entropy": -0.11,
}
"""RAGEN-2's pooled values, published without n, interval or p."""


def data(correlations: Sequence[Any], families: dict[str, str]) -> list[Row]:
    """Return one row per diagnostic and scope.

    Args:
        correlations: What ``sweeps.correlations.correlate`` returned.
        families: By diagnostic: ``MI``, ``entropy`` or another family's name.
    """
    return [
        {
            "metric": one.metric,
            "family": families.get(one.metric, "other"),
            "scope": one.scope,
            "runs": one.runs,
            "unit": one.unit,
            "rho": one.result.rho,
            "low": one.result.ci_low,
            "high": one.result.ci_high,
            "n": one.result.n,
            "dropped": one.result.dropped,
            "p": one.result.p_value,
            "method": one.result.method,
            "reason": one.result.reason,
            "paper": PAPER.get(one.metric),
        }
        for one in correlations
    ]


_FAMILIES = {
    "MI": ("#0b4f8a", None),
    "entropy": ("#e0a13a", "////"),
    "other": ("#b9b9b9", "...."),
}


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``: a bar per diagnostic, in the last scope (within levels, else pooled)."""
    scope = rows[-1]["scope"] if rows else ""
    chosen = [row for row in rows if row["scope"] == scope]
    chosen.sort(key=lambda row: (list(_FAMILIES).index(row["family"]), -style.number(row["rho"])))
    figure, grid = style.canvas(7.2, max(2.6, 0.3 * len(chosen) + 1.6))
    axes = grid[0, 0]
    if not chosen:
        style.no_data(axes)
        return figure
    for place, row in enumerate(chosen):
        color, hatch = _FAMILIES[row["family"]]
        if row["rho"] != row["rho"]:
            why = row["reason"].replace("x is", "it is").replace("y is", "success is")
            axes.text(0.01, place, f"undefined: {why}", va="center", fontsize=8)
        else:
            axes.barh(place, row["rho"], color=color, hatch=hatch, edgecolor="white", height=0.66)
            axes.barh(place, row["rho"], color="none", edgecolor=style.INK, height=0.66, lw=0.7)
        if row["low"] == row["low"]:
            axes.plot([row["low"], row["high"]], [place] * 2, color=style.INK, linewidth=1.3)
            for end in ("low", "high"):
                axes.plot(row[end], place, "|", color=style.INK, markersize=7)
        if row["paper"] is not None:
            axes.plot(
                row["paper"],
                place,
                "D",
                markerfacecolor="white",
                markeredgecolor="#b3261e",
                markersize=6,
                markeredgewidth=1.4,
                zorder=4,
            )
    axes.set_yticks(range(len(chosen)), [row["metric"] for row in chosen])
    axes.set_ylim(len(chosen) - 0.4, -0.6)
    axes.axvline(0, color=style.INK, linewidth=0.9)
    axes.set_xlim(-1.03, 1.03)
    axes.grid(axis="y", visible=False)
    style.labels(axes, "Spearman's rho with held-out success")
    families = dict.fromkeys(row["family"] for row in chosen)
    handles: list[Any] = [
        Patch(facecolor=_FAMILIES[name][0], hatch=_FAMILIES[name][1], edgecolor="white", label=name)
        for name in families
    ]
    handles += axes.plot(
        [], [], "D", markerfacecolor="white", markeredgecolor="#b3261e", label="RAGEN-2, published"
    )
    style.head_of(
        figure, "What goes with success", handles, [handle.get_label() for handle in handles]
    )
    style.caption(figure, _about(chosen))
    return figure


def _about(rows: Sequence[Row]) -> str:
    pairs, runs = sorted({row["n"] for row in rows}), rows[0]["runs"]
    n = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    bars = (
        f"Bars: 95 % bootstrap over {rows[0]['unit']}s."
        if any(row["low"] == row["low"] for row in rows)
        else f"No intervals: fewer than 8 independent {rows[0]['unit']}s."
    )
    return (
        f"n = {n} {'pair' if n == '1' else 'pairs'} from {counted(runs, 'run')}, "
        f"{rows[0]['scope']}. {bars} The published values are pooled, without n or interval."
    )
