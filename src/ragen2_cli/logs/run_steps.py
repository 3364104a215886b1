"""The rollouts of one of our own run folders as rows of a diagnosis, one step in memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ragen2_cli.core.batches import PATTERN_ROWS, LogRow, episode_row
from ragen2_cli.errors import UserError
from ragen2_cli.logs.reader import LogData, Progress

if TYPE_CHECKING:
    from ragen2_cli.runs import RunDirectory


class RunSteps(Mapping[int, list[LogRow]]):
    """Rows of a run by step, ascending; a step is read from the disk each time it is asked for."""

    def __init__(self, run: "RunDirectory") -> None:
        """Read no rows yet."""
        self._run = run
        self._steps = run.rollout_steps()

    def __getitem__(self, step: int) -> list[LogRow]:
        """Read one step; raises UserError as ``RunDirectory.iter_rollouts``."""
        if step not in self._steps:
            raise KeyError(step)
        return [
            episode_row(episode, patterns=index < PATTERN_ROWS)
            for index, episode in enumerate(self._run.iter_rollouts(step))
        ]

    def __iter__(self) -> Iterator[int]:
        """Iterate over the steps."""
        return iter(self._steps)

    def __len__(self) -> int:
        """Count the steps."""
        return len(self._steps)


def read_run(path: Path, progress: Progress | None = None) -> LogData:
    """Read the rollouts of one of our own run folders, each step when it is asked for.

    Raises:
        UserError: Not a run, or a run without rollouts.
    """
    from ragen2_cli.runs import RunDirectory, rollouts

    run = RunDirectory.open(path)
    data = LogData("run", steps=RunSteps(run), length_unit="tokens")
    for done, number in enumerate(data.steps):
        if progress:
            progress(done, len(data.steps), f"step {number}")
        data.rows_read += rollouts.count(run.rollouts_path(number))
    if not data.rows_read:
        raise UserError(f"{path}: the run has no rollouts yet")
    data.said.append("reward = episode return; groups as trained")
    return data
