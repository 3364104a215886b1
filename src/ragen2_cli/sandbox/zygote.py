"""The script that stays warm inside bwrap: it forks a process in fresh namespaces per program.

Standard input brings one channel per program. The forked process takes it as its standard input
and output, sends a handle of itself along it, and becomes ``runner``, as if it had just started.
This process runs no program, reads no message and writes nothing.

Arguments: the compiled runner, the bytes of a program's ``/tmp``, and ``user`` where each program
gets a user namespace of its own in place of an unused user id.
"""

import ctypes
import gc
import marshal
import os
import signal
import socket
import sys
import types

NEW_USER = 0x10000000
NEW_PLACES = 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # mount uts ipc pid net
PRIVATE, NO_SUID_NO_DEV = 0x40000 | 0x4000, 2 | 4
# what programs import most; nothing that draws random numbers when it is imported
WARM = ("bisect", "collections", "functools", "heapq", "io", "itertools", "json", "math", "re",
        "string", "typing")  # fmt: skip


def load(path: str) -> types.ModuleType:
    """Return a compiled script as a module."""
    module = types.ModuleType("runner")
    with open(path, "rb") as file:
        exec(marshal.loads(file.read()[16:]), module.__dict__)
    return module


def next_channel() -> int:
    """Fork per channel that arrives; return it there. Here, return only by ending."""
    control = socket.socket(fileno=0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    while True:
        channels = socket.recv_fds(control, 1, 1)[1]
        if not channels:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.detach()
            return channels[0]
        os.close(channels[0])


def take_place(channel: int, scratch: int, user: bool) -> None:
    """Become the first process of fresh namespaces, with a fresh ``/tmp`` and only the channel."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")

    check(libc.unshare(NEW_PLACES), "unshare")
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    for standard in (0, 1):
        os.dup2(channel, standard)
    os.closerange(3, 256)
    check(libc.mount(None, b"/", None, PRIVATE, None), "mount(private)")
    options = b"mode=1777,size=%d" % scratch
    check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", NO_SUID_NO_DEV, options), "mount(/tmp)")
    os.chdir("/tmp")
    if user:
        check(libc.unshare(NEW_USER), "unshare(user)")
    handle = os.pidfd_open(os.getpid())
    with socket.socket(fileno=os.dup(1)) as out:
        socket.send_fds(out, [b"P"], [handle])
    os.close(handle)


def main() -> None:
    """Warm up, then fork for ever."""
    path, scratch, *user = sys.argv[1:]
    runner = load(path)
    for name in WARM:
        __import__(name)
    compile("0", "", "exec")  # the compiler makes its own types at first use
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    gc.freeze()
    take_place(next_channel(), int(scratch), bool(user))
    runner.main()


if __name__ == "__main__":
    main()
