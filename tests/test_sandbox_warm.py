"""Programs forked from one warm interpreter: as far apart as those that start alone.

Guarantees:
1. Programs in a row share no namespace, file, module, memory or process.
2. Nothing of the warm interpreter is open, visible or allowed inside.
3. It collects nothing; one that dies is replaced and no program is lost.
4. It ends with the process that started it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ragen2_cli.sandbox import Limits, Pool, Program, SandboxError, detect
from ragen2_cli.sandbox.launch import Host, Sandbox, compile_runner, why_not_warm

pytestmark = pytest.mark.skipif(not detect().warm, reason=detect().why_cold or detect().why_not)
LIMITS = Limits(seconds=10.0)
# as this user's programs run, and as those of a user who is not root
KINDS = {"own": detect(), "user namespace": replace(detect(), root=False)}


@pytest.fixture(scope="module", params=KINDS)
def layers(request):
    return KINDS[request.param]


@pytest.fixture
def pool(layers):
    with Pool(LIMITS, workers=1, layers=layers) as own:
        yield own


@pytest.fixture
def host(layers, tmp_path):
    own = Host(layers, LIMITS, compile_runner(tmp_path))
    yield own
    own.close()


def one(pool: Pool, source: str):
    return pool.run(Program(source, ("",)))[0]


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def zygote_of(pool: Pool) -> int:
    """The warm interpreter of the pool's one worker: bwrap's only child."""
    (worker,) = pool._workers.values()
    return child_of(worker._host.process.pid)


def first_process(sandbox: Sandbox) -> int:
    """Number, here, of the first process of a sandbox's namespaces."""
    assert sandbox._ready()
    lines = Path(f"/proc/self/fdinfo/{sandbox._handle}").read_text().splitlines()
    sandbox._ready = lambda: True
    return int(next(line.split()[1] for line in lines if line.startswith("Pid:")))


def gone(pid: int) -> bool:
    """Whether a process is gone or only waits to be reaped, after at most five seconds."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_programs_in_a_row_share_nothing(pool):
    leave = """
import builtins, os, sys, time
open("/tmp/left", "w").write("x")
os.environ["LEFT"] = "x"
sys.modules["left"] = builtins.left = sys
sys.path.append("/tmp")
os.nice(5)
os.umask(0o777)
try:
    open("/dev/shm/left", "w").write("x")
except OSError:
    pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        while True:
            open("/tmp/alive", "w").write("x")
            time.sleep(0.001)
    os._exit(0)
for _ in range(1000):  # until the grandchild is there
    if os.path.exists("/tmp/alive"):
        break
    time.sleep(0.002)
print(sorted(os.listdir("/tmp")))
"""
    look = """
import builtins, os, sys
print(os.listdir("/tmp"), dict(os.environ), "left" in sys.modules, hasattr(builtins, "left"),
      "/tmp" in sys.path, os.nice(0), oct(os.umask(0)), os.path.exists("/dev/shm"))
seen = []
for pid in range(3, 2000):
    try:
        os.kill(pid, 0)
        seen.append(pid)
    except ProcessLookupError:
        pass
print(os.getpid(), os.getppid(), seen)
"""
    before = one(pool, look)
    assert one(pool, leave).output == b"['alive', 'left']\n"
    after = one(pool, look)
    assert after.output == before.output
    assert after.output.startswith(b"[] {} False False False 0 ")
    assert after.output.endswith(b"False\n2 1 []\n")


def test_memory_that_outlives_its_process_is_refused_or_in_its_own_namespace(pool):
    # IPC_PRIVATE is 0, so key 7 names one place for all who share the namespace
    unfiltered = replace(pool.layers, seccomp=False)
    source = "import ctypes; print(ctypes.CDLL(None).shmget(7, 4096, {flags}))"
    make, find = source.format(flags=0o1666), source.format(flags=0)
    assert one(pool, make).output == b"-1\n"
    with Pool(LIMITS, workers=1, layers=unfiltered) as own:
        assert int(one(own, make).output) >= 0
        assert one(own, find).output == b"-1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the namespaces of others")
def test_each_program_has_its_own_namespaces(host):
    sandboxes = [Sandbox(host) for _ in range(2)]
    pids = [first_process(sandbox) for sandbox in sandboxes]
    pids = [child_of(host.process.pid), *pids]
    kinds = ["pid", "mnt", "net", "ipc", "uts"]
    kinds += ["user"] if "user" in (Path("/proc") / str(pids[0]) / "cmdline").read_text() else []
    for kind in kinds:
        assert len({os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids}) == 3, kind
    for sandbox in sandboxes:
        sandbox.close()
    assert [gone(pid) for pid in pids] == [False, True, True]


def test_no_capability_is_left_and_the_user_is_another(host):
    sandbox = Sandbox(host)
    status = Path(f"/proc/{first_process(sandbox)}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    user = sandbox.run(Program("import os; print(*os.getresuid(), *os.getgroups())", ("",)))
    assert b"0" not in user[0].output.split()


def test_nothing_of_the_warm_interpreter_is_open_inside(pool):
    source = """
