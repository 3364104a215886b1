"""Runs and sweeps as pandas tables, for notebooks."""

import warnings
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ragen2_cli.records import RunLog
from ragen2_cli.sweeps.compare import run_rows
from ragen2_cli.sweeps.results import load

if TYPE_CHECKING:
    import pandas as pd


def run_table(*paths: str | Path) -> "pd.DataFrame":
    """Return one row per run: labels, seed, last held-out success, and what ``compare`` measures.

    Args:
        paths: Run and sweep folders; none for the newest. Runs without a label of a sweep are
            labeled by the settings in which they differ.

    Returns:
        The table of ``FIGURE.runs.csv``; a value that a run did not measure is missing.

    Raises:
        UserError: A path that is neither run nor sweep, one given twice, or no data at all.
    """
    import pandas as pd

    return pd.DataFrame(run_rows(_logs(paths)))


def step_table(*paths: str | Path) -> "pd.DataFrame":
    """Return one row per optimizer step: run, labels, seed, and every column of metrics.jsonl.

    Arguments and errors are those of ``run_table``. What TRL logs besides has a column of its own
    under TRL's name.
    """
    import pandas as pd

    rows = []
    for log in _logs(paths):
        for step in log.steps:
            row = asdict(step)
            extra = row.pop("extra") or {}
            rows.append({"run": log.name, **log.labels, "seed": log.seed, **row, **extra})
    return pd.DataFrame(rows)


def _logs(paths: Iterable[str | Path]) -> list[RunLog]:
    return load(
        [Path(path) for path in paths],
        lambda note: warnings.warn(note.removeprefix("warning: "), stacklevel=5),
    )
