"""Warm sandboxes, each used once.

A worker thread keeps one warm interpreter that forks sandboxes, where that works, and one started
sandbox ahead, so a grading waits for its program only. The thread that starts a sandbox also
outlives it, because the kernel ends a sandbox with the thread that started it.
"""

import atexit
import os
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from ragen2_cli.sandbox.launch import Host, Sandbox, compile_runner
from ragen2_cli.sandbox.layers import Layers, detect
from ragen2_cli.sandbox.types import Limits, Outcome, Program, SandboxError


class _Worker:
    """What one thread has: a warm host, if the machine allows it, and one sandbox ahead."""

    def __init__(self, layers: Layers, limits: Limits, runner: Path) -> None:
        self._layers, self._limits, self._runner = layers, limits, runner
        self._host: Host | None = None
        self._spare: Sandbox | None = None

    def run(self, program: Program) -> list[Outcome]:
        """Run a program; what is not its own fault is tried once more from scratch.

        Raises:
            SandboxError: When that fails too.
        """
        try:
            return self._attempt(program)
        except SandboxError:
            self.close()
            return self._attempt(program)

    def close(self) -> None:
        """End the waiting sandbox and the host."""
        if self._spare is not None:
            self._spare.close()
        if self._host is not None:
            self._host.close()
        self._spare = self._host = None

    def _attempt(self, program: Program) -> list[Outcome]:
        current, self._spare = self._spare, None
        try:
            current = current or self._start()
            self._spare = self._start()
        except OSError as error:
            if current is not None:
                current.close()
            raise SandboxError(f"the sandbox did not start: {error}") from error
        return current.run(program)

    def _start(self) -> Sandbox:
        if not self._layers.warm:
            return Sandbox(Host(self._layers, self._limits, self._runner))
        if self._host is None:
            self._host = Host(self._layers, self._limits, self._runner)
        return Sandbox(self._host)


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
        self._process = os.getpid()
        self._temporary = tempfile.TemporaryDirectory(prefix="ragen2-sandbox-")
        self._runner = compile_runner(Path(self._temporary.name))
        self._workers: dict[int, _Worker] = {}  # by thread
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")

    def submit(self, program: Program) -> "Future[list[Outcome]]":
        """Queue a program; the future holds one outcome per input or a SandboxError.

        Raises:
            RuntimeError: When the pool is closed.
        """
        return self._threads.submit(self._grade, program)

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
        """End all workers and their waiting sandboxes, and remove the temporary folder.

        A process forked from the pool's leaves it alone.
        """
        if os.getpid() != self._process:
            return
        self._threads.shutdown(wait=True, cancel_futures=True)
        while self._workers:
            self._workers.popitem()[1].close()
        self._temporary.cleanup()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _grade(self, program: Program) -> list[Outcome]:
        """Run a program with what this thread has."""
        fresh = _Worker(self.layers, self.limits, self._runner)
        return self._workers.setdefault(threading.get_ident(), fresh).run(program)


_making = threading.Lock()


@lru_cache(maxsize=4)
def _pool_of(process: int, limits: Limits, unsafe: bool) -> Pool:
    pool = Pool(limits, workers=min(16, os.cpu_count() or 1), unsafe=unsafe)
    atexit.register(pool.close)
    return pool


def shared_pool(limits: Limits, *, unsafe: bool = False) -> Pool:
    """Return this process's pool for these limits, made at first use and closed at exit."""
    with _making:  # several environments may ask at once
        return _pool_of(os.getpid(), limits, unsafe)
