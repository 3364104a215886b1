"""Deal the cells of a sweep to workers until all are done, and survive what happens to them."""

import queue
from dataclasses import dataclass

from ragen2_cli.errors import UserError
from ragen2_cli.records import Cell
from ragen2_cli.runs.directory import METRICS
from ragen2_cli.sweeps.folder import SweepDirectory
from ragen2_cli.sweeps.progress import SweepProgress
from ragen2_cli.sweeps.workers import LocalWorker, Message

_TICK_SECONDS = 1.0


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended: how many cells it has of each status, and how many ran now."""

    done: int
    failed: int
    open: int
    ran: int


def cells_to_run(sweep: SweepDirectory, *, retry: bool) -> list[Cell]:
    """Return the cells that still need a worker: half-finished ones first, failed under ``retry``.

    A cell counts as done when its run has a summary, whatever its last status line says.
    """
    waiting = []
    for cell in list(sweep.cells.values()):
        if sweep.finished(cell):
            if cell.status != "done":
                sweep.record(cell, status="done", reason="")
        elif cell.status != "failed" or retry:
            waiting.append(cell)
    return sorted(waiting, key=lambda cell: cell.status not in ("running", "interrupted"))


def run_sweep(
    sweep: SweepDirectory, *, workers: int, retry: bool, progress: SweepProgress
) -> Outcome:
    """Run what is left of a sweep.

    Args:
        sweep: The sweep, open for writing.
        workers: Most worker processes at once.
        retry: Run failed cells again.
        progress: Told what happens.

    Raises:
        KeyboardInterrupt: After Ctrl-C, when every worker has saved its state.
        UserError: No worker can be started.
    """
    waiting = cells_to_run(sweep, retry=retry)
    engine = _Engine(sweep, waiting, progress)
    if waiting:
        try:
            engine.run(min(workers, len(waiting)))
        except KeyboardInterrupt:
            engine.interrupt()
            raise
        finally:
            engine.close()
    return outcome_of(sweep, engine.ran)


def outcome_of(sweep: SweepDirectory, ran: int) -> Outcome:
    """Count a sweep's cells by status; ``ran`` of them were finished now."""
    statuses = [cell.status for cell in sweep.cells.values()]
    done, failed = statuses.count("done"), statuses.count("failed")
    return Outcome(done, failed, len(statuses) - done - failed, ran)


def steps_written(sweep: SweepDirectory, name: str) -> int:
    """Return the steps that a cell's run has logged, while another process writes them."""
    try:
        return (sweep.run_path(sweep.cells[name]) / METRICS).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


class _Engine:
    def __init__(self, sweep: SweepDirectory, waiting: list[Cell], progress: SweepProgress) -> None:
        self._sweep, self._waiting, self._progress = sweep, waiting, progress
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._workers: dict[int, LocalWorker] = {}
        self._stillborn = 0
        self.ran = 0

    def run(self, workers: int) -> None:
        self._progress.plan(self._sweep.cells.values(), self._waiting)
        for number in range(1, workers + 1):
            self._start(number)
        while self._workers:
            try:
                message = self._inbox.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                self._show_steps()
                continue
            self._hear(message)

    def interrupt(self) -> None:
        """Let every worker save its state, and note what was under way."""
        for worker in self._workers.values():
            worker.interrupt()
        for worker in self._workers.values():
            worker.close()
            if worker.cell is not None:
                self._sweep.record(self._sweep.cells[worker.cell], status="interrupted")
        self._workers.clear()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._progress.close()

    def _start(self, number: int) -> None:
        log = self._sweep.path / f"worker-{number}.log"
        self._workers[number] = LocalWorker(number, log, self._inbox)
        self._progress.worker(number, "starting")

    def _hear(self, message: Message) -> None:
        worker = self._workers.get(message.worker)
        if worker is None:
            return  # the end of a worker that was let go
        if message.answer is None:
            self._bury(worker)
        elif worker.cell is None:
            worker.ready = True
            self._stillborn = 0
            self._feed(worker)
        else:
            answer = message.answer
            self._settle(worker.cell, answer["status"], answer["reason"], answer["seconds"])
            worker.cell = None
            self._feed(worker)

    def _feed(self, worker: LocalWorker) -> None:
        """Give the worker its next cell, or let it go."""
        if not self._waiting:
            del self._workers[worker.number]
            worker.close()
            self._progress.worker(worker.number, "finished")
            return
        cell = self._waiting.pop(0)
        self._sweep.record(cell, status="running", reason="")
        self._progress.begin(worker.number, cell)
        worker.give(cell.name, cell.config, self._sweep.run_path(cell))

    def _bury(self, worker: LocalWorker) -> None:
        """A process has ended by itself: its cell failed, the others go on in a fresh one."""
        del self._workers[worker.number]
        reason = worker.why_it_died()
        if worker.cell is not None:
            self._settle(worker.cell, "failed", reason, None)
        elif not worker.ready:
            self._stillborn += 1
            if self._stillborn > 2:
                raise UserError(f"sweep: workers do not start: {reason}")
        if self._waiting:
            self._start(worker.number)

    def _settle(self, name: str, status: str, reason: str, seconds: float | None) -> None:
        cell = self._sweep.cells[name]
        changed = self._sweep.record(cell, status=status, reason=reason, seconds=seconds)
        self.ran += status == "done"
        self._progress.end(changed)

    def _show_steps(self) -> None:
        for worker in self._workers.values():
            if worker.cell is not None:
                self._progress.at_step(worker.number, steps_written(self._sweep, worker.cell))
