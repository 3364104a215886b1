"""What the filter did over training: groups kept, groups dead, spread, success."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ragen2_cli.plots.panels import draw_steps
from ragen2_cli.plots.series import Row, by_step, smooth
from ragen2_cli.records import RunLog, Step

WINDOW = 5
QUANTITIES = {
    "kept": "groups kept\n(share)",
    "dead": "groups dead\n(share)",
    "reward_std": "reward spread\n(std in a group)",
    "success": "training success\n(share)",
}


def _kept(step: Step) -> float | None:
    return step.kept_groups / step.groups if step.groups else None


def _dead(step: Step) -> float | None:
    return step.dead_groups / step.groups if step.groups else None


def data(logs: Sequence[RunLog]) -> list[Row]:
    """Return the numbers behind the figure: trailing means over 5 steps of each run."""
    return by_step(
        logs,
        {
            "kept": lambda log: smooth(((s.step, _kept(s)) for s in log.steps), WINDOW),
            "dead": lambda log: smooth(((s.step, _dead(s)) for s in log.steps), WINDOW),
            "reward_std": lambda log: smooth(((s.step, s.reward_std) for s in log.steps), WINDOW),
            "success": lambda log: smooth(((s.step, s.success) for s in log.steps), WINDOW),
        },
    )


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``."""
    return draw_steps(
        rows,
        QUANTITIES,
        heading="Filtering over training",
        caption=f"Training batches before the filter, trailing mean over {WINDOW} steps of each "
        "run.",
    )
