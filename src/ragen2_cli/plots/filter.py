"""One batch under the filter: the spread of each prompt group, the cut, kept and dropped."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ragen2_cli.core.groups import group_stats
from ragen2_cli.plots import style
from ragen2_cli.plots.series import Row
from ragen2_cli.records import Episode


def data(episodes: Sequence[Episode], *, score: str = "reward_var") -> list[Row]:
    """Return one row per group of one step, largest spread first.

    Args:
        episodes: All episodes of the step.
        score: ``reward_var`` or ``reward_std``: what the run's filter ranks by.
    """
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
    rows = []
    for number, members in groups.items():
        returns = [np.nan if e.episode_return is None else e.episode_return for e in members]
        stats = group_stats([returns])
        spread = stats.var_P if score == "reward_var" else stats.std_P
        rows.append(
            {
                "step": members[0].step,
                "group": number,
                "score": score,
                "spread": float(spread[0]),
                "dead": bool(stats.dead_P[0]),
                "silent": members[0].silent,
                "kept": members[0].kept,
                "rollouts": len(members),
                "mean_return": float(stats.mean_P[0]),
                "success": sum(e.success for e in members) / len(members),
            }
        )
    return sorted(rows, key=lambda row: (-row["spread"], row["group"]))


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``."""
    figure, grid = style.canvas(max(5.0, 0.3 * len(rows) + 2.4), 3.7)
    axes = grid[0, 0]
    if not rows:
        style.no_data(axes)
        return figure
    kept, dropped, dead = style.LOOKS[0].color, "white", style.MUTED
    for place, row in enumerate(rows):
        axes.bar(
            place,
            row["spread"],
            width=0.72,
            color=kept if row["kept"] else dropped,
            edgecolor=kept if row["kept"] else style.LOOKS[1].color,
            hatch=None if row["kept"] else "////",
            linewidth=1.2,
        )
        if row["dead"]:
            axes.plot(place, 0, marker="x", color=dead, markersize=6, clip_on=False, zorder=5)
    count = sum(bool(row["kept"]) for row in rows)
    total = sum(row["spread"] for row in rows)
    share = sum(row["spread"] for row in rows if row["kept"]) / total if total else float("nan")
    if 0 < count < len(rows) and all(row["kept"] for row in rows[:count]):
        axes.axvline(count - 0.5, color=style.INK, linestyle="--", linewidth=1.2)
        axes.annotate(
            "cut",
            (count - 0.5, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(5, 0),
            textcoords="offset points",
            fontsize=8.5,
            va="top",
        )
    axes.set_xticks(range(len(rows)), [str(row["group"]) for row in rows])
    axes.set_ylim(bottom=0)
    axes.grid(axis="x", visible=False)
    unit = {"reward_var": "variance", "reward_std": "std"}[rows[0]["score"]]
    style.labels(axes, "prompt group, largest spread first", f"{unit} of the returns")
    handles = [
        Patch(facecolor=kept, edgecolor=kept),
        Patch(facecolor=dropped, edgecolor=style.LOOKS[1].color, hatch="////"),
        axes.plot([], [], "x", color=dead)[0],
    ]
    style.head_of(
        figure,
        f"One batch under the filter, step {rows[0]['step']}",
        handles,
        ["kept", "dropped", "dead (all rollouts tie)"],
    )
    held = f", which hold {share:.0%} of the spread" if total else ""
    style.caption(
        figure,
        f"{count} of {len(rows)} groups kept{held}; {sum(row['dead'] for row in rows)} dead. "
        f"n = {rows[0]['rollouts']} rollouts per group.",
    )
    return figure
