"""Standard streams of a command: a reader that left and a full device are not internal errors."""

import errno
import io
import os
import sys
from typing import NoReturn, TextIO


class OutputFault(Exception):
    """Stdout cannot be written: its reader left (``closed``), or the device is full."""

    def __init__(self, error: OSError) -> None:
        """Remember what the system said."""
        super().__init__(error.strerror or str(error))
        self.closed = error.errno == errno.EPIPE


class Stdout(io.TextIOWrapper):
    """Stdout whose faults are ``OutputFault``, which no library mistakes for one of its own."""

    def write(self, text: str, /) -> int:
        """Write as ever; raise ``OutputFault`` where the system refuses."""
        try:
            return super().write(text)
        except OSError as error:
            raise OutputFault(error) from None

    def flush(self) -> None:
        """Flush as ever; raise ``OutputFault`` where the system refuses."""
        try:
            super().flush()
        except OSError as error:
            raise OutputFault(error) from None


class Stderr(io.TextIOWrapper):
    """Stderr whose faults are ignored: a run does not end because nobody reads its progress."""

    def write(self, text: str, /) -> int:
        """Write what can be written."""
        try:
            return super().write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        """Flush what can be written."""
        try:
            super().flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """Send what is still buffered, and all that follows, nowhere."""
        silence(self)


def guard() -> None:
    """Put both streams in place for the rest of the process."""
    sys.stdout = _renewed(sys.stdout, Stdout)
    sys.stderr = _renewed(sys.stderr, Stderr)


def _renewed(stream: TextIO, kind: type[io.TextIOWrapper]) -> TextIO:
    """Return a stream of another class over the same buffer and with the same settings."""
    if not isinstance(stream, io.TextIOWrapper):  # closed at the start, or replaced by a caller
        return stream
    settings = {
        "encoding": stream.encoding,
        "errors": stream.errors,
        "line_buffering": stream.line_buffering,
        "write_through": stream.write_through,
    }
    return kind(stream.detach(), **settings)  # type: ignore[arg-type]


def silence(stream: TextIO) -> None:
    """Point a stream's descriptor at the null device, so that its buffer can be flushed."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def leave(fault: OutputFault) -> NoReturn:
    """End after a fault of stdout, as other programs do: 141 (128 + SIGPIPE), or one line and 1."""
    silence(sys.stdout)
    if not fault.closed:
        sys.stderr.write(f"error: cannot write to stdout: {fault}\n")
    sys.exit(1 if not fault.closed else 141)
