"""Streams of the whole command: full devices, readers that leave, terminals without color."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ragen2_cli import __version__
from test_runs import an_episode, new_run

COMMAND = [sys.executable, "-m", "ragen2_cli"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = new_run(tmp_path_factory.mktemp("streams") / "a")
    made.write_rollouts(1, [an_episode(1, group, 0) for group in range(40)])
    return str(made.path)


def test_version() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ragen2 {__version__}\n", "")


@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_full_stdout_is_one_line(run: str, buffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "show", run],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": buffered},
            check=False,
        )
    said = [line for line in done.stderr.splitlines() if not line.startswith("showing")]
    assert said == ["error: cannot write to stdout: No space left on device"]
    assert done.returncode == 1


@pytest.mark.parametrize("arguments", [["show", "RUN", "--limit", "0"], ["envs", "list"]])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_that_left_is_quiet(run: str, arguments: list[str], buffered: str) -> None:
    # 141 = 128 + 13, what a shell reports of `yes | head -1` for `yes`.
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *(run if word == "RUN" else word for word in arguments)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": buffered},
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert [line for line in done.stderr.splitlines() if not line.startswith("showing")] == []


def test_a_stderr_that_fails_does_not_end_a_command(run: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "show", run], stdout=subprocess.PIPE, stderr=full, text=True, check=False
        )
    assert done.returncode == 0
    assert "group 0" in done.stdout


def on_a_terminal(arguments: list[str], **variables: str) -> str:
    """Return what a command writes with a pseudo-terminal as stdout and stderr."""
    leader, follower = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env=kept | {"TERM": "xterm-256color"} | variables,
    ) as process:
        os.close(follower)
        seen = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
    os.close(leader)
    assert process.returncode == 0
    return seen.decode()


COLOR = re.compile(r"\x1b\[(\d+;)*(3|4|9|10)\d[;m]")
"""A color of text or background; bold, dim and italic are none."""


def test_no_color_on_a_terminal(run: str) -> None:
    assert COLOR.search(on_a_terminal(["show", run]))
    plain = on_a_terminal(["show", run], NO_COLOR="1")
    assert not COLOR.search(plain)
    assert "group 0" in plain
