"""One sandbox: a fresh, confined interpreter that runs one program and is thrown away."""

import itertools
import marshal
import os
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen2_cli.sandbox import seccomp
from ragen2_cli.sandbox.layers import Layers, namespace_flags
from ragen2_cli.sandbox.runner import FRAME
from ragen2_cli.sandbox.types import STATUSES, Limits, Outcome, Program, SandboxError

START_SECONDS = 30.0
GRACE_SECONDS = 0.5
_INSIDE = "/python"
_WRITE, _READ, _LIST = 1 << 1, 1 << 2, 1 << 3  # executing is never allowed
_SCRATCH = _WRITE | _READ | _LIST | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12
_TRUNCATE = 1 << 14
_FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
_users = itertools.count()


def compile_runner(folder: Path) -> Path:
    """Compile the inside script into ``folder`` once, so that starts do not pay for it."""
    import py_compile

    target = folder / "runner.pyc"
    py_compile.compile(
        str(Path(__file__).parent / "runner.py"), cfile=str(target), dfile="runner.py", doraise=True
    )
    target.chmod(0o644)
    return target


class Sandbox:
    """A started sandbox that waits for its program.

    Args:
        layers: What this machine has; every layer that is there is used.
        limits: What the program may use.
        runner: The compiled inside script.
        scratch: A writable folder, used only where there is no mount namespace.
    """

    def __init__(self, layers: Layers, limits: Limits, runner: Path, scratch: Path) -> None:
        self.limits = limits
        namespaces = layers.isolation == "namespaces"
        command = _confined(layers, limits, runner) if namespaces else _bare(runner)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict([_HASHES]),
            cwd=None if namespaces else scratch,
            start_new_session=True,
        )
        self._out = _Reader(self._process)
        self._send(_setup(layers, limits, scratch))

    def run(self, program: Program) -> list[Outcome]:
        """Run the program on all its inputs and end the sandbox.

        Returns:
            One outcome per input, in order.

        Raises:
            SandboxError: When the sandbox failed before the program was handed over.
        """
        try:
            ready = self._out.exactly(1, time.monotonic() + START_SECONDS)
            if ready != b"R" or not self._send(_job(program)):
                raise SandboxError(f"the sandbox did not start: {self._complaint()}")
            return self._collect(len(program.inputs))
        finally:
            self.close()

    def close(self) -> None:
        """Kill whatever is left of the sandbox and free its handles."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._out.close()

    def _collect(self, count: int) -> list[Outcome]:
        """Read one frame per input; what is missing at the hard deadline timed out.

        The frames come from inside and are not trusted: lengths are checked against the limits,
        and a junk frame ends the reading as a crash of the program.
        """
        deadline = time.monotonic() + self.limits.seconds + GRACE_SECONDS
        outcomes: list[Outcome] = []
        while len(outcomes) < count:
            head = self._out.exactly(FRAME.size, deadline)
            if head is None:
                break
            status, seconds, out_size, err_size = FRAME.unpack(head)
            if status >= len(STATUSES) or max(out_size, err_size) > self.limits.output_bytes:
                break
            body = self._out.exactly(out_size + err_size, deadline)
            if body is None:
                break
            errors = body[out_size:].decode("utf-8", "replace")
            outcomes.append(Outcome(STATUSES[status], body[:out_size], errors, seconds))
        if len(outcomes) < count:
            late = time.monotonic() >= deadline
            outcomes.append(Outcome("timeout" if late else "crash", b"", "", self.limits.seconds))
        missing = count - len(outcomes)
        return outcomes + [Outcome("not_run", b"", "", 0.0)] * missing

    def _send(self, message: Mapping[str, Any]) -> bool:
        """Write one message; False when the other side is gone."""
        data = marshal.dumps(dict(message))
        assert self._process.stdin is not None
        left = memoryview(len(data).to_bytes(8, "little") + data)
        try:
            while left:
                left = left[os.write(self._process.stdin.fileno(), left) :]
        except BrokenPipeError:
            return False
        return True

    def _complaint(self) -> str:
        self._process.kill()
        assert self._process.stderr is not None
        lines = self._process.stderr.read(10_000).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "no message"


class _Reader:
    """Reads exact counts of bytes with a deadline."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._fd = process.stdout.fileno()
        self._selector = selectors.PollSelector()
        self._selector.register(self._fd, selectors.EVENT_READ)

    def exactly(self, count: int, deadline: float) -> bytes | None:
        """Return ``count`` bytes, or None when they do not come in time or the stream ends."""
        parts = bytearray()
        while len(parts) < count:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                return None
            part = os.read(self._fd, min(count - len(parts), 1 << 20))
            if not part:
                return None
            parts += part
        return bytes(parts)

    def close(self) -> None:
        self._selector.close()


def _job(program: Program) -> dict[str, Any]:
    inputs: list[Any] = list(program.inputs)
    if program.function is None:
        inputs = [text.encode("utf-8", "surrogateescape") for text in inputs]
    source = program.source.encode("utf-8", "surrogatepass")
    return {"source": source, "inputs": inputs, "function": program.function}


