"""The sandbox with programs that mean well, and its own failures.

They are skipped where bubblewrap cannot make namespaces; CI installs it. Programs that mean harm
are in test_sandbox_hostile.py.
"""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from ragen2_cli.errors import UserError
from ragen2_cli.sandbox import Limits, Pool, Program, SandboxError, detect
from ragen2_cli.sandbox.launch import Host, Sandbox, compile_runner
from ragen2_cli.sandbox.types import STATUSES

LIMITS = Limits(seconds=10.0)
pytestmark = pytest.mark.skipif(not detect().namespaces, reason=detect().why_not)


@pytest.fixture(scope="module", params=["warm", "cold"])
def pool(request):
    """Programs forked from a warm interpreter, and one start of bubblewrap per program."""
    if request.param == "warm" and not detect().warm:
        pytest.skip(detect().why_cold)
    with Pool(LIMITS, layers=replace(detect(), zygote=request.param == "warm")) as shared:
        yield shared


def run(pool: Pool, source: str, *inputs: str):
    return pool.run(Program(source, inputs or ("",)))


def test_one_outcome_per_input_in_order(pool):
    outcomes = run(pool, "print(int(input()) * 2)", "21", "x", "4")
    assert [(o.status, o.output) for o in outcomes] == [
        ("ok", b"42\n"),
        ("error", b""),
        ("ok", b"8\n"),
    ]
    assert "ValueError" in outcomes[1].errors


def test_case_40_ways_of_reading_and_writing(pool):
    # a crlf line, all of the input at once, bytes to the buffer, and open(0)
    assert run(pool, "print(repr(input()))", "a b\r\n")[0].output == b"'a b'\n"
    total = "import sys; print(sum(map(int, sys.stdin.read().split())))"
    assert run(pool, total, "1 2\n3")[0].output == b"6\n"
    raw = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    assert run(pool, raw, "abc")[0].output == b"cba"
    assert run(pool, "print(open(0).read())", "zero")[0].output == b"zero\n"


def test_case_40_a_ten_thousand_digit_int(pool):
    # 10**9999 has 10,000 digits
    output = run(pool, "n = int(input()); print(n * 10)", "1" + "0" * 9998)[0].output
    assert output == b"1" + b"0" * 9999 + b"\n"


def test_large_input_and_output_pass_through(pool):
    text = "0123456789" * 50_000
    with Pool(replace(LIMITS, output_bytes=1 << 20)) as own:
        assert own.run(Program("print(input())", (text,)))[0].output == text.encode() + b"\n"
    # a program that ignores its input ends all the same
    assert run(pool, "print(1)", text)[0].output == b"1\n"


def test_a_program_is_main_and_threads_and_exit_handlers_finish(pool):
    source = """
import atexit, threading, time
def late():
    time.sleep(0.05)
    print("thread")
atexit.register(print, "handler")
if __name__ == "__main__":
    threading.Thread(target=late).start()
    print("main")
"""
    assert run(pool, source)[0].output == b"main\nthread\nhandler\n"


def test_what_ends_with_the_program_still_speaks(pool):
    # an object, two in a cycle, and a file that nobody flushed
    source = """
import os
class Last:
    def __init__(self, word):
        self.word = word
    def __del__(self):
        print(self.word)
one, two, three = Last("one"), Last("cycle"), Last("cycle")
two.other, three.other = three, two
file = open(os.dup(1), "w")
file.write("file\\n")
print("main")
"""
    words = run(pool, source)[0].output.decode().split()
    assert sorted(words) == ["cycle", "cycle", "file", "main", "one"]


def test_an_end_that_fails_is_an_error(pool):
    assert run(pool, "import os\nprint(1)\nos.close(1)")[0].status == "error"
    assert run(pool, "import atexit, os\natexit.register(os._exit, 3)")[0].status == "error"


def test_function_and_method_calls_return_json(pool):
    function = Program(
        "def add(a, b):\n    print('noise')\n    return a + b", ([1, 2], [3, 4]), "add"
    )
    assert [o.output for o in pool.run(function)] == [b"3", b"7"]
    method = "class Solution:\n    def pair(self, a):\n        return (a, None, 1.5, 'x')"
    assert pool.run(Program(method, ([1],), "pair"))[0].output == b'[1, null, 1.5, "x"]'
    absent = pool.run(Program("x = 1", ([1],), "f"))[0]
    assert (absent.status, absent.output) == ("error", b"")
    unprintable = pool.run(Program("def f():\n    return object()", ([],), "f"))[0]
    assert unprintable.status == "error"


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("exit()", "ok"),
        ("import sys; sys.exit(3)", "error"),
        ("def f(", "error"),
        ("1/0", "error"),
        ("def f(): f()\nf()", "error"),
        ("import ctypes; ctypes.string_at(0)", "crash"),
        ("import os; os.abort()", "crash"),
        ("x = [0] * 10**12", "memory"),
        ("\ud800", "error"),
    ],
)
def test_statuses(pool, source, status):
    assert run(pool, source)[0].status == status


