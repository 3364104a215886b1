"""Return and spread of each prompt of a fixed set, early, in the middle and late in training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ragen2_cli.core.groups import group_stats
from ragen2_cli.plots import style
from ragen2_cli.plots.series import Row


def data(probes: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row per probe and prompt.

    Args:
        probes: Contents of ``probes/step-*.json``: the same prompts played by several checkpoints.
    """
    rows: list[Row] = []
    for content in sorted(probes, key=lambda one: one["step"]):
        returns = np.array(
            [[np.nan if v is None else v for v in group] for group in content["returns"]]
        )
        stats = group_stats(returns)
        rows += [
            {
                "step": content["step"],
                "prompt": index,
                "seed": seed,
                "rollouts": returns.shape[1],
                "mean_return": float(stats.mean_P[index]),
                "reward_std": float(stats.std_P[index]),
                "dead": bool(stats.dead_P[index]),
            }
            for index, seed in enumerate(content["seeds"])
        ]
    return rows


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``: prompts in one order throughout, sorted by their first mean return."""
    figure, grid = style.canvas(8.2, 4.6, 1, 2)
    steps = sorted({row["step"] for row in rows})
    if not rows:
        for axes in grid[0]:
            style.no_data(axes, "make probes with ragen2 analyze probe")
        return figure
    first = {row["prompt"]: row["mean_return"] for row in rows if row["step"] == steps[0]}
    order = sorted(first, key=lambda prompt: (first[prompt], prompt))
    for axes, name, text in (
        (grid[0, 0], "mean_return", "mean return"),
        (grid[0, 1], "reward_std", "reward spread (std)"),
    ):
        value = {(row["prompt"], row["step"]): row[name] for row in rows}
        picture = np.array(
            [[style.number(value.get((prompt, step))) for step in steps] for prompt in order]
        )
        image = axes.imshow(
            picture, aspect="auto", cmap="cividis", origin="lower", interpolation="nearest"
        )
        axes.grid(False)
        axes.set_xticks(range(len(steps)), [str(step) for step in steps])
        axes.set_yticks([])
        style.title(axes, text)
        style.labels(
            axes, "optimizer step", "prompts, by their first mean return" if name[0] == "m" else ""
        )
        bar = figure.colorbar(image, ax=axes, pad=0.02)
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_visible(False)  # type: ignore[operator]
    dead = [
        f"{sum(row['dead'] for row in rows if row['step'] == step)} at step {step}"
        for step in steps
    ]
    style.head(figure, "The same prompts over training", [])
    style.caption(
        figure,
        f"n = {len(order)} held-out prompts, {rows[0]['rollouts']} rollouts each, in one order. "
        f"Prompts whose rollouts all tie: {', '.join(dead)}.",
    )
    return figure
