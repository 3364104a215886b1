"""Warm sandboxes, each used once.

A worker thread always keeps one started sandbox ahead, so a grading waits for its program and not
for an interpreter. The thread that starts a sandbox also outlives it, because the kernel ends a
sandbox with the thread that started it.
"""

import atexit
import os
import queue
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from ragen2_cli.sandbox.launch import Sandbox, compile_runner
from ragen2_cli.sandbox.layers import Layers, detect
from ragen2_cli.sandbox.types import Limits, Outcome, Program

_Task = tuple[Program, "Future[list[Outcome]]"]


class Pool:
    """Runs programs in fresh sandboxes, several at a time.

    Args:
        limits: What each program may use.
        workers: How many run at a time, at least 1.
        unsafe: Run even where nothing isolates; the caller has said so.
        layers: What to use; None detects it.

    Raises:
        UserError: When this machine has neither namespaces nor Landlock and ``unsafe`` is off.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        workers: int = 2,
        unsafe: bool = False,
        layers: Layers | None = None,
    ) -> None:
        self.layers = layers or detect()
        self.limits = limits or Limits()
        if not unsafe:
            self.layers.require()
        self._folder = tempfile.TemporaryDirectory(prefix="ragen2-sandbox-")
        self._runner = compile_runner(Path(self._folder.name))
        Path(self._folder.name).chmod(0o755)
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, program: Program) -> "Future[list[Outcome]]":
        """Queue a program; the future holds one outcome per input or a SandboxError."""
        if not self._threads:
            raise RuntimeError("the pool is closed")
        future: Future[list[Outcome]] = Future()
        self._tasks.put((program, future))
        return future

    def run(self, program: Program) -> list[Outcome]:
        """Run one program and return one outcome per input.

        Raises:
            SandboxError: When the sandbox itself failed.
        """
        return self.submit(program).result()

    def map(self, programs: Iterable[Program]) -> list[list[Outcome]]:
        """Run many programs and return their outcomes in order."""
        return [future.result() for future in [self.submit(program) for program in programs]]

    def close(self) -> None:
        """End all workers and their waiting sandboxes, and remove the temporary folder."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._folder.cleanup()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> tuple[Sandbox, "tempfile.TemporaryDirectory[str]"]:
        scratch = tempfile.TemporaryDirectory(prefix="scratch-", dir=self._folder.name)
        return Sandbox(self.layers, self.limits, self._runner, Path(scratch.name)), scratch

    def _work(self) -> None:
        spare, scratch = self._start()
        while (task := self._tasks.get()) is not None:
            program, future = task
            sandbox, used = spare, scratch
            spare, scratch = self._start()
            try:
                future.set_result(sandbox.run(program))
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits, then raised there
                future.set_exception(error)
            used.cleanup()
        spare.close()
        scratch.cleanup()


@lru_cache(maxsize=4)
def _pool_of(process: int, limits: Limits, unsafe: bool) -> Pool:
    pool = Pool(limits, workers=min(2, os.cpu_count() or 1), unsafe=unsafe)
    atexit.register(pool.close)
    return pool


def shared_pool(limits: Limits, *, unsafe: bool = False) -> Pool:
    """Return this process's pool for these limits, made at first use and closed at exit."""
    return _pool_of(os.getpid(), limits, unsafe)
