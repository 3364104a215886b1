"""Programs that mean harm: each is bounded, runs only against the sandbox itself, and fails.

Guarantees:
1. Every program ends within its limit + 1 s as a named status.
2. Nothing outside is read, written, signaled or connected to.
3. Processes, file handles and temporary files are back where they started.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ragen2_cli.sandbox import Limits, Pool, Program, detect

pytestmark = pytest.mark.skipif(not detect().namespaces, reason=detect().why_not)
SECONDS = 1.0
LIMITS = Limits(seconds=SECONDS, memory_mb=256)
FORGED = """
import os
for fd in range(3, 64):
    try:
        os.write(fd, bytes(64))
    except OSError:
        pass
"""
# name -> (source, statuses it may end in)
HOSTILE = {
    "loop": ("while True: pass", {"timeout"}),
    "sleep": ("import time\ntime.sleep(600)", {"timeout"}),
    "fork bomb": ("import os\nwhile True:\n    os.fork()", {"error", "timeout"}),
    "stubborn fork bomb": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        {"timeout"},
    ),
    "orphans": (
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0:\n            time.sleep(600)\n        os._exit(0)\n",
        {"ok"},
    ),
    "threads": (
        "import threading, time\nfor _ in range(1000):\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        {"error", "timeout"},
    ),
    "8 GB": ("x = bytearray(8 << 30)", {"memory"}),
    "8 GB in pieces": (
        "x = []\nwhile True:\n    x.append(bytearray(1 << 20))",
        {"memory", "timeout"},
    ),
    "8 GB over children": (
        "import os\nfor _ in range(64):\n    try:\n        if os.fork() == 0:\n"
        "            x = b'1' * (128 << 20)\n            os._exit(0)\n    except OSError:\n"
        "        pass\n",
        {"ok", "timeout"},
    ),
    "1 GB print": ("for _ in range(1 << 10):\n    print('x' * (1 << 20))", {"output_limit"}),
    "1 GB of errors": (
        "import sys\nfor _ in range(1 << 10):\n    sys.stderr.write('x' * (1 << 20))",
        {"output_limit"},
    ),
    "fill the disk": (
        "for i in range(1000):\n    open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))",
        {"error", "timeout"},
    ),
    "internet": ("import socket\nsocket.create_connection(('192.0.2.1', 80))", {"error"}),
    "unix socket": ("import socket\nsocket.socket(socket.AF_UNIX)", {"error"}),
    "proc": ("print(open('/proc/1/environ').read())", {"error"}),
    "passwd": ("print(open('/etc/passwd').read())", {"error"}),
    "home": ("import os\nprint(os.listdir('/root') or os.listdir('/home'))", {"error"}),
    "write the interpreter": ("open('/python/lib/x', 'w')", {"error"}),
    "write the root": ("open('/x', 'w')", {"error"}),
    "kill all": ("import os\nos.kill(-1, 9)", {"error"}),
    "kill the runner": (
        "import os, signal\nfor s in (9, 15, 2, 19, 11):\n    os.kill(1, s)\nos.kill(0, 9)",
        {"crash", "error"},
    ),
    "kill the parent": ("import os\nos.kill(os.getppid(), 9)\nprint('alive')", {"ok", "error"}),
    "raise a limit": (
        "import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))",
        {"error"},
    ),
    "new namespace": (
        "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0",
        {"error"},
    ),
    "mount": (
        "import ctypes\nassert ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, 0) == 0",
        {"error"},
    ),
    "trace the runner": (
        "import ctypes\nassert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0",
        {"error"},
    ),
    "another program": ("import os\nos.execv('/python/bin/python3', ['python3'])", {"error"}),
    "become root": ("import os\nos.setuid(0)", {"error"}),
    "forged results": (FORGED, {"ok"}),
}


@pytest.fixture(scope="module", params=["warm", "cold"])
def layers(request):
    """Programs forked from a warm interpreter, and one start of bubblewrap per program."""
    if request.param == "warm" and not detect().warm:
        pytest.skip(detect().why_cold)
    return replace(detect(), zygote=request.param == "warm")


@pytest.fixture(scope="module")
def pool(layers):
    with Pool(LIMITS, layers=layers) as shared:
        yield shared


def one(pool: Pool, source: str):
    return pool.run(Program(source, ("",)))[0]


@pytest.mark.parametrize("name", HOSTILE)
def test_case_38_each_ends_in_time_as_a_named_status(pool, name):
    source, allowed = HOSTILE[name]
    one(pool, "pass")  # the spare is warm: what follows is the program's own time
    began = time.monotonic()
    outcome = one(pool, source)
    assert time.monotonic() - began < SECONDS + 1.0
    assert outcome.status in allowed, outcome
    after = one(pool, "print('next')")
    assert (after.status, after.output) == ("ok", b"next\n")


def test_case_38_host_secrets_stay_outside(pool, tmp_path, monkeypatch):
    monkeypatch.setenv("RAGEN2_SECRET", "token-1234")
    (tmp_path / "secret").write_text("token-1234")
    secret = str(tmp_path / "secret")
    source = f"""
