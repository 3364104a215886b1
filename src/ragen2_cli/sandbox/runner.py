"""The script inside the sandbox: closes the doors, then runs one program on its inputs.

It is started as a file, alone, with only the standard library, and imports little because every
start pays for it. It reads two framed messages from standard input (what to apply, then the
program) and writes one frame per input to standard output. It never holds an expected output.
The other side trusts nothing that comes back.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import signal
import struct
import sys
import time

MYPY = False
if MYPY:
    from collections.abc import Callable
    from typing import Any

FRAME = struct.Struct("<BdII")  # index into types.STATUSES, seconds, output bytes, error bytes
OK, ERROR, MEMORY, CRASH, TIMEOUT, OUTPUT_LIMIT, NOT_RUN = range(7)
ERRORS_KEPT = 2000


def read_message() -> Any:
    """Return the next message of standard input: eight bytes of length, then marshal data."""
    return marshal.loads(read_exactly(int.from_bytes(read_exactly(8), "little")))


def read_exactly(count: int) -> bytes:
    """Return exactly ``count`` bytes of standard input; end quietly when it is closed."""
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def write_all(data: bytes) -> None:
    """Write everything to standard output."""
    while data:
        data = data[os.write(1, data) :]


def apply(setup: dict[str, Any]) -> Callable[[bytes], None]:
    """Put on every layer in an order in which none blocks the next."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> int:
        if result < 0:
            raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")
        return result

    os.environ.clear()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    for name, value in setup["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    for capability in range(41):
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; refused without privileges
    if setup["uid"] is not None:
        os.setgroups([])
        os.setresgid(setup["uid"], setup["uid"], setup["uid"])
        os.setresuid(setup["uid"], setup["uid"], setup["uid"])
    check(libc.capset(struct.pack("<Ii", 0x20080522, 0), bytes(24)), "capset")
    check(libc.prctl(4, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")
    check(libc.prctl(38, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    if setup["landlock"] is not None:
        restrict_files(libc, check, *setup["landlock"])

    def install(program: bytes) -> None:
        buffer = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
        check(libc.prctl(22, 2, header, 0, 0), "prctl(PR_SET_SECCOMP)")

    if setup["filter"] is not None:
        install(setup["filter"])
    return install


def restrict_files(
    libc: Any, check: Callable[[int, str], int], ruleset: bytes, rules: list[tuple[str, int]]
) -> None:
    """Enter a Landlock domain: ``rules`` are (path, allowed access) pairs, the rest is denied."""
    domain = check(libc.syscall(444, ruleset, len(ruleset), 0), "landlock_create_ruleset")
    for path, access in rules:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("<Qi", access, place)
        check(libc.syscall(445, domain, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(place)
    check(libc.syscall(446, domain, 0), "landlock_restrict_self")
    os.close(domain)


def run_program(job: dict[str, Any], value: Any, setup: dict[str, Any], install: Any) -> None:
    """Run the program on one input, in the forked process; never returns to the loop."""
    import io
    import types

    def writer(fd: int) -> io.BufferedWriter:
        return io.BufferedWriter(io.FileIO(fd, "w"))

    seconds = int(setup["seconds"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    if setup["child_filter"] is not None:
        install(setup["child_filter"])
    sys.set_int_max_str_digits(0)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), "utf-8", "surrogateescape")
    sys.stdout = io.TextIOWrapper(writer(1), "utf-8", "surrogateescape")
    sys.stderr = io.TextIOWrapper(writer(2), "utf-8", "backslashreplace", line_buffering=True)
    streams = (sys.stdout, sys.stderr)
    sys.argv = ["solution.py"]
    module = types.ModuleType("__main__")
    module.__dict__.update(exit=sys.exit, quit=sys.exit)
    job["keep"] = sys.modules["__main__"]
    sys.modules["__main__"] = module
    exec(compile(job["source"], "solution.py", "exec", dont_inherit=True), module.__dict__)
    if job["function"] is not None:
        import json

        target = module.__dict__.get(job["function"])
        if target is None:
            target = getattr(module.__dict__["Solution"](), job["function"])
        answer = json.dumps(target(*value)).encode()
        while answer:
            answer = answer[os.write(3, answer) :]
    leave(module.__dict__, streams)


def leave(names: dict[str, Any], streams: tuple[Any, Any]) -> None:
    """End the process as ``sys.exit(0)`` does, without freeing the interpreter's own objects.

    Freeing them takes longer than most programs. Where an end has more to do (threads, exit
    handlers, other streams) this returns, and the ordinary end follows.
    """
    import atexit
    import gc

    plain = "threading" not in sys.modules and not atexit._ncallbacks()
    if not plain or sys.stdout is not streams[0] or sys.stderr is not streams[1]:
        return
    for name in list(names):
        if name != "__builtins__":
            names[name] = None
    gc.collect()  # objects in cycles end too
    for stream in streams:
        if not stream.closed:
            stream.flush()
    os._exit(0)


def start(
    job: dict[str, Any], value: Any, setup: dict[str, Any], install: Any
) -> tuple[int, list[int]]:
    """Fork a run; return its pid and our ends of its input, output and error pipes."""
    ours, theirs = [], []
    for reads in (True, False, False):
        end_read, end_write = os.pipe()
        theirs.append(end_read if reads else end_write)
        ours.append(end_write if reads else end_read)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        given, output, errors = theirs
        wanted = [given, output, errors]
        if job["function"] is not None:
            wanted = [given, errors, errors, output]
        for target, fd in enumerate(wanted):  # every pipe end is 3 or higher, so none is lost
            os.dup2(fd, target, inheritable=True)
        os.closerange(len(wanted), 256)
        run_program(job, value, setup, install)
        sys.exit(0)
    for fd in theirs:
        os.close(fd)
    return pid, ours


def stop_all(pid: int, own_processes: bool) -> int | None:
    """Kill everything that the run started and wait until it is gone."""
    try:
        if own_processes:
            os.kill(-1, signal.SIGKILL)  # this is process 1 of its namespace: all but itself
        else:
            os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return code
        if ended == pid:
            code = status


def watch(
    pid: int, fds: list[int], data: bytes, deadline: float, setup: dict[str, Any]
) -> tuple[int | None, int | None, bytes, bytes]:
    """Feed and drain a run until it ends or breaks a limit; return (verdict, status, out, err)."""
    give, output, errors = fds
    texts = {output: bytearray(), errors: bytearray()}
    seen = {output: 0, errors: 0}
    poller = select.poll()
    poller.register(output, select.POLLIN)
    poller.register(errors, select.POLLIN)
    os.set_blocking(give, False)
    feeding, at = True, 0
    poller.register(give, select.POLLOUT)
    verdict, status, open_ends, wait = None, None, 2, 0.02
    while open_ends:
        left = deadline - time.monotonic()
        if left <= 0 and verdict is None:
            verdict, status = TIMEOUT, stop_all(pid, setup["own_processes"])
        for fd, event in poller.poll(1000 * max(0.0, min(left, wait))):
            if fd == give:
                try:
                    at += os.write(give, data[at : at + 65536]) if at < len(data) else 0
                    done = at >= len(data)
                except BlockingIOError:
                    done = False
                except BrokenPipeError:
                    done = True
                if done or event & select.POLLERR:
                    poller.unregister(give)
                    os.close(give)
                    feeding = False
                continue
            part = os.read(fd, 65536)
            if not part:
                poller.unregister(fd)
                open_ends -= 1
            seen[fd] += len(part)
            if fd == errors:
                texts[fd] = (texts[fd] + part)[-ERRORS_KEPT:]
            elif seen[fd] <= setup["output_bytes"]:
                texts[fd] += part
            if seen[fd] > setup["output_bytes"] and verdict is None:
                verdict, status = OUTPUT_LIMIT, stop_all(pid, setup["own_processes"])
        if verdict is None and status is None:
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                stop_all(pid, setup["own_processes"])
                status = code
    if feeding:
        os.close(give)
    os.close(output)
    os.close(errors)
    return verdict, status, bytes(texts[output]), bytes(texts[errors])


def wait_for(pid: int, deadline: float, own_processes: bool) -> tuple[int | None, int | None]:
    """Wait for a run that closed its output; return (verdict, status)."""
    while time.monotonic() < deadline:
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            stop_all(pid, own_processes)
            return None, code
        time.sleep(0.0005)
    return TIMEOUT, stop_all(pid, own_processes)


def classify(status: int, errors: bytes) -> int:
    """Turn a wait status into one of the outcome numbers."""
    if os.WIFSIGNALED(status):
        return TIMEOUT if os.WTERMSIG(status) == signal.SIGXCPU else CRASH
    if os.WEXITSTATUS(status) == 0:
        return OK
    last = errors.strip().rpartition(b"\n")[2]
    return MEMORY if last.startswith(b"MemoryError") else ERROR


def main() -> None:
    """Apply the layers, say so, then run each input of the one program."""
    setup = read_message()
    if setup["own_processes"] != (os.getpid() == 1):  # "kill all" must never mean the machine
        raise RuntimeError("the process namespace is not what was asked for")
    install = apply(setup)
    write_all(b"R")
    job = read_message()
    end = time.monotonic() + setup["seconds"]
    for value in job["inputs"]:
        began = time.monotonic()
        if began >= end:
            write_all(FRAME.pack(NOT_RUN, 0.0, 0, 0))
            continue
        pid, fds = start(job, value, setup, install)
        data = value if job["function"] is None else b""
        verdict, status, output, errors = watch(pid, fds, data, end, setup)
        if verdict is None and status is None:
            verdict, status = wait_for(pid, end, setup["own_processes"])
        if verdict is None and status is not None:
            verdict = classify(status, errors)
        seconds = time.monotonic() - began
        write_all(FRAME.pack(verdict, seconds, len(output), len(errors)) + output + errors)


if __name__ == "__main__":
    main()
