"""Gradients by reward spread: where the task signal is, and what a regularizer sets against it."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from ragen2_cli.plots import style
from ragen2_cli.plots.series import Row

SPREADS = {"reward_var": "variance in a group", "reward_std": "std in a group"}
_PANELS = {
    "spread": "reward spread",
    "task": "task gradient norm",
    "regularizer": "regularizer gradient norm",
    "snr": "task norm / regularizer norm",
}
_CRITIC = {"critic": "critic gradient norm"}
_UNDER_A_CRITIC = (
    " A critic compares returns with what it expects, not with the group, so the policy's task "
    "gradient need not vanish at spread 0. Its own norm is in its own weights."
)
_TERMS = {"entropy": "entropy term", "kl": "KL term", "regularizer": "both, summed gradient"}


def data(analyses: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row per analysis, scale of rewards and bucket, before the filter.

    Args:
        analyses: Contents of ``gradients/step-*.json``.
    """
    rows: list[Row] = []
    for index, content in enumerate(analyses):
        for table in content["tables"]:
            if table["filtered"]:
                continue
            for row in table["rows"]:
                norms = row["norms"]["batch"]
                rows.append(
                    {
                        "analysis": index,
                        "step": content["step"],
                        "groups_all": content["groups"],
                        "loss_type": content["loss_type"],
                        "entropy_coef": content["entropy"],
                        "kl_coef": content["kl"],
                        "score": content["score"],
                        "scale_rewards": table["scale_rewards"],
                        "bucket": row["bucket"],
                        "groups": row["groups"],
                        "dead_groups": row["dead_groups"],
                        "spread": row["score_mean"],
                        **{name: norms[name] for name in ("task", "entropy", "kl")},
                        **{name: norms[name] for name in ("regularizer", "snr")},
                        "critic": norms.get("critic"),
                    }
                )
    return rows


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``: means over analyses, each analysis as a small dot."""
    panels = _PANELS | (_CRITIC if _has_critic(rows) else {})
    figure, grid = style.canvas(2.6 * len(panels), 3.5, 1, len(panels))
    buckets = list(dict.fromkeys(row["bucket"] for row in rows if row["bucket"] != "all"))
    scales = list(dict.fromkeys(row["scale_rewards"] for row in rows))
    for axes, (name, text) in zip(grid[0], panels.items(), strict=True):
        style.title(axes, text)
        chosen = [row for row in rows if row["scale_rewards"] == scales[0]] if scales else []
        if name == "regularizer":
            series = {label: (key, chosen) for key, label in _TERMS.items()}
        elif name in ("spread", "critic"):
            series = {"": (name, chosen)}
        else:
            series = {
                "advantages of the critic" if scale == "gae" else f"rewards scaled by {scale}": (
                    name,
                    [row for row in rows if row["scale_rewards"] == scale],
                )
                for scale in scales
            }
        drawn = 0
        for look, (label, (key, chosen)) in zip(
            style.LOOKS[2:] if name == "regularizer" else style.LOOKS, series.items(), strict=False
        ):
            drawn += _series(axes, chosen, key, buckets, look, label)
        if not drawn:
            off = "the run has no regularizer" if name in ("regularizer", "snr") else ""
            style.no_data(axes, off)
        else:
            axes.set_xticks(range(len(buckets)), buckets)
            style.from_zero(axes)
            style.labels(axes, "bucket by spread, low to high")
        if name == "spread" and rows:
            style.labels(axes, "bucket by spread, low to high", SPREADS[rows[0]["score"]])
    style.head(figure, "Gradients by reward spread", list(grid[0]))
    style.caption(figure, _about(rows))
    return figure


def _series(
    axes: Any, rows: Sequence[Row], key: str, buckets: Sequence[str], look: style.Look, label: str
) -> int:
    """Draw one line over the buckets; returns how many buckets have a value."""
    x, y = [], []
    for place, bucket in enumerate(buckets):
        values = [r[key] for r in rows if r["bucket"] == bucket and r[key] is not None]
        if not values:
            continue
        x.append(place)
        y.append(fmean(values))
        if len(values) > 1:
            axes.plot(
                [place] * len(values),
                values,
                "o",
                markersize=2.6,
                color=look.color,
                alpha=0.45,
                markeredgewidth=0,
            )
    if x:
        style.line(axes, x, y, look, label or "_spread")
    return len(x)


def _has_critic(rows: Sequence[Row]) -> bool:
    return any(row.get("critic") is not None for row in rows)


def _about(rows: Sequence[Row]) -> str:
    if not rows:
        return "No analysis; make one with ragen2 analyze gradients."
    analyses = len({row["analysis"] for row in rows})
    groups = sorted({row["groups_all"] for row in rows})
    steps = ", ".join(str(step) for step in sorted({row["step"] for row in rows})[:8])
    dead = {row["bucket"]: row["dead_groups"] for row in rows if row["analysis"] == 0}
    first = rows[0]
    shares = ", ".join(f"{name} {count}" for name, count in dead.items() if name != "all" and count)
    batches = "1 batch" if analyses == 1 else f"{analyses} batches"
    return (
        f"n = {batches} of {' or '.join(map(str, groups))} groups (steps {steps}); "
        f"{first['loss_type']} loss, entropy coefficient {first['entropy_coef']:g}, KL coefficient "
        f"{first['kl_coef']:g}. All norms over the rows of the whole batch, before clipping. "
        f"Dead groups: {shares or 'none'}." + _UNDER_A_CRITIC * _has_critic(rows)
    )
