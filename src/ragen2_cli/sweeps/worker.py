"""What runs inside a worker process: imports once, then trains one cell after the other.

Cells come as JSON lines on standard input, answers go as JSON lines to the standard output that
the process was started with. Whatever a library prints goes to standard error, the worker's log.
A mistake in a cell's settings is answered; any other error ends the process, because what it left
behind is unknown, and the engine starts a fresh one for the next cell.
"""

import ctypes
import gc
import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ragen2_cli.errors import CollapseStop, UserError

WRITER_SECONDS = 120.0
"""How long a cell waits for the process that it replaces to let the run go."""
_BUSY = "another process is writing to"


def main() -> None:
    """Serve cells until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    tasks: queue.Queue[dict[str, Any] | None] = queue.Queue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(tasks, busy), daemon=True).start()
    from ragen2_cli.training import run

    assert run  # loading it is what makes this worker warm
    answers.write(json.dumps({"ready": True}) + "\n")
    while (task := tasks.get()) is not None:
        busy.set()
        answer = train_free(task["config"], Path(task["out"]))
        busy.clear()
        answers.write(json.dumps({"cell": task["cell"], **answer}) + "\n")
        if answer["status"] == "interrupted":
            return


def train_free(config: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train one cell once no other process writes to its run.

    A cell that was lost with its node or its sweep may still have a process that saves its state,
    or does not know: the folder's lock tells, and is waited for. What that process finished counts.

    Returns:
        As ``train_cell``.
    """
    from ragen2_cli.runs import RunDirectory

    end = time.monotonic() + WRITER_SECONDS
    while True:
        if RunDirectory(out).finished:
            return {"status": "done", "reason": "", "seconds": None}
        answer = train_cell(config, out)
        if _BUSY not in answer["reason"] or time.monotonic() > end:
            return answer
        time.sleep(1.0)


def train_cell(config: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train one cell to its end: from the start, or from its newest complete checkpoint.

    Args:
        config: Its resolved config.
        out: The run's folder.

    Returns:
        ``status`` (done, failed, interrupted), ``reason`` and ``seconds``.
    """
    start = time.perf_counter()
    status, reason = "done", ""
    try:
        reason = _train(config, out) or ""
    except CollapseStop as stop:
        reason = str(stop)
    except UserError as error:
        status, reason = "failed", str(error)
    except KeyboardInterrupt:
        status = "interrupted"
    gc.collect()  # the trainer and its model refer to each other
    _give_back()
    return {"status": status, "reason": reason, "seconds": time.perf_counter() - start}


def _give_back() -> None:
    """Return freed memory to the system; glibc keeps it, so a worker would grow with each cell."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _train(config: dict[str, Any], out: Path) -> str | None:
    from ragen2_cli.config.load import build_config
    from ragen2_cli.runs import RunDirectory
    from ragen2_cli.training import checkpoints
    from ragen2_cli.training.run import resume, start

    run = RunDirectory(out)
    if checkpoints.newest(run.checkpoints)[0] is not None:
        summary = resume(out, quiet=True)
    else:  # nothing there, or a beginning without a checkpoint
        summary = start(build_config(config), out, force=True, quiet=True)
    stopped: str | None = summary["stopped"]
    return stopped


def _listen(tasks: "queue.Queue[dict[str, Any] | None]", busy: threading.Event) -> None:
    """Put what arrives into the queue; when the parent is gone, stop a training in order."""
    pending = b""
    while block := os.read(0, 65536):
        *lines, pending = (pending + block).split(b"\n")
        for line in lines:
            tasks.put(json.loads(line))
    tasks.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # the listening thread may still be waiting for input
