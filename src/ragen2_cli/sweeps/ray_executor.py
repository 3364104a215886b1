"""Deal the cells of a sweep to a Ray cluster, and try again what is lost with a worker or node."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ragen2_cli.records import Cell
from ragen2_cli.sweeps.engine import Outcome, cells_to_run, outcome_of, steps_written
from ragen2_cli.sweeps.folder import SweepDirectory
from ragen2_cli.sweeps.progress import SweepProgress
from ragen2_cli.sweeps.ray_cluster import Ended

LOSSES = 3
"""A cell whose worker or node was lost so many times has failed."""
GRACE_SECONDS = 120.0
"""How long cells may take to save their state after Ctrl-C."""
_TICK_SECONDS = 1.0


class Cluster(Protocol):
    """What the executor needs of a cluster (``ray_cluster.RayCluster``)."""

    def slots(self) -> int:
        """Return how many cells can run at once now."""

    def submit(self, cell: str, config: Mapping[str, Any], out: Path) -> None:
        """Hand a cell over."""

    def poll(self, seconds: float) -> list[Ended]:
        """Return cells that ended, after at most so many seconds."""

    def cancel(self, seconds: float) -> list[Ended]:
        """Let the cells under way save and end."""

    def close(self) -> None:
        """Leave the cluster."""


def run_on_cluster(
    sweep: SweepDirectory, cluster: Cluster, *, retry: bool, progress: SweepProgress
) -> Outcome:
    """Run what is left of a sweep on a cluster; ``cells.jsonl`` is written here alone.

    Cells are handed over as there is room. One whose worker or node was lost goes back to the
    front and continues from its newest complete checkpoint, wherever Ray puts it.

    Args:
        sweep: The sweep, open for writing, on storage that all nodes share.
        cluster: Where cells are trained; closed at the end.
        retry: Run failed cells again.
        progress: Told what happens; its workers are the cluster's slots.

    Raises:
        KeyboardInterrupt: After Ctrl-C, when the cells have saved their state.
    """
    executor = _Executor(sweep, cluster, cells_to_run(sweep, retry=retry), progress)
    try:
        executor.run()
    except KeyboardInterrupt:
        executor.interrupt()
        raise
    finally:
        cluster.close()
        progress.close()
    return outcome_of(sweep, executor.ran)


class _Executor:
    def __init__(
        self,
        sweep: SweepDirectory,
        cluster: Cluster,
        waiting: list[Cell],
        progress: SweepProgress,
    ) -> None:
        self._sweep, self._cluster, self._waiting = sweep, cluster, waiting
        self._progress = progress
        self._slot: dict[str, int] = {}  # of the cells that were handed over
        self._losses: Counter[str] = Counter()
        self.ran = 0

    def run(self) -> None:
        self._progress.plan(self._sweep.cells.values(), self._waiting)
        while self._waiting or self._slot:
            # A cluster that has just lost nodes may have no room: one cell waits for its return.
            while self._waiting and len(self._slot) < max(1, self._cluster.slots()):
                self._submit(self._waiting.pop(0))
            for ended in self._cluster.poll(_TICK_SECONDS):
                self._hear(ended)
            for name, slot in self._slot.items():
                self._progress.at_step(slot, steps_written(self._sweep, name))

    def interrupt(self) -> None:
        """Let every cell save its state, and note what was under way."""
        for ended in self._cluster.cancel(GRACE_SECONDS):
            if ended.answer is not None:
                self._settle(ended)
        for name in list(self._slot):
            self._sweep.record(self._sweep.cells[name], status="interrupted")

    def _submit(self, cell: Cell) -> None:
        slot = next(n for n in range(1, len(self._slot) + 2) if n not in self._slot.values())
        self._slot[cell.name] = slot
        self._sweep.record(cell, status="running", reason="")
        self._progress.begin(slot, cell)
        self._cluster.submit(cell.name, cell.config, self._sweep.run_path(cell))

    def _hear(self, ended: Ended) -> None:
        if ended.answer is None:
            self._lost(ended)
        else:
            self._settle(ended)

    def _lost(self, ended: Ended) -> None:
        """Put a cell back to the front, or give it up after too many losses."""
        cell = self._sweep.cells[ended.cell]
        slot = self._slot.pop(ended.cell)
        self._losses[ended.cell] += 1
        times = self._losses[ended.cell]
        told = f"its worker or node was lost, {times} of {LOSSES} times: {ended.reason}"
        if times < LOSSES:
            self._waiting.insert(0, self._sweep.record(cell, status="interrupted", reason=told))
            self._progress.worker(slot, f"lost {cell.name}; it goes on elsewhere")
            return
        self._progress.end(self._sweep.record(cell, status="failed", reason=told))

    def _settle(self, ended: Ended) -> None:
        assert ended.answer is not None
        del self._slot[ended.cell]
        cell, answer = self._sweep.cells[ended.cell], dict(ended.answer)
        if answer["status"] == "done" and not self._sweep.finished(cell):
            answer["status"] = "failed"
            answer["reason"] = (
                f"its run is not at {self._sweep.run_path(cell)} on this machine: the sweep's "
                "folder must be on storage that all nodes share"
            )
        changed = self._sweep.record(
            cell, status=answer["status"], reason=answer["reason"], seconds=answer["seconds"]
        )
        self.ran += changed.status == "done"
        self._progress.end(changed)