def test_time_is_shared_by_all_inputs():
    # 1 s for the program: the first input uses it up, the others never start
    with Pool(Limits(seconds=1.0)) as own:
        outcomes = own.run(Program("import time\ntime.sleep(30)", ("", "", "")))
    assert [o.status for o in outcomes] == ["timeout", "not_run", "not_run"]
    assert 0.9 < outcomes[0].seconds < 2.0


def test_a_closed_output_does_not_end_the_run_early():
    with Pool(Limits(seconds=1.0)) as own:
        source = "import os, time\nos.close(1); os.close(2)\ntime.sleep(30)"
        assert own.run(Program(source, ("",)))[0].status == "timeout"


def test_no_inputs_no_outcomes(pool):
    assert pool.run(Program("print(1)", ())) == []


def test_programs_are_independent(pool):
    writer = "open('/tmp/left', 'w').write('x')"
    reader = "import os; print(os.path.exists('/tmp/left'))"
    results = pool.map([Program(writer, ("",)), Program(reader, ("",))] * 3)
    assert [r[0].output for r in results[1::2]] == [b"False\n"] * 3


def test_the_environment_is_empty_and_string_hashes_repeat(pool):
    assert run(pool, "import os; print(dict(os.environ))")[0].output == b"{}\n"
    # PYTHONHASHSEED 0 in the sandbox and here
    code = "print(hash('ragen'), list({'a', 'b', 'c', 'd'}))"
    here = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True
    )
    assert run(pool, code)[0].output == here.stdout


def test_without_isolation_it_refuses_unless_told():
    bare = replace(detect(), namespaces=False, landlock=0, why_not="bwrap is not installed")
    with pytest.raises(UserError, match="--unsafe-sandbox"):
        Pool(layers=bare)
    with Pool(LIMITS, layers=bare, unsafe=True) as own:
        assert run(own, "print(1)")[0].output == b"1\n"


def test_landlock_alone_confines_files_processes_and_signals(tmp_path):
    layers = replace(detect(), namespaces=False)
    if layers.isolation != "landlock":
        pytest.skip("this kernel has no Landlock")
    outside = tmp_path / "file"
    outside.write_text("secret")
    tries = {
        f"print(open({str(outside)!r}).read())": b"",
        f"open({str(tmp_path / 'new')!r}, 'w')": b"",
        "import os; os.fork(); print(1)": b"",
        f"import os; os.kill({os.getpid()}, 9); print(1)": b"",
        "import socket; socket.socket(); print(1)": b"",
        "open('mine', 'w').write('x'); print(open('mine').read())": b"x\n",
    }
    with Pool(LIMITS, layers=layers) as own:
        for source, output in tries.items():
            assert run(own, source)[0].output == output, source
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_sandbox_that_does_not_start_is_nobodys_score(tmp_path):
    broken = replace(detect(), bubblewrap="/bin/false", zygote=False)
    sandbox = Sandbox(Host(broken, LIMITS, compile_runner(tmp_path)))
    with pytest.raises(SandboxError, match="did not start"):
        sandbox.run(Program("print(1)", ("",)))


def test_a_closed_pool_says_so():
    own = Pool(LIMITS)
    own.close()
    own.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        own.run(Program("", ("",)))


def test_a_start_that_fails_is_told_and_the_pool_goes_on():
    broken = replace(detect(), namespaces=True, bubblewrap="/no/such/bwrap")
    with Pool(LIMITS, layers=broken) as own:
        for _ in range(3):
            with pytest.raises(SandboxError, match="no/such/bwrap"):
                own.run(Program("print(1)", ("",)))


def test_a_forked_process_leaves_the_pool_alone(pool):
    child = os.fork()
    if child == 0:
        pool.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert run(pool, "print(1)")[0].output == b"1\n"


def test_the_runner_numbers_the_statuses_as_types_does():
    from ragen2_cli.sandbox import runner

    assert [getattr(runner, name.upper()) for name in STATUSES] == list(range(len(STATUSES)))
