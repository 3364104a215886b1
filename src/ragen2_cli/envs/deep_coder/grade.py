"""Grades a program on a problem: runs it in the sandbox, compares outside."""

import builtins
import re
from dataclasses import dataclass

from ragen2_cli.envs.deep_coder.compare import same_output, same_result
from ragen2_cli.envs.deep_coder.problems import Problem
from ragen2_cli.sandbox import Outcome, Pool, Program

MAX_SOURCE = 100_000
_FENCE = re.compile(r"```[a-zA-Z0-9+]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_ERROR_NAME = re.compile(r"^([A-Za-z]+)(?::|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Grade:
    """How a program did.

    Attributes:
        passed: Tests whose output agreed.
        total: All tests of the problem.
        verdicts: One word per test: ``passed``, ``wrong answer`` or the sandbox's status.
        error: Name of the built-in exception that ended the first failing test, if one did.
    """

    passed: int
    total: int
    verdicts: tuple[str, ...]
    error: str | None

    @property
    def share(self) -> float | None:
        """``passed / total``; None without tests, because nothing was measured."""
        return self.passed / self.total if self.total else None


def extract(answer: str) -> str:
    """Return the program of an answer: its last fenced block, or all of it without a fence."""
    blocks = _FENCE.findall(answer)
    return (blocks[-1] if blocks else answer).strip("\n")


def grade(problem: Problem, source: str, pool: Pool) -> Grade:
    """Run a program on all tests of a problem; each runs in a process of its own.

    Only inputs go into the sandbox. A run that did not end with status ``ok`` fails its test
    whatever it printed.

    Raises:
        SandboxError: When the sandbox itself failed.
    """
    if not problem.tests:
        return Grade(0, 0, (), None)
    inputs = tuple(given for given, _ in problem.tests)
    outcomes = pool.run(Program(source, inputs, problem.function))
    verdicts = tuple(
        _verdict(outcome, wanted, problem.function is not None)
        for outcome, (_, wanted) in zip(outcomes, problem.tests, strict=True)
    )
    failed = next((o for o, v in zip(outcomes, verdicts, strict=True) if v == "error"), None)
    return Grade(
        passed=verdicts.count("passed"),
        total=len(verdicts),
        verdicts=verdicts,
        error=_error_name(failed.errors) if failed else None,
    )


def _verdict(outcome: Outcome, wanted: object, function: bool) -> str:
    if outcome.status != "ok":
        return outcome.status.replace("_", " ")
    if function:
        right = same_result(outcome.output, wanted)
    else:
        right = same_output(outcome.output, str(wanted))
    return "passed" if right else "wrong answer"


def _error_name(errors: str) -> str | None:
    """Return a built-in exception's name only: a message could carry hidden inputs out."""
    names = _ERROR_NAME.findall(errors.strip())
    return names[-1] if names and names[-1] in vars(builtins) else None
