"""Warm sandboxes, each used once.

A worker thread keeps one started sandbox ahead, so a grading waits for its program and not for an
interpreter. The thread that starts a sandbox also outlives it, because the kernel ends a sandbox
with the thread that started it.
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

from ragen2_cli.sandbox.launch import Sandbox, compile_runner
from ragen2_cli.sandbox.layers import Layers, detect
from ragen2_cli.sandbox.types import Limits, Outcome, Program, SandboxError


class _Warm:
    """A started sandbox with the scratch folder that goes with it."""

    def __init__(self, pool: "Pool") -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="scratch-", dir=pool.folder)
        self.sandbox = Sandbox(pool.layers, pool.limits, pool.runner, Path(self.scratch.name))

    def run(self, program: Program) -> list[Outcome]:
        try:
            return self.sandbox.run(program)
        finally:
            self.scratch.cleanup()

    def close(self) -> None:
        self.sandbox.close()
        self.scratch.cleanup()


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
        self.folder = Path(self._temporary.name)
        self.runner = compile_runner(self.folder)
        self._spares: dict[int, _Warm] = {}  # by worker thread
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")

    def submit(self, program: Program) -> "Future[list[Outcome]]":
        """Queue a program; the future holds one outcome per input or a SandboxError.

        Raises:
            RuntimeError: When the pool is closed.
        """
        return self._workers.submit(self._grade, program)

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
        self._workers.shutdown(wait=True, cancel_futures=True)
        while self._spares:
            self._spares.popitem()[1].close()
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
        """Run a program in this thread's spare sandbox, and start the next one meanwhile."""
        me = threading.get_ident()
        try:
            spare = _Warm(self)
            current, self._spares[me] = self._spares.get(me), spare
            current = current or _Warm(self)
        except OSError as error:
            raise SandboxError(f"the sandbox did not start: {error}") from error
        return current.run(program)


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