import os, stat
kinds = {}
for fd in range(4096):
    try:
        kinds[fd] = stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        pass
print(kinds)
"""
    # three pipes of its own
    assert one(pool, source).output == b"{0: True, 1: True, 2: True}\n"


@pytest.mark.parametrize("filtered", [True, False])
def test_mounts_cannot_be_changed_inside(layers, filtered):
    source = """
import ctypes
libc = ctypes.CDLL(None)
print(libc.umount2(b"/tmp", 2), libc.umount2(b"/", 2), libc.setns(0, 0), libc.chroot(b"/tmp"),
      libc.mount(b"x", b"/tmp", b"tmpfs", 0, None), libc.mount(b"/", b"/", None, 0x1020, None),
      libc.mount(b"/usr", b"/tmp", None, 0x1000, 0), libc.mount(b"proc", b"/tmp", b"proc", 0, None))
"""
    bare = layers if filtered else replace(layers, seccomp=False, landlock=0)
    with Pool(LIMITS, workers=1, layers=bare) as own:
        assert one(own, source).output.split() == [b"-1"] * 8


def test_a_program_that_kills_all_it_sees_does_not_stop_the_next(layers):
    source = """
import os
for pid in (*range(2000, 0, -1), -1, 0):
    try:
        if pid != os.getpid():
            os.kill(pid, 9)
    except OSError:
        pass
"""
    bare = replace(layers, seccomp=False, landlock=0)
    for own in (layers, bare):
        with Pool(Limits(seconds=1.0), workers=1, layers=own) as pool:
            one(pool, "")
            warm = zygote_of(pool)
            for _ in range(3):
                assert one(pool, source).status in ("crash", "timeout")
                assert one(pool, "print(1)").output == b"1\n"
            assert zygote_of(pool) == warm


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the handles of others")
def test_it_collects_no_handles_children_or_mounts(pool):
    def counts() -> tuple[int, int, int]:
        place = Path(f"/proc/{zygote_of(pool)}")
        time.sleep(0.2)
        children = len((place / "task" / place.name / "children").read_text().split())
        mounts = len((place / "mountinfo").read_text().splitlines())
        return children, len(os.listdir(place / "fd")), mounts

    one(pool, "")
    before = counts()
    for i in range(20):
        one(pool, "import os\nos.fork()\nopen('/tmp/x', 'w').write('x')" if i % 2 else "1/0")
    assert counts() == before
    assert before[:2] == (1, 3)  # the spare; standard input, output and error


def test_one_that_was_killed_is_replaced_and_no_program_is_lost(pool):
    assert one(pool, "print(1)").output == b"1\n"
    killed = zygote_of(pool)
    os.kill(killed, signal.SIGKILL)
    assert gone(killed)
    assert one(pool, "print(2)").output == b"2\n"
    running = pool.submit(Program("import time\ntime.sleep(0.5)\nprint(3)", ("",)))
    time.sleep(0.2)
    again = zygote_of(pool)
    assert again != killed
    os.kill(again, signal.SIGKILL)
    assert running.result()[0].output == b"3\n"


def test_one_that_never_answers_is_nobodys_score(tmp_path):
    # prints its arguments and ends
    with Pool(LIMITS, layers=replace(detect(), bubblewrap="/bin/echo")) as pool:
        for _ in range(2):
            with pytest.raises(SandboxError, match="did not start"):
                one(pool, "print(1)")
    assert why_not_warm(replace(detect(), bubblewrap="/bin/echo"))
    assert "no/such/bwrap" in why_not_warm(replace(detect(), bubblewrap="/no/such/bwrap"))


def test_the_hard_deadline_ends_a_first_process_that_hangs(layers, tmp_path):
    host = Host(layers, Limits(seconds=0.5), compile_runner(tmp_path))
    try:
        sandbox = Sandbox(host)
        pid = first_process(sandbox)
        stop = threading.Timer(0.2, os.kill, (pid, signal.SIGSTOP))
        stop.start()
        (outcome,) = sandbox.run(Program("while True: pass", ("",)))
        assert outcome.status == "timeout"
        assert gone(pid)
        assert Sandbox(host).run(Program("print(1)", ("",)))[0].output == b"1\n"
    finally:
        host.close()


def test_all_ends_with_the_process_that_started_it(tmp_path):
    code = """
import sys, time
from ragen2_cli.sandbox import Limits, Pool, Program
pool = Pool(Limits(seconds=60.0))
pool.run(Program("", ("",)))
for _ in range(2):
    pool.submit(Program("import os\\nos.fork()\\nwhile True: pass", ("",)))
time.sleep(0.5)
print("running", flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert parent.stdout.readline() == b"running\n"
        below = descendants(parent.pid)
        assert len(below) >= 8  # per worker: bwrap, the warm one, and three of a program
    finally:
        parent.kill()
        parent.communicate()
    assert [pid for pid in below if not gone(pid)] == []


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(number) for file in children for number in file.read_text().split()]
    return found + [lower for child in found for lower in descendants(child)]
