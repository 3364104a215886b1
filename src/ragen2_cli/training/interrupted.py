"""What an interrupted run says: what is saved, and the command that goes on."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ragen2_cli.runs import RunDirectory
from ragen2_cli.training import checkpoints


@contextmanager
def saying_how_to_go_on(path: Path) -> Iterator[None]:
    """Give a ``KeyboardInterrupt`` inside the block the text of :func:`how_to_go_on`.

    Args:
        path: The run's folder, which is there.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(str(interrupt) or how_to_go_on(path)) from None


def how_to_go_on(path: Path) -> str:
    """Return what is saved of a run, and the command that continues it."""
    found, _ = checkpoints.newest(RunDirectory.open(path).checkpoints)
    saved = "before the first checkpoint; start again"
    if found is not None:
        saved = f"state saved at step {checkpoints.step_of(found)}; go on"
    return f"interrupted: {saved} with\n  ragen2 train --resume --out {shlex.quote(str(path))}"
