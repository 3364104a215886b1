"""Runs untrusted Python programs: several layers around a throw-away interpreter.

A program never sees what its output should be: it is given input, its output is captured, and the
comparison happens here, outside. See ``docs/testbeds.md`` for what each layer stops.

- ``types``: program, limits, outcome
- ``layers``: which layers this machine has
- ``syscalls`` and ``seccomp``: the system call filters
- ``runner``: the script inside that runs one program
- ``zygote``: the script inside that forks a runner per program into fresh namespaces
- ``confine``: the command and the limits around them, as plain data
- ``launch``: one sandbox around one program, and where it comes from
- ``pool``: warm sandboxes, each used once
"""

from ragen2_cli.sandbox.layers import Layers, detect
from ragen2_cli.sandbox.pool import Pool, shared_pool
from ragen2_cli.sandbox.types import Limits, Outcome, Program, SandboxError

__all__ = [
    "Layers",
    "Limits",
    "Outcome",
    "Pool",
    "Program",
    "SandboxError",
    "detect",
    "shared_pool",
]
