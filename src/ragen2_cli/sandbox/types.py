"""What goes into the sandbox and what comes out."""

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "error", "memory", "crash", "timeout", "output_limit", "not_run"]
STATUSES: tuple[Status, ...] = (
    "ok",
    "error",
    "memory",
    "crash",
    "timeout",
    "output_limit",
    "not_run",
)


class SandboxError(Exception):
    """The sandbox itself failed before a program ran: nobody's score, never a zero."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use.

    Attributes:
        seconds: Wall clock for the whole program, all its inputs together.
        memory_mb: Address space of each process.
        output_bytes: Captured output per input; more ends that run.
        processes: Processes and threads at one time.
        scratch_mb: Size of the only writable folder, and of a file in it.
    """

    seconds: float = 3.0
    memory_mb: int = 512
    output_bytes: int = 1 << 20
    processes: int = 16
    scratch_mb: int = 16


@dataclass(frozen=True, slots=True)
class Program:
    """A source text and the inputs it is run on, each in a process of its own.

    Attributes:
        source: Python source.
        inputs: One standard input per run; with ``function``, one argument list per run.
        function: Name of a function, or of a method of ``class Solution``, to call; its result is
            captured as JSON in place of standard output.
    """

    source: str
    inputs: tuple[str, ...] | tuple[list[Any], ...]
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run did.

    Attributes:
        status: ``ok``: ended with exit code 0. ``error``: another exit code or an uncaught
            exception. ``memory``: ended by a MemoryError. ``crash``: killed by a signal.
            ``timeout``: the time was up. ``output_limit``: printed too much. ``not_run``: the time
            was up before its turn.
        output: Captured standard output, or the function's result as JSON; at most the limit.
        errors: The last 2,000 bytes of standard error.
        seconds: Wall clock of this run.
    """

    status: Status
    output: bytes
    errors: str
    seconds: float
