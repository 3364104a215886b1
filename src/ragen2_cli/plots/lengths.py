"""Response length over training: a sharp fall is the behavioral sign of collapse."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ragen2_cli.plots.panels import draw_steps
from ragen2_cli.plots.series import Row, by_step, smooth
from ragen2_cli.records import RunLog

WINDOW = 5


def data(logs: Sequence[RunLog]) -> list[Row]:
    """Return the numbers behind the figure: trailing means over 5 steps of each run."""
    return by_step(
        logs,
        {
            "response_length": lambda log: smooth(
                ((step.step, step.response_length) for step in log.steps if step.groups), WINDOW
            )
        },
    )


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``."""
    return draw_steps(
        rows,
        {"response_length": "sampled tokens per episode"},
        heading="Response length over training",
        caption=f"Training rollouts, trailing mean over {WINDOW} steps of each run.",
    )
