"""Seccomp filters as BPF programs: system calls that no graded program needs fail with EPERM.

Two filters. ``base_filter`` goes around everything inside the sandbox: no sockets, tracing, mounts,
namespaces, kernel keys, shared memory that outlives its process, or other architectures.
``alone_filter`` is added where there is no process namespace: no new processes, no signals, so
nothing can outlive its run.
"""

import platform
import struct

from ragen2_cli.sandbox.syscalls import MACHINES

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38
_NUMBER_AT, _ARCH_AT, _ARG0_AT = 0, 4, 16
_X32_BIT = 0x40000000
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEW{USER,PID,NET,IPC,UTS,CGROUP,NS,TIME}
_CLONE_THREAD = 0x00010000
_PROCESS_CALLS = (
    "fork", "vfork", "execve", "execveat", "kill", "tkill", "tgkill", "rt_sigqueueinfo",
    "rt_tgsigqueueinfo", "setsid", "setpgid",
)  # fmt: skip


def available() -> bool:
    """Whether this kernel filters system calls and the machine's numbers are known."""
    import ctypes
    import errno

    if platform.machine() not in MACHINES:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(22, 2, None, None, None)  # PR_SET_SECCOMP with no program: EFAULT where it exists
    return ctypes.get_errno() == errno.EFAULT


def base_filter() -> bytes:
    """Return the filter that surrounds the runner and all that it starts."""
    _, numbers = MACHINES[platform.machine()]
    body = [_load(_NUMBER_AT)]
    for name, number in numbers.items():
        if name not in _PROCESS_CALLS and name not in ("clone", "clone3"):
            body += _deny(number, _EPERM)
    body += _deny(numbers["clone3"], _ENOSYS)  # the C library then uses clone, which is checked
    body += [
        _op(_JUMP_EQ, numbers["clone"], 0, 3),
        _load(_ARG0_AT),
        _op(_JUMP_SET, _NEW_NAMESPACES, 0, 1),
        _op(_RETURN, _ERRNO | _EPERM),
    ]
    return _program(body)


def alone_filter() -> bytes:
    """Return the filter added to a run where processes and signals would reach the machine."""
    _, numbers = MACHINES[platform.machine()]
    body = [_load(_NUMBER_AT)]
    for name in _PROCESS_CALLS:
        if name in numbers:
            body += _deny(numbers[name], _EPERM)
    body += [
        _op(_JUMP_EQ, numbers["clone"], 0, 3),
        _load(_ARG0_AT),
        _op(_JUMP_SET, _CLONE_THREAD, 1, 0),
        _op(_RETURN, _ERRNO | _EPERM),
    ]
    return _program(body)


def _program(body: list[bytes]) -> bytes:
    arch, _ = MACHINES[platform.machine()]
    head = [
        _load(_ARCH_AT),
        _op(_JUMP_EQ, arch, 1, 0),
        _op(_RETURN, _KILL),
        _load(_NUMBER_AT),
        _op(_JUMP_GE, _X32_BIT, 0, 1),
        _op(_RETURN, _KILL),
    ]
    return b"".join([*head, *body, _op(_RETURN, _ALLOW)])


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _op(_LOAD, offset)


def _deny(number: int, error: int) -> list[bytes]:
    return [_op(_JUMP_EQ, number, 0, 1), _op(_RETURN, _ERRNO | error)]
