"""A run's folder as seen by a process that trains along but leaves the writing to another."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ragen2_cli.records import Episode, Evaluation, Step
from ragen2_cli.runs.directory import RunDirectory


class Spectator(RunDirectory):
    """A run directory whose writing methods do nothing; reading is as ever.

    The lines and files may not be there yet when this process asks for them.
    """

    def discard(self) -> None:
        """Leave the folder to its writer."""

    def append_step(self, step: Step) -> None:
        """Leave it to the writer."""

    def append_evaluation(self, evaluation: Evaluation) -> None:
        """Leave it to the writer."""

    def append_diagnostics(self, row: dict[str, Any]) -> None:
        """Leave it to the writer."""

    def write_rollouts(self, step: int, episodes: Iterable[Episode]) -> Path:
        """Return the file that the writer writes."""
        return self.rollouts_path(step)

    def write_json(self, name: str, content: dict[str, Any]) -> Path:
        """Return the file that the writer writes."""
        return self.path / name

    def sync(self) -> None:
        """Leave it to the writer."""

    def truncate_after(self, step: int) -> dict[str, int]:
        """Leave it to the writer; nothing was removed here."""
        return {}
