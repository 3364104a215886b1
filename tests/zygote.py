"""Runs ``ragen2`` commands in forked children that meet a fault; started by ``Zygote``.

Everything is imported once, so a child costs no start-up: dozens of real processes can be killed
in a minute. Requests and answers are JSON lines. A child is the whole command, ``main()`` with its
arguments, and its SIGKILL is real.
"""

import json
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

PHASES = ("start", "rollout", "update", "evaluation", "checkpoint")
OWNERS = {
    "rollout": ("ragen2_cli.training.player", "Player", "play_groups"),
    "evaluation": ("ragen2_cli.training.player", "Player", "play_heldout"),
    "update": ("ragen2_cli.training.run_trainer", "RunTrainer", "_compute_loss"),
    "checkpoint": ("ragen2_cli.training.run_trainer", "RunTrainer", "_save_checkpoint"),
}


class Zygote:
    """The test's end: a process from which children are forked."""

    def __init__(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        )

    def run(self, *argv: str, **fault: Any) -> dict[str, Any]:
        """Run one command with a fault; return exit code, signal, phase of the end and stderr."""
        self._process.stdin.write(json.dumps({"argv": argv, "fault": fault}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it; a child that is still running ends with its next answer."""
        self._process.stdin.close()
        self._process.kill()
        self._process.wait(30)


class Watched:
    """Knows in which phase a child is, in memory that outlives it, and strikes where asked."""

    def __init__(self, fault: dict[str, Any], page: mmap.mmap) -> None:
        self.fault, self.page = fault, page
        self.entered: Counter[str] = Counter()

    def install(self) -> None:
        """Wrap the methods that make up the phases."""
        for phase, (module, owner, name) in OWNERS.items():
            cls = getattr(__import__(module, fromlist=[owner]), owner)
            setattr(cls, name, self._wrapped(phase, getattr(cls, name)))
        # The backward pass counts as update as well; rollouts inside it keep their own name.
        cls = __import__(OWNERS["update"][0], fromlist=["RunTrainer"]).RunTrainer
        cls.training_step = self._wrapped("update", cls.training_step, counted=False)

    def _wrapped(self, phase: str, method: Any, *, counted: bool = True) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            outer, self.page[0] = self.page[0], PHASES.index(phase)
            self.entered[phase] += counted
            if counted and self._due(phase):
                self._strike()
            try:
                return method(*args, **kwargs)
            finally:
                self.page[0] = outer

        return call

    def _due(self, phase: str) -> bool:
        return self.fault.get("phase") == phase and self.entered[phase] == self.fault["entry"]

    def _strike(self) -> None:
        if "kill_after" in self.fault:
            delay = self.fault["kill_after"]
            threading.Thread(target=_kill_at, args=(delay,), daemon=True).start()
        if "file_limit" in self.fault:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.fault["file_limit"],) * 2)
        if "remove" in self.fault:
            shutil.rmtree(self.fault["remove"])


def _kill_at(delay: float) -> None:
    """End this process after some more CPU time, so that a busy machine changes nothing."""
    end = time.process_time() + delay
    while time.process_time() < end:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


def _refuse_network(attempts: Path) -> None:
    """Note and refuse every connection and every listening port that is not a Unix socket."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        local = event in ("socket.connect", "socket.bind") and isinstance(args[1], str | bytes)
        if event.startswith("socket.") and event != "socket.__new__" and not local:
            with attempts.open("a") as file:
                file.write(f"{event} {args!r}\n")
            raise PermissionError(f"{event} is refused by this test")

    sys.addaudithook(hook)


def _child(argv: list[str], fault: dict[str, Any], page: mmap.mmap, log: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if "user" in fault:
        os.setgroups([])
        os.setgid(fault["user"])
        os.setuid(fault["user"])
    if "refuse_network" in fault:
        _refuse_network(Path(fault["refuse_network"]))
    Watched(fault, page).install()
    from ragen2_cli.app import main

    sys.argv = ["ragen2", *argv]
    main()


def serve() -> None:
    """Answer requests until the input ends."""
    import ragen2_cli.app  # first, as on the command line: it turns telemetry off
    import ragen2_cli.training.run  # noqa: F401 - imports torch, transformers, TRL and PEFT

    page = mmap.mmap(-1, 1)
    for line in sys.stdin:
        request = json.loads(line)
        page[0] = 0
        log = os.memfd_create("log")
        start = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            try:
                _child(request["argv"], request["fault"], page, log)
            except SystemExit as done:
                sys.stderr.flush()
                sys.stdout.flush()
                os._exit(done.code if isinstance(done.code, int) else 1)
            finally:
                import traceback

                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        said = os.pread(log, 1 << 20, 0).decode(errors="replace")
        os.close(log)
        answer = {
            "code": os.waitstatus_to_exitcode(status),
            "phase": PHASES[page[0]],
            "said": said,
            "seconds": time.perf_counter() - start,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
