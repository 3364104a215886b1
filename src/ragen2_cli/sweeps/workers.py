"""Local worker processes: started once, warm between cells, replaced when they die."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Two workers with a thread pool each would fight over the cores."""
COMMAND = (sys.executable, "-m", "ragen2_cli.sweeps.worker")
"""What a worker process runs."""
_GRACE_SECONDS = 120


@dataclass(frozen=True)
class Message:
    """What a worker said; ``answer`` is None when its process has ended."""

    worker: int
    answer: dict[str, Any] | None


@dataclass
class LocalWorker:
    """One warm process.

    Attributes:
        number: Its number, from 1.
        log: Where its standard error goes.
        cell: Name of the cell it trains; None when idle.
        ready: Whether its imports are done.
    """

    number: int
    log: Path
    inbox: "queue.Queue[Message]" = field(repr=False)
    cell: str | None = None
    ready: bool = False
    _process: "subprocess.Popen[str]" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Start the process in a session of its own, so that Ctrl-C reaches it through us."""
        self._offset = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def _listen(self, stdout: IO[str]) -> None:
        for line in stdout:
            self.inbox.put(Message(self.number, json.loads(line)))
        self._process.wait()
        self.inbox.put(Message(self.number, None))

    def give(self, cell: str, config: Mapping[str, Any], out: Path) -> None:
        """Hand over a cell. A process that has just died says so through the inbox."""
        self.cell = cell
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"cell": cell, "config": config, "out": str(out)}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            return

    def interrupt(self) -> None:
        """Ask for the state to be saved and the training to end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End an idle process, wait for a busy one to save its state, kill it after two minutes."""
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # it may be gone already
            stdin.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def why_it_died(self) -> str:
        """Return one line about a dead process: the signal, or the last line of its log."""
        code = self._process.returncode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = "; out of memory?" * (name == "SIGKILL")
            return f"the worker was killed by {name}{hint}"
        with self.log.open("rb") as log:
            log.seek(self._offset)
            tail = deque(log.read().decode("utf-8", "replace").split("\n"), maxlen=200)
        last = next((line.strip() for line in reversed(tail) if line.strip()), "it said nothing")
        return f"the worker ended with exit code {code}: {last[:300]} (see {self.log})"
