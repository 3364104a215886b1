"""A run's folder: create, append, resume, read.

``directory`` is the folder as one object, ``rollouts`` the episodes as parquet (``parquet_bounds``
makes files from elsewhere safe), ``selection`` which of them to show, ``jsonl`` the logs,
``claim`` who may write where, ``kinds`` which folder is a run, ``atomic`` files that are whole or
not there, ``provenance`` what a run was made with.
"""

from collections.abc import Callable
from pathlib import Path

from ragen2_cli.runs.directory import RunDirectory, step_name, step_of

__all__ = ["RunDirectory", "find", "step_name", "step_of"]


def find(
    path: Path | None, say: Callable[[str], None], *, root: Path | str = "runs"
) -> RunDirectory:
    """Open the run at ``path``, or the newest one, and say which was taken.

    Args:
        path: The run's folder; None for the newest under ``root``.
        say: Called with one line when the newest run was taken (commands print it on stderr).
        root: Where runs with automatic names live.

    Raises:
        UserError: No run there, or none at all.
    """
    if path is not None:
        return RunDirectory.open(path)
    run = RunDirectory.newest(root)
    say(f"reading {run.path} (the newest run)")
    return run
