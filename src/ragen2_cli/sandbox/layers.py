"""Which layers of isolation this machine has, found out by trying each one."""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from ragen2_cli.errors import UserError
from ragen2_cli.sandbox import seccomp

Isolation = Literal["namespaces", "landlock", "none"]
_LANDLOCK_CREATE = 444  # the same number on every architecture


@dataclass(frozen=True, slots=True)
class Layers:
    """What holds here.

    Attributes:
        bubblewrap: Path of ``bwrap``; None when it is absent.
        namespaces: Whether it can start a process in new mount, pid, net, ipc and user spaces.
        why_not: Its own words when it cannot.
        landlock: Landlock's version; 0 when the kernel has none.
        seccomp: Whether system calls can be filtered.
        rlimits: Whether resource limits exist (POSIX).
        root: Whether this process is root: then a program gets an unused user id of its own in
            place of a user namespace.
        zygote: Whether a warm interpreter inside bwrap can fork programs into fresh namespaces;
            otherwise each program costs a start of bwrap.
        why_cold: Why it cannot.
    """

    bubblewrap: str | None
    namespaces: bool
    why_not: str
    landlock: int
    seccomp: bool
    rlimits: bool
    root: bool
    zygote: bool = False
    why_cold: str = ""

    @property
    def warm(self) -> bool:
        """Whether programs are forked from a warm interpreter."""
        return self.namespaces and self.zygote

    @property
    def isolation(self) -> Isolation:
        """The strongest isolation: namespaces, else Landlock with seccomp, else none."""
        if self.namespaces:
            return "namespaces"
        return "landlock" if self.landlock and self.seccomp else "none"

    def require(self) -> None:
        """Refuse a machine on which nothing isolates a program.

        Raises:
            UserError: It says what is missing and how to accept the risk.
        """
        if self.isolation == "none":
            raise UserError(
                f"sandbox: nothing isolates programs on this machine ({self.why_not}; Landlock "
                f"{self.landlock or 'absent'}); install bubblewrap, or accept the risk with "
                "--unsafe-sandbox (--set env.options.unsafe_sandbox=true)"
            )


@lru_cache(maxsize=1)
def detect() -> Layers:
    """Try every layer once; the answer is kept for the life of the process."""
    linux = sys.platform == "linux"
    path = shutil.which("bwrap") if linux else None
    works, why_not = _try_bubblewrap(path) if path else (False, "bwrap is not installed")
    found = Layers(
        bubblewrap=path,
        namespaces=works,
        why_not=why_not,
        landlock=_landlock_version() if linux else 0,
        seccomp=linux and seccomp.available(),
        rlimits=os.name == "posix",
        root=os.name == "posix" and os.geteuid() == 0,
    )
    if not found.namespaces:
        return found
    from ragen2_cli.sandbox.launch import why_not_warm

    why_cold = why_not_warm(found)
    return replace(found, zygote=not why_cold, why_cold=why_cold)


def namespace_flags(root: bool, warm: bool = False) -> list[str]:
    """Return the options of bwrap that give a program its own spaces.

    Root needs no user namespace to make the others, and inside one its programs would still count
    as root against the process limit; the runner takes an unused user id instead. A warm
    interpreter keeps the capability to make namespaces; its programs give up every one.
    """
    kept = ["CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"] if root else []
    kept += ["CAP_SYS_ADMIN"] if warm else []
    user = [] if root else ["--unshare-user"]
    for name in kept:
        user += ["--cap-add", name]
    return [
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
        *user,
    ]


def _try_bubblewrap(path: str) -> tuple[bool, str]:
    flags = namespace_flags(os.geteuid() == 0)
    command = [path, *flags, "--ro-bind", "/", "/", "/bin/sh", "-c", "exit 0"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"bwrap does not run ({error})"
    return done.returncode == 0, done.stderr.strip().splitlines()[-1] if done.stderr else ""


def _landlock_version() -> int:
    import ctypes

    if platform.machine() not in seccomp.MACHINES:
        return 0
    version = int(ctypes.CDLL(None).syscall(_LANDLOCK_CREATE, None, 0, 1))
    return max(version, 0)
