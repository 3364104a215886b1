"""How alike the policy's states of good and bad episodes are, over training."""

from collections.abc import Callable, Iterable, Sequence

from matplotlib.figure import Figure

from ragen2_cli.plots.panels import draw_steps
from ragen2_cli.plots.series import Row, by_step, smooth
from ragen2_cli.records import RunLog

WINDOW = 5
QUANTITIES = {
    "within_correct": "within good\n(cosine)",
    "within_incorrect": "within bad\n(cosine)",
    "across": "good and bad\n(cosine)",
    "contrast": "contrast\n(lower: apart)",
}


def _measure(name: str) -> Callable[[RunLog], Iterable[tuple[int, float | None]]]:
    return lambda log: smooth(
        ((step.step, step.extra.get(f"separation/{name}")) for step in log.steps), WINDOW
    )


def data(logs: Sequence[RunLog]) -> list[Row]:
    """Return the numbers behind the figure: trailing means over 5 steps of each run."""
    return by_step(logs, {name: _measure(name) for name in QUANTITIES})


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``; runs have it with SEAL, or with ``seal.separation``."""
    return draw_steps(
        rows,
        QUANTITIES,
        heading="Representations of good and bad episodes",
        caption="Mean pairwise cosine of the episodes' mean last-layer states, by the sign of "
        "their advantage; contrast = 2 x across - (within good + within bad). Trained groups, "
        f"trailing mean over {WINDOW} steps of each run.",
    )
