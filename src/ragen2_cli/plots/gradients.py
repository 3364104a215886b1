"""Gradients by reward spread: where the task signal is, and what a regularizer sets against it."""

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure

from ragen2_cli.core.gradients import DENOMINATORS
from ragen2_cli.core.statistics import PairedDifference, paired_difference
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
    """Return one row per analysis, scale of rewards and bucket, before and after the filter.

    Args:
        analyses: Contents of ``gradients/step-*.json``.
    """
    rows: list[Row] = []
    for index, content in enumerate(analyses):
        for table in content["tables"]:
            for row in table["rows"]:
                norms = row["norms"]["batch"]
                rows.append(
                    {
                        "analysis": index,
                        "source": content["source"],
                        "step": content["step"],
                        "groups_all": content["groups"],
                        "loss_type": content["loss_type"],
                        "entropy_coef": content["entropy"],
                        "entropy_target": content.get("entropy_target"),  # not in earlier files
                        "kl_coef": content["kl"],
                        "score": content["score"],
                        "scale_rewards": table["scale_rewards"],
                        "filtered": table["filtered"],
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
    """Draw ``data`` before the filter: means over analyses, each analysis as a small dot.

    One line of panels for each loss and coefficients.
    """
    rows = [row for row in rows if not row["filtered"]]
    panels = _PANELS | (_CRITIC if _has_critic(rows) else {})
    arms: dict[str, list[Row]] = {}
    for row in rows:
        arms.setdefault(_coefficients(row), []).append(row)
    lines = max(len(arms), 1)
    width = 2.6 * len(panels) + 0.8 * (lines > 1)
    figure, grid = style.canvas(width, 1.0 + 2.5 * lines, lines, len(panels))
    for line, (arm, chosen) in zip(grid, arms.items() or [("", [])], strict=True):
        _draw_arm(line, panels, chosen)
        if lines > 1:
            line[0].set_ylabel(f"{fill(arm, 30)}\n\n{SPREADS[chosen[0]['score']]}", fontsize=9)
    style.head(figure, "Gradients by reward spread", list(grid.flat))
    style.caption(figure, _about(rows, arms))
    return figure


def _coefficients(row: Row) -> str:
    entropy = f"coefficient {row['entropy_coef']:g}"
    if row["entropy_target"] is not None:
        entropy = f"adapted to {row['entropy_target']:g}"
    return f"{row['loss_type']} loss, entropy {entropy}, KL coefficient {row['kl_coef']:g}"


def _draw_arm(line: Sequence[Any], panels: Mapping[str, str], rows: Sequence[Row]) -> None:
    buckets = list(dict.fromkeys(row["bucket"] for row in rows if row["bucket"] != "all"))
    scales = list(dict.fromkeys(row["scale_rewards"] for row in rows))
    for axes, (name, text) in zip(line, panels.items(), strict=True):
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
            off = "no regularizer acts" if name in ("regularizer", "snr") else ""
            style.no_data(axes, off)
        else:
            axes.set_xticks(range(len(buckets)), buckets)
            style.from_zero(axes)
            style.labels(axes, "bucket by spread, low to high")
        if name == "spread" and rows:
            style.labels(axes, "bucket by spread, low to high", SPREADS[rows[0]["score"]])


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


def snr_ratio(rows: Sequence[Row]) -> PairedDifference:
    """Log of the task-to-regularizer ratio, highest over lowest live bucket of each analysis.

    Under the first way of scaling rewards, over the analyses that have two live buckets or more;
    Student t interval.
    """
    rows = [row for row in rows if row["scale_rewards"] == rows[0]["scale_rewards"]]
    pairs = []
    for analysis in dict.fromkeys(row["analysis"] for row in rows):
        live = [
            r["snr"]
            for r in rows
            if r["analysis"] == analysis and r["snr"] and r["bucket"] != "all"
        ]
        if len(live) > 1:
            pairs.append((log(live[-1]), log(live[0])))
    return paired_difference([high for high, _ in pairs], [low for _, low in pairs])


def _about(rows: Sequence[Row], arms: Mapping[str, Sequence[Row]]) -> str:
    if not rows:
        return "No analysis; make one with ragen2 analyze gradients."
    analyses = len({row["analysis"] for row in rows})
    groups = sorted({row["groups_all"] for row in rows})
    steps = ", ".join(str(step) for step in sorted({row["step"] for row in rows})[:8])
    first = [row for row in rows if row["scale_rewards"] == rows[0]["scale_rewards"]]
    dead: dict[str, int] = {}
    for row in first:
        if row["bucket"] != "all":
            dead[row["bucket"]] = dead.get(row["bucket"], 0) + row["dead_groups"]
    shares = ", ".join(f"{name} {count}" for name, count in dead.items() if count)
    said = "; ".join(arm + _ratio_text(chosen) for arm, chosen in arms.items())
    counted = " or ".join(sorted({DENOMINATORS[row["loss_type"]] for row in rows}))
    batches = f"{analyses} {rows[0]['source']}{'es' * (analyses > 1)}"
    return (
        f"n = {batches} of {' or '.join(map(str, groups))} groups (steps {steps}); "
        f"{said}. All norms before clipping, over the {counted} of the whole batch (entropy: its "
        "tokens). "
        f"Dead groups in all: {shares or 'none'}." + _UNDER_A_CRITIC * _has_critic(rows)
    )


def _ratio_text(rows: Sequence[Row]) -> str:
    found = snr_ratio(rows)
    if not found.n:
        return ""
    interval = f", 95 % [{exp(found.ci_low):.3g}, {exp(found.ci_high):.3g}]" if found.n > 1 else ""
    return (
        f" (task over regularizer in the highest live bucket {exp(found.mean):.3g} times the "
        f"lowest's{interval}, n = {found.n})"
    )
