"""Success over training by filter, with information and entropy where they were measured."""

from collections.abc import Iterable, Sequence

from matplotlib.figure import Figure

from ragen2_cli.plots.panels import draw_steps
from ragen2_cli.plots.series import Row, by_step
from ragen2_cli.records import Evaluation, RunLog

QUANTITIES = {
    "success": "held-out success (share)",
    "entropy": "sampling entropy\n(nats per token)",
    "mi_estimate": "MI estimate\n(nats per token)",
    "retrieval_accuracy": "retrieval accuracy\n(share)",
}


def data(logs: Sequence[RunLog]) -> list[Row]:
    """Return the numbers behind the figure: quantity, panel, series, step, n, median, interval."""
    return by_step(
        logs,
        {
            "success": lambda log: ((row.step, row.success) for row in _sampled(log)),
            "entropy": lambda log: ((row.step, row.entropy) for row in _sampled(log)),
            "mi_estimate": lambda log: _diagnosed(log, "mi_estimate"),
            "retrieval_accuracy": lambda log: _diagnosed(log, "retrieval_accuracy"),
        },
    )


def _sampled(log: RunLog) -> list[Evaluation]:
    return [row for row in log.evaluations if row.decoding == "sampled"]


def _diagnosed(log: RunLog, name: str) -> Iterable[tuple[int, float | None]]:
    return ((row["step"], row.get(name)) for row in log.diagnostics)


def draw(rows: Sequence[Row]) -> Figure:
    """Draw ``data``; quantities that no run has are left out, success never is."""
    there = {row["quantity"] for row in rows}
    shown = {key: text for key, text in QUANTITIES.items() if key in there or key == "success"}
    return draw_steps(
        rows,
        shown,
        heading="Success and reasoning over training",
        caption="Sampled held-out episodes; information and retrieval on training batches before "
        "the filter.",
    )
