"""What surrounds a program, as plain data: the command that starts the inside, and its limits."""

import itertools
import os
import struct
import sys
from pathlib import Path
from typing import Any

from ragen2_cli.sandbox import seccomp
from ragen2_cli.sandbox.layers import Layers, namespace_flags
from ragen2_cli.sandbox.types import Limits

_INSIDE = "/python"
_WRITE, _READ, _LIST = 1 << 1, 1 << 2, 1 << 3  # executing is never allowed
_SCRATCH = _WRITE | _READ | _LIST | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12
_TRUNCATE = 1 << 14
_FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
_users = itertools.count()


def setup_of(layers: Layers, limits: Limits, scratch: str | None) -> dict[str, Any]:
    """Return what the runner applies, as plain data; ``scratch`` None is a ``/tmp`` of its own."""
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
        "landlock": _landlock(layers, scratch or "/tmp"),
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


def command_of(layers: Layers, limits: Limits, runner: Path) -> list[str]:
    """Return the command that starts the inside script with every namespace that there is."""
    if layers.isolation != "namespaces":
        return [str(python_files()[0]), *_FLAGS, str(runner)]
    return _confined(layers, limits, runner)


def _confined(layers: Layers, limits: Limits, runner: Path) -> list[str]:
    """Return the bwrap command: the interpreter read-only, a small /tmp, nothing else.

    A warm interpreter has no writable folder: each program mounts its own over the empty /tmp.
    """
    binary, library, shared = python_files()
    command = [str(layers.bubblewrap), *namespace_flags(layers.root, layers.warm)]
    command += ["--as-pid-1", "--clearenv"]
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
    command += ["--setenv", *HASHES, "--setenv", "LD_LIBRARY_PATH", f"{_INSIDE}/lib"]
    for script in (runner, runner.with_name("zygote.pyc")):
        command += ["--ro-bind", str(script), f"{_INSIDE}/{script.name}"]
    command += ["--dev-bind", "/dev/null", "/dev/null"]
    command += ["--ro-bind", "/dev/urandom", "/dev/urandom"]
    size = str(limits.scratch_mb << 20)
    scratch = ["--perms", "1777", "--size", size, "--tmpfs", "/tmp"]
    command += ["--perms", "0755", "--dir", "/tmp"] if layers.warm else scratch
    command += ["--chdir", "/tmp", "--remount-ro", "/"]
    command += [f"{_INSIDE}/bin/python3", *_FLAGS]
    if not layers.warm:
        return [*command, f"{_INSIDE}/runner.pyc"]
    user = [] if layers.root else ["user"]
    return [*command, f"{_INSIDE}/zygote.pyc", f"{_INSIDE}/runner.pyc", size, *user]


# no site, no user folder, no script folder on the path; string hashes the same in every run
_FLAGS = ["-s", "-P", "-S", "-B", "-X", "utf8"]
HASHES = ("PYTHONHASHSEED", "0")


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
