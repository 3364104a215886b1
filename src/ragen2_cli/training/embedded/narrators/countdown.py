"""Countdown's demonstrator: tries one chain of operations aloud and answers with it.

Its arithmetic is right; a share of the chains hits the target, the others are random.
"""

from itertools import permutations, product

import numpy as np

from ragen2_cli.envs.base import TextEnv

RIGHT = 0.3
OPERATIONS = "+-*"


def speak(env: TextEnv, message: str, rng: np.random.Generator) -> tuple[str, str]:
    """Return (reasoning, answer)."""
    words = message.split()
    target, numbers = int(words[1]), [int(word) for word in words[3:]]
    chains = [
        (order, operations)
        for order in sorted(set(permutations(numbers)))
        for operations in product(OPERATIONS, repeat=len(numbers) - 1)
    ]
    hits = [chain for chain in chains if value(*chain) == target]
    pool = hits if hits and rng.random() < RIGHT else chains
    order, operations = pool[int(rng.integers(len(pool)))]
    steps, total = [], order[0]
    text = str(total)
    for operation, number in zip(operations, order[1:], strict=True):
        after = _apply(total, operation, number)
        steps.append(f"{total} {operation} {number} is {after}")
        text = f"({text}){operation}{number}" if len(steps) > 1 else f"{text}{operation}{number}"
        total = after
    return f"target {target}. {', '.join(steps)}", text


def value(order: tuple[int, ...], operations: tuple[str, ...]) -> int:
    """Return the value of a chain, computed from left to right."""
    total = order[0]
    for operation, number in zip(operations, order[1:], strict=True):
        total = _apply(total, operation, number)
    return total


def _apply(left: int, operation: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[operation]
