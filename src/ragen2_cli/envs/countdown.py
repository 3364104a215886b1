"""Countdown: reach a target with each given number used exactly once; one answer."""

from functools import lru_cache

import numpy as np

from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.expressions import NotAnExpression, evaluate, solve
from ragen2_cli.envs.options import whole

MAX_TARGET = 100
RIGHT, WRONG_VALUE, WRONG_NUMBERS = 1.0, 0.1, 0.0


class Countdown(TextEnv):
    """Write an expression of the target's value from the given numbers.

    Observation: ``target 15 numbers 3 5 7``. The first arithmetic expression ends the episode:
    reward 1 for the right value with each number exactly once, 0.1 for the right numbers with
    another value (a division by zero included), else 0. Text that is no expression is invalid.

    Args:
        numbers: How many numbers, 2 to 5.
        largest: Largest number, 3 to 99; the target is from 1 to 100.
    """

    name = "countdown"
    instruction = (
        "Write one arithmetic expression that equals the target. Use every given number exactly "
        "once, with + - * / and parentheses only, and without an equals sign. "
        "For target 15 and numbers 3 5 7 the answer could be 3+5+7. "
        "The right value earns 1; the right numbers with a wrong value earn 0.1."
    )
    actions = None
    max_turns = 1
    max_actions = 1
    actions_per_turn = 1

    def __init__(self, numbers: int = 3, largest: int = 20) -> None:
        self.count = whole(self.name, "numbers", numbers, 2, 5)
        self.largest = whole(self.name, "largest", largest, 3, 99)

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Draw the puzzle of ``seed``; it has at least one solution. There is no noise."""
        target, numbers = generate(seed, self.count, self.largest)
        return self.start(target, list(numbers))

    def start(self, target: int, numbers: list[int]) -> str:
        """Start on a given puzzle instead of a random one."""
        self.target, self.numbers = target, numbers
        self._over = False
        return self.observe()

    def step(self, action: str) -> StepResult:
        """Grade one expression."""
        if self._over:
            raise RuntimeError("the episode is over; call reset")
        try:
            value, used = evaluate(action)
        except NotAnExpression:
            return StepResult(0.0, valid=False)
        self._over = True
        if sorted(used) != sorted(self.numbers):
            return StepResult(WRONG_NUMBERS, done=True)
        right = value == self.target
        return StepResult(RIGHT if right else WRONG_VALUE, done=True, success=right)

    def observe(self) -> str:
        """Return the target and the numbers."""
        return f"target {self.target} numbers {' '.join(map(str, self.numbers))}"

    def key(self) -> str:
        """Return the puzzle whatever the order of its numbers."""
        return f"target {self.target} numbers {' '.join(map(str, sorted(self.numbers)))}"

    def optimal_actions(self) -> frozenset[str]:
        """Return one right expression; empty once the episode is over."""
        answer = None if self._over else solve(self.numbers, self.target)
        return frozenset() if answer is None else frozenset({answer})


@lru_cache(maxsize=4096)
def generate(seed: int, count: int, largest: int) -> tuple[int, tuple[int, ...]]:
    """Return (target, numbers): random operations on random numbers, redrawn until 1 to 100."""
    rng = np.random.default_rng((seed, 0xC0))
    while True:
        numbers = [int(number) for number in rng.integers(1, largest + 1, count)]
        text = str(numbers[0])
        for number in numbers[1:]:
            text = f"({text}){'+-*/'[int(rng.integers(4))]}{number}"
        value, _ = evaluate(text)
        if value is not None and value.denominator == 1 and 1 <= value <= MAX_TARGET:
            order = rng.permutation(count)
            return int(value), tuple(numbers[int(at)] for at in order)
