"""Start ``ragen2 train``, or a script, as its own process or processes."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def options(**settings: object) -> list[str]:
    """Return ``--set key=value`` for every setting; ``a__b`` stands for ``a.b``."""
    return [
        word
        for name, value in settings.items()
        for word in ("--set", f"{name.replace('__', '.')}={value}")
    ]


def train(*arguments: str, launcher: tuple[str, ...] | list[str] = ()) -> "subprocess.Popen[str]":
    """Start the command; its stderr is to be read."""
    command = [sys.executable, *launcher, "-m", "ragen2_cli", "train", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def script(path: Path, *arguments: object, launcher: Sequence[str] = ()) -> None:
    """Run a Python script, alone or below a launcher, to its success."""
    command = [sys.executable, *launcher, str(path), *map(str, arguments)]
    finish(
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
    )


def finish(process: "subprocess.Popen[str]", timeout: float = 500) -> str:
    """Wait for success and return what was said on stderr."""
    _, said = process.communicate(timeout=timeout)
    assert process.returncode == 0, said[-3000:]
    return said


def worker(launcher: int, rank: int) -> int:
    """Return the process id of one rank below a launcher's."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if parent == launcher and f"RANK={rank}".encode() in environment:
            return int(entry.name)
    raise AssertionError(f"no rank {rank} below {launcher}")
