"""Programming problems: write a whole program, graded on hidden tests in the sandbox."""

import logging

from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.deep_coder.grade import MAX_SOURCE, Grade, extract, grade
from ragen2_cli.envs.deep_coder.problems import Problem, load_rows, parse
from ragen2_cli.envs.options import whole
from ragen2_cli.errors import UserError
from ragen2_cli.sandbox import Limits, SandboxError, detect, shared_pool

__all__ = ["DeepCoder"]

_log = logging.getLogger(__name__)


class DeepCoder(TextEnv):
    """Write a program; the return is the best share of tests it passes.

    One program ends the episode. With feedback turns, a program that does not pass everything may
    be replaced after hearing how many tests passed and how the first failing one ended; each turn
    pays what it adds to the best share so far. A sandbox that fails, or a problem without tests,
    gives no score (None).

    Args:
        data: Rows in a DeepCoder or LiveCodeBench layout (jsonl, json, parquet, hub name); empty
            uses the embedded problems.
        seconds: Wall clock of one program, all its tests together; 0.1 to 60.
        memory_mb: Address space of each of its processes; 64 to 8192.
        feedback_turns: Further tries after the first, 0 to 9.
        unsafe_sandbox: Run even where neither namespaces nor Landlock isolate the program.
    """

    name = "deep_coder"
    instruction = (
        "Solve the programming problem in Python 3 with the standard library only. The answer is "
        "the whole program and nothing else. It is run on hidden tests, each with its own input; "
        "the reward is the share of tests that it passes."
    )
    actions = None
    actions_per_turn = 1
    concurrent = True

    def __init__(
        self,
        data: str = "",
        seconds: float = 3.0,
        memory_mb: int = 512,
        feedback_turns: int = 0,
        unsafe_sandbox: bool = False,
    ) -> None:
        if not 0.1 <= seconds <= 60:
            raise UserError(f"environment 'deep_coder': seconds must be 0.1 to 60, not {seconds}")
        self.data = data
        self.unsafe = unsafe_sandbox
        self.limits = Limits(
            seconds=float(seconds), memory_mb=whole(self.name, "memory_mb", memory_mb, 64, 8192)
        )
        tries = 1 + whole(self.name, "feedback_turns", feedback_turns, 0, 9)
        self.max_turns = self.max_actions = tries
        if not unsafe_sandbox:
            detect().require()
        self._problem: Problem | None = None
        self._best = 0.0
        self._tries = 0
        self._grade: Grade | None = None
        self._done = True

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Start the problem of row ``seed`` modulo their number."""
        rows = load_rows(self.data)
        self._problem = parse(*rows[seed % len(rows)])
        self._best, self._tries, self._grade, self._done = 0.0, 0, None, False
        return self.observe()

    def step(self, action: str) -> StepResult:
        """Grade one program."""
        if self._done or self._problem is None:
            raise RuntimeError("the episode is over; call reset")
        source = extract(action)
        if not source.strip() or len(source) > MAX_SOURCE:
            return StepResult(reward=0.0, valid=False)
        self._tries += 1
        try:
            pool = shared_pool(self.limits, unsafe=self.unsafe)
            self._grade = grade(self._problem, source, pool)
        except SandboxError as error:
            _log.warning("deep_coder: no score for this program: %s", error)
            self._done = True
            return StepResult(reward=None, done=True)
        share = self._grade.share
        if share is None:
            self._done = True
            return StepResult(reward=None, done=True)
        reward = max(0.0, share - self._best)
        self._best = max(self._best, share)
        self._done = share == 1.0 or self._tries >= self.max_turns
        info = {"passed": float(self._grade.passed), "tests": float(self._grade.total)}
        return StepResult(reward, self._done, share == 1.0, info=info)

    def observe(self) -> str:
        """Return the problem, its starter code and what is known of the last program."""
        if self._problem is None:
            raise RuntimeError("call reset first")
        parts = [self._problem.statement]
        if self._problem.starter:
            parts.append(f"Start from this code:\n{self._problem.starter}")
        if self._grade is not None:
            parts.append(_feedback(self._grade))
        return "\n\n".join(parts)

    def key(self) -> str:
        """Return the statement."""
        if self._problem is None:
            raise RuntimeError("call reset first")
        return self._problem.statement


def _feedback(last: Grade) -> str:
    """Say how the last program did, without inputs or expected outputs."""
    text = f"Your last program passed {last.passed} of {last.total} tests."
    first = next((verdict for verdict in last.verdicts if verdict != "passed"), None)
    if first is None:
        return text
    return f"{text} The first failing test ended with: {last.error or first}."