import os, sys
found = [str(dict(os.environ)), str(sys.argv), str(sys.path)]
for path in ("/proc/self/environ", "/proc/1/environ", "/proc/self/maps", {secret!r}, "/oldroot",
             "/root", "/home", "/etc", "/work", "/var", "/usr/bin"):
    try:
        found.append(open(path).read() if not os.path.isdir(path) else str(os.listdir(path)))
    except OSError:
        pass
print(found)
"""
    outcome = one(pool, source)
    assert outcome.status == "ok"
    assert outcome.output.startswith(b"['{}', \"['solution.py']\"")
    assert b"token-1234" not in outcome.output
    assert outcome.output.count(b"[") == 3  # the list, argv and path: no file and no folder more


def test_case_38_nothing_is_written_outside(pool, tmp_path):
    before = set(os.listdir("/tmp"))
    target = tmp_path / "made"
    source = f"""
for path in ({str(target)!r}, "/usr/lib/x", "/python/runner.pyc", "/dev/x", "/x", "../x"):
    try:
        open(path, "w").write("x")
        print("wrote", path)
    except OSError:
        pass
open("/tmp/ragen2-inside", "w").write("x")
"""
    outcome = one(pool, source)
    assert (outcome.status, outcome.output) == ("ok", b"")
    assert not target.exists()
    assert "ragen2-inside" not in set(os.listdir("/tmp")) - before


def test_case_38_signals_do_not_reach_the_host(pool):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        pids = (os.getpid(), bystander.pid, os.getppid())
        source = f"""
import os
for pid in {pids!r}:
    for number in (9, 15):
        try:
            os.kill(pid, number)
            print("sent")
        except OSError:
            pass
"""
        outcome = one(pool, source)
        # inside, numbers name other processes or none; 1 is protected
        assert outcome.status in ("ok", "crash")
        assert bystander.poll() is None
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()


def test_case_38_the_loopback_of_the_host_is_out_of_reach(pool):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        source = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=0.3)"
        assert one(pool, source).status == "error"
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_forged_frame_is_only_output(pool):
    # the frame of an "ok" run with the output b"42", printed by a program that fails
    source = (
        "import os, struct\nos.write(1, struct.pack('<BdII', 0, 0.0, 2, 0) + b'42')\nos._exit(1)"
    )
    outcomes = pool.run(Program(source, ("", "")))
    assert [o.status for o in outcomes] == ["error", "error"]
    assert all(o.output == b"\0" * 9 + b"\2\0\0\0" + b"\0" * 4 + b"42" for o in outcomes)


def descendants() -> set[int]:
    """Living processes below this one, by /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    below, grew = {os.getpid()}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        grew, below = bool(more), below | more
    return below - {os.getpid()}


def settled(before: set[int]) -> set[int]:
    """Processes that are still there after the kernel had two seconds to end killed ones."""
    end = time.monotonic() + 2
    while descendants() - before and time.monotonic() < end:
        time.sleep(0.02)
    return descendants() - before


@pytest.fixture
def own_temporary_folder(tmp_path, monkeypatch):
    """A place for temporary files that no other process uses; empty when nothing is left over."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def grade_many(count: int, layers, folder) -> None:
    """Grade hostile programs in turn and check that the machine is as before."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: an escaped orphan would become ours
    with Pool(LIMITS, layers=layers) as first:
        first.run(Program("", ("",)))
    processes, handles = descendants(), len(os.listdir("/proc/self/fd"))
    names = list(HOSTILE)
    with Pool(LIMITS, layers=layers) as pool:
        futures = [
            (name, pool.submit(Program(HOSTILE[name][0], ("",))))
            for name in (names[i % len(names)] for i in range(count))
        ]
        for name, future in futures:
            (outcome,) = future.result()
            assert outcome.status in HOSTILE[name][1], (name, outcome)
            assert outcome.seconds < SECONDS + 1.0
    libc.prctl(36, 0, 0, 0, 0)
    assert settled(processes) == set()
    assert len(os.listdir("/proc/self/fd")) == handles
    assert list(folder.iterdir()) == []


def test_case_37_counts_return_to_the_start(layers, own_temporary_folder):
    grade_many(len(HOSTILE), layers, own_temporary_folder)


@pytest.mark.slow
def test_case_37_five_hundred_hostile_gradings(layers, own_temporary_folder):
    grade_many(500, layers, own_temporary_folder)
