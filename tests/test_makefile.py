"""What the Makefile promises beyond what its commands do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]

STUB = """#!/bin/sh
case "$1" in
sweep) echo $$ > "$PIDS/sweep"; exec sleep 60 ;;
diagnose) echo $$ > "$PIDS/diagnose"; exec sleep 60 ;;
esac
"""
# SIGINT may be ignored where the tests run; make and its shell must start without that.
MAKE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execvp('make', sys.argv[1:])"
)


def appears(file: Path) -> bool:
    for _ in range(500):
        if file.exists() and file.read_text().strip():
            return True
        time.sleep(0.02)
    return False


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ends(pid: int) -> bool:
    for _ in range(250):
        if not is_there(pid):
            return True
        time.sleep(0.02)
    return False


def test_ctrl_c_in_the_demo_ends_its_sweep(tmp_path: Path) -> None:
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    stub = folder / "ragen2"
    stub.write_text(STUB)
    stub.chmod(0o755)
    (tmp_path / "venv" / ".ready").touch()
    command = ["make", "-f", str(ROOT / "Makefile"), "demo", f"VENV={tmp_path / 'venv'}"]
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    made = subprocess.Popen(
        [sys.executable, "-c", MAKE, *command],
        cwd=tmp_path,
        env=os.environ | {"PIDS": str(tmp_path)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert appears(tmp_path / "sweep")
        assert appears(tmp_path / "diagnose")
        os.killpg(made.pid, signal.SIGINT)
        assert made.wait(10) != 0
        assert ends(int((tmp_path / "sweep").read_text()))
    finally:
        for file in (tmp_path / "sweep", tmp_path / "diagnose"):
            if file.exists() and is_there(int(file.read_text())):
                os.kill(int(file.read_text()), signal.SIGKILL)
