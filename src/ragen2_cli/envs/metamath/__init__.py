"""Math word problems with several attempts: embedded generator, or rows of MetaMathQA."""

import logging
import re
from functools import lru_cache

from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.metamath.answers import MAX_LENGTH, same
from ragen2_cli.envs.metamath.generate import generate
from ragen2_cli.envs.options import whole
from ragen2_cli.envs.rows import field, read_rows
from ragen2_cli.errors import UserError

__all__ = ["MetaMath", "final_answer", "load"]

_log = logging.getLogger(__name__)
_FINAL = re.compile(r"(?:the answer is:?|####)\s*(.+?)\s*$", re.IGNORECASE | re.MULTILINE)


class MetaMath(TextEnv):
    """One question; attempt k pays ``2 ** -(k - 1)`` when it equals the answer, else 0.

    Equality is ``answers.same``: normalized text, then exact rational value. An empty or overlong
    answer is invalid and costs no attempt.
    """

    name = "metamath"
    instruction = (
        "Solve the math problem. The answer is one number or a short expression, for example "
        "12 or 3/4, without units or working. A wrong answer may be tried again for half the "
        "reward each time."
    )
    actions_per_turn = 1

    def __init__(self, data: str = "", attempts: int = 5) -> None:
        """Set up the environment.

        Args:
            data: MetaMathQA rows (jsonl, json, parquet or hub name) with ``query`` and
                ``response``; empty generates problems from the seed.
            attempts: How many valid answers an episode has, 1 to 20.

        Raises:
            UserError: When the data cannot be read or attempts is not from 1 to 20.
        """
        self.data = data
        self.max_turns = self.max_actions = whole(self.name, "attempts", attempts, 1, 20)
        self._question = ""
        self._answer = ""
        self._attempts = 0
        self._last: str | None = None
        self._done = True

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Start the problem of ``seed``; with real data, row ``seed`` modulo their number."""
        if not self.data:
            question, answer = generate(seed)
            self._question, self._answer = question, str(answer)
        else:
            rows = load(self.data)
            self._question, self._answer = rows[seed % len(rows)]
        self._attempts, self._last, self._done = 0, None, False
        return self.observe()

    def step(self, action: str) -> StepResult:
        """Grade one answer."""
        if self._done:
            raise RuntimeError("the episode is over")
        answer = action.strip()
        if not answer or len(answer) > MAX_LENGTH:
            return StepResult(reward=0.0, valid=False)
        self._attempts += 1
        self._last = answer
        right = same(answer, self._answer)
        self._done = right or self._attempts >= self.max_turns
        return StepResult(
            reward=2.0 ** -(self._attempts - 1) if right else 0.0,
            done=self._done,
            success=right,
            info={"attempt": float(self._attempts)},
        )

    def observe(self) -> str:
        """Return the question and, after a wrong answer, which one it was."""
        if self._last is None:
            return self._question
        if self._done:
            return f"{self._question}\nThe last answer was {self._last}. The problem is closed."
        return f"{self._question}\n{self._last} is wrong. Try another answer."

    def key(self) -> str:
        """Return the question."""
        return self._question


def final_answer(response: str) -> str | None:
    """Return what stands behind the last "The answer is:" or "####" of a solution, or None."""
    found = _FINAL.findall(response)
    return found[-1] if found else None


@lru_cache(maxsize=4)
def load(source: str) -> tuple[tuple[str, str], ...]:
    """Read MetaMathQA rows as (question, answer) pairs; rows without a final answer are left out.

    Raises:
        UserError: When a row lacks ``query`` or ``response``, or no row has a final answer.
    """
    pairs = []
    number = -1
    for number, row in read_rows(source):
        where = f"{source} row {number}"
        question = field(row, "query", str, where).strip()
        answer = final_answer(field(row, "response", str, where))
        if question and answer:
            pairs.append((question, answer))
    if not pairs:
        raise UserError(f"{source}: no row's response ends in 'The answer is: ...' or '#### ...'")
    if left_out := number + 1 - len(pairs):
        _log.warning("metamath: %s: %d rows without a final answer left out", source, left_out)
    return tuple(pairs)
