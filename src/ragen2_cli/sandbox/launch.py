"""One sandbox: a fresh, confined process that runs one program and is thrown away.

It comes from a ``Host``: either an interpreter that bwrap confined for this one program, or a warm
one that forks a process into fresh namespaces whenever it is handed a channel.
"""

import contextlib
import marshal
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ragen2_cli.sandbox.confine import HASHES, command_of, setup_of
from ragen2_cli.sandbox.layers import Layers
from ragen2_cli.sandbox.runner import FRAME
from ragen2_cli.sandbox.types import STATUSES, Limits, Outcome, Program, SandboxError

START_SECONDS = 30.0
GRACE_SECONDS = 0.5
END_SECONDS = 5.0


def compile_runner(folder: Path) -> Path:
    """Compile the two inside scripts into ``folder`` once, so that starts do not pay for it."""
    import py_compile

    for name in ("zygote", "runner"):
        source, target = Path(__file__).with_name(f"{name}.py"), folder / f"{name}.pyc"
        py_compile.compile(str(source), cfile=str(target), dfile=source.name, doraise=True)
        target.chmod(0o644)
    return target


class Host:
    """A confined interpreter that waits: for its one program, or, when warm, for many channels.

    A warm one is confined as tightly but keeps the right to make namespaces. It runs no program
    and reads no message: a channel goes straight to the process that it forks.

    Args:
        layers: What this machine has; every layer that is there is used.
        limits: What each program may use.
        runner: The compiled inside script; where there is no mount namespace, the program's
            writable folder is made beside it.

    Raises:
        OSError: When the command cannot be started.
    """

    def __init__(self, layers: Layers, limits: Limits, runner: Path) -> None:
        self.warm, self.limits = layers.warm, limits
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        scratch = None
        if layers.isolation != "namespaces":
            self._scratch = tempfile.TemporaryDirectory(prefix="scratch-", dir=runner.parent)
            scratch = self._scratch.name
        self.setup = partial(setup_of, layers, limits, scratch)
        self._socket, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                command_of(layers, limits, runner),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                env=dict([HASHES]),
                cwd=scratch,
                start_new_session=True,
            )
        except OSError:
            self._socket.close()
            self._clean()
            raise
        finally:
            theirs.close()

    def channel(self) -> socket.socket:
        """Return the outer end of a channel to a process that will run one program.

        Raises:
            OSError: When a warm interpreter is gone.
        """
        if not self.warm:
            return self._socket
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._socket, [b"P"], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def ended(self) -> bool:
        """Whether it ended, now or within half a second."""
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            return False
        return True

    def complaint(self) -> str:
        """End it and return the last thing that it said."""
        self.process.kill()
        self._socket.close()
        assert self.process.stderr is not None
        lines = self.process.stderr.read(10_000).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "no message"

    def close(self) -> None:
        """Kill it with everything that it started and free its handles."""
        self.process.kill()
        self.process.wait()
        self._socket.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self._clean()

    def _clean(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()


class Sandbox:
    """A process that waits for its program, with every layer on.

    Args:
        host: Where it comes from; one that is not warm serves once and ends with it.

    Raises:
        OSError: When the host is gone.
    """

    def __init__(self, host: Host) -> None:
        self.limits = host.limits
        self._host = host
        self._handle: int | None = None  # of the first process of the program's namespaces
        self._channel = host.channel()
        self._send(host.setup())

    def run(self, program: Program) -> list[Outcome]:
        """Run the program on all its inputs and end the sandbox.

        Returns:
            One outcome per input, in order.

        Raises:
            SandboxError: When the sandbox failed before the program was handed over, or its warm
                host ended while the program ran.
        """
        try:
            if not self._ready() or not self._send(_job(program)):
                raise SandboxError(f"the sandbox did not start: {self._host.complaint()}")
            return self._collect(len(program.inputs))
        finally:
            self.close()

    def close(self) -> None:
        """Kill whatever is left of the sandbox and free its handles."""
        if not self._host.warm:
            self._host.close()
        if self._handle is not None:
            end_namespace(self._handle)
            self._handle = None
        self._channel.close()

    def _ready(self) -> bool:
        """Wait until the inside says that every layer is on; keep the handle that comes before."""
        self._channel.settimeout(START_SECONDS)
        try:
            if self._host.warm:
                flags = socket.MSG_CMSG_CLOEXEC
                handles = socket.recv_fds(self._channel, 1, 1, flags)[1]
                self._handle = handles[0] if handles else None
            return self._channel.recv(1) == b"R"
        except (TimeoutError, ConnectionError):
            return False

    def _collect(self, count: int) -> list[Outcome]:
        """Read one frame per input; what is missing at the hard deadline timed out.

        The frames come from inside and are not trusted: lengths are checked against the limits,
        and a junk frame ends the reading as a crash of the program.
        """
        deadline = time.monotonic() + self.limits.seconds + GRACE_SECONDS
        outcomes: list[Outcome] = []
        while len(outcomes) < count:
            head = self._exactly(FRAME.size, deadline)
            if head is None:
                break
            status, seconds, out_size, err_size = FRAME.unpack(head)
            if status >= len(STATUSES) or max(out_size, err_size) > self.limits.output_bytes:
                break
            body = self._exactly(out_size + err_size, deadline)
            if body is None:
                break
            errors = body[out_size:].decode("utf-8", "replace")
            outcomes.append(Outcome(STATUSES[status], body[:out_size], errors, seconds))
        if len(outcomes) < count:
            late = time.monotonic() >= deadline
            if not late and self._host.warm and self._host.ended():
                raise SandboxError("the sandbox was ended from outside")
            outcomes.append(Outcome("timeout" if late else "crash", b"", "", self.limits.seconds))
        missing = count - len(outcomes)
        return outcomes + [Outcome("not_run", b"", "", 0.0)] * missing

    def _exactly(self, count: int, deadline: float) -> bytes | None:
        """Return ``count`` bytes, or None when they do not come in time or the stream ends."""
        parts = bytearray()
        while len(parts) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._channel.settimeout(left)
            try:
                part = self._channel.recv(min(count - len(parts), 1 << 20))
            except (TimeoutError, ConnectionError):
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)

    def _send(self, message: Mapping[str, Any]) -> bool:
        """Write one message; False when the other side is gone or does not read."""
        data = marshal.dumps(dict(message))
        self._channel.settimeout(START_SECONDS)
        try:
            self._channel.sendall(len(data).to_bytes(8, "little") + data)
        except (TimeoutError, ConnectionError):
            return False
        return True


def end_namespace(handle: int) -> None:
    """Kill a first process, wait until the kernel has ended all it started, close the handle."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.poll(1000 * END_SECONDS)
    os.close(handle)


def why_not_warm(layers: Layers) -> str:
    """Try a warm host once; return why it does not work here, or nothing when it does."""
    tried, limits = replace(layers, zygote=True), Limits(seconds=10.0)
    with tempfile.TemporaryDirectory(prefix="ragen2-sandbox-") as folder:
        try:
            host = Host(tried, limits, compile_runner(Path(folder)))
        except OSError as error:
            return str(error)
        try:
            outcome = Sandbox(host).run(Program("print(1)", ("",)))[0]
        except (OSError, SandboxError) as error:
            return str(error)
        finally:
            host.close()
    return "" if outcome.output == b"1\n" else f"a program ended as {outcome.status}"


def _job(program: Program) -> dict[str, Any]:
    inputs: list[Any] = list(program.inputs)
    if program.function is None:
        inputs = [text.encode("utf-8", "surrogateescape") for text in inputs]
    source = program.source.encode("utf-8", "surrogatepass")
    return {"source": source, "inputs": inputs, "function": program.function}
