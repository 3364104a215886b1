"""Small programs that try one forbidden thing each: what ``ragen2 envs doctor`` runs."""

import os
import tempfile
from dataclasses import dataclass

from ragen2_cli.sandbox.layers import Layers
from ragen2_cli.sandbox.pool import Pool
from ragen2_cli.sandbox.types import Limits, Program

_TRIES = {
    "reads a file of the machine": "open({file!r}).read()",
    "writes outside its folder": "open({folder!r} + '/ragen2-doctor', 'w')",
    "opens a socket": "import socket\nsocket.socket()",
    "reads /proc": "open('/proc/1/status').read()",
    "sees environment variables": "import os\nassert os.environ",
    "signals another process": "import os\nos.kill({pid}, 0)",
    "takes 8 GB of memory": "bytearray(8 << 30)",
    "starts a program": "import os\nos.execv('/bin/sh', ['sh', '-c', 'exit 0'])",
    # PTRACE_SEIZE: where nothing stops it, this process is not stopped either
    "traces a process": "import ctypes\nassert ctypes.CDLL(None).ptrace(0x4206, {pid}, 0, 0) == 0",
    "makes a namespace": "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0",
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One try: what a program attempted and whether it was stopped."""

    what: str
    stopped: bool


def probe(layers: Layers) -> list[Probe]:
    """Try each forbidden thing in the sandbox and say which ones were stopped.

    Raises:
        SandboxError: When no sandbox starts.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        Pool(Limits(seconds=5.0), layers=layers, unsafe=True) as pool,
    ):
        facts = {"file": os.path.abspath(__file__), "folder": folder, "pid": os.getpid()}
        programs = [Program(source.format(**facts), ("",)) for source in _TRIES.values()]
        works = pool.run(Program("print(1)", ("",)))[0]
        outcomes = pool.map(programs)
    probes = [Probe("runs an honest program", works.output == b"1\n")]
    return probes + [
        Probe(what, outcome[0].status != "ok")
        for what, outcome in zip(_TRIES, outcomes, strict=True)
    ]