def _setup(layers: Layers, limits: Limits, scratch: Path) -> dict[str, Any]:
    """Return what the runner applies: plain data only."""
    namespaces = layers.isolation == "namespaces"
    memory, folder = limits.memory_mb << 20, limits.scratch_mb << 20
    rlimits = {
        "RLIMIT_AS": memory,
        "RLIMIT_FSIZE": folder,
        "RLIMIT_NOFILE": 256,
        "RLIMIT_CORE": 0,
    }
    if namespaces:
        rlimits["RLIMIT_NPROC"] = limits.processes
    own_user = layers.root and namespaces
    alone = layers.seccomp and not namespaces
    return {
        "seconds": limits.seconds,
        "output_bytes": limits.output_bytes,
        "rlimits": rlimits,
        "own_processes": namespaces,
        "uid": _unused_user() if own_user else None,
        "landlock": _landlock(layers, "/tmp" if namespaces else str(scratch)),
        "filter": seccomp.base_filter() if layers.seccomp else None,
        "child_filter": seccomp.alone_filter() if alone else None,
    }


def _unused_user() -> int:
    """Return a user id for one sandbox: the process limit counts per user."""
    return 40_000 + (os.getpid() * 64 + next(_users)) % 20_000


def python_files() -> tuple[Path, Path, list[Path]]:
    """Return the base interpreter, its standard library and its shared libraries."""
    base = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    binary = (base / "bin" / version).resolve()
    return binary, base / "lib" / version, sorted((base / "lib").glob("libpython*.so*"))


def _confined(layers: Layers, limits: Limits, runner: Path) -> list[str]:
    """Return the bwrap command: the interpreter read-only, a small /tmp, nothing else."""
    binary, library, shared = python_files()
    command = [str(layers.bubblewrap), *namespace_flags(layers.root), "--as-pid-1", "--clearenv"]
    for folder in ("/", "/usr", _INSIDE, f"{_INSIDE}/lib", "/dev"):
        command += ["--perms", "0755", "--dir", folder]
    for folder in ("/usr/lib", "/usr/lib64", "/lib", "/lib64"):
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            command += ["--ro-bind", folder, folder]
    command += ["--ro-bind", str(binary), f"{_INSIDE}/bin/python3"]
    command += ["--ro-bind", str(library), f"{_INSIDE}/lib/{library.name}"]
    if (library / "site-packages").is_dir():
        command += ["--tmpfs", f"{_INSIDE}/lib/{library.name}/site-packages"]
        command += ["--remount-ro", f"{_INSIDE}/lib/{library.name}/site-packages"]
    for file in shared:
        command += ["--ro-bind", str(file.resolve()), f"{_INSIDE}/lib/{file.name}"]
    size = str(limits.scratch_mb << 20)
    command += ["--setenv", *_HASHES, "--setenv", "LD_LIBRARY_PATH", f"{_INSIDE}/lib"]
    command += ["--ro-bind", str(runner), f"{_INSIDE}/runner.pyc"]
    command += ["--dev-bind", "/dev/null", "/dev/null"]
    command += ["--ro-bind", "/dev/urandom", "/dev/urandom"]
    command += ["--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--chdir", "/tmp"]
    command += ["--remount-ro", "/"]
    return [*command, f"{_INSIDE}/bin/python3", *_FLAGS, f"{_INSIDE}/runner.pyc"]


# no site, no user folder, no script folder on the path; string hashes the same in every run
_FLAGS = ["-s", "-P", "-S", "-B", "-X", "utf8"]
_HASHES = ("PYTHONHASHSEED", "0")


def _bare(runner: Path) -> list[str]:
    binary, _, _ = python_files()
    return [str(binary), *_FLAGS, str(runner)]


def _landlock(layers: Layers, scratch: str) -> tuple[bytes, list[tuple[str, int]]] | None:
    """Return the Landlock ruleset and its rules, as version 1 to 6 of the interface have them."""
    version = layers.landlock
    if not version:
        return None
    handled = (1 << _FILE_BITS.get(version, 16)) - 1
    ruleset = struct.pack("<Q", handled)
    if version >= 4:
        ruleset += struct.pack("<Q", 0b11)  # no TCP bind or connect
    if version >= 6:
        ruleset += struct.pack("<Q", 0b11)  # no abstract sockets or signals to the outside
    binary, library, _ = python_files()
    namespaces = layers.isolation == "namespaces"
    readable = [_INSIDE] if namespaces else [str(binary.parent), str(library.parent)]
    folders = [*readable, *(f for f in ("/usr/lib", "/lib", "/lib64") if os.path.isdir(f))]
    rules = [(folder, _READ | _LIST) for folder in folders]
    rules.append((scratch, (_SCRATCH | _TRUNCATE) & handled))
    rules.append(("/dev/null", _READ | _WRITE))
    rules.append(("/dev/urandom", _READ))
    return ruleset, rules
