"""Arithmetic that a stranger wrote: read without eval, exact, and bounded in size and time.

Grammar: whole numbers in ASCII digits, ``+ - * /``, parentheses and spaces. No sign before a
number, no power, no other symbol (a typographic times sign is refused, not guessed).
"""

import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_LENGTH = 200
MAX_DIGITS = 6
_TOKEN = re.compile(r" *([0-9]+|[-+*/()]) *")
_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
_APPLY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


class NotAnExpression(ValueError):
    """The text is outside the grammar or over a bound."""


def evaluate(text: str) -> tuple[Fraction | None, list[int]]:
    """Return the exact value and the numbers in the order of their appearance.

    The value is None when the expression divides by zero. Two stacks, no recursion: linear time.

    Raises:
        NotAnExpression: For anything outside the grammar, more than 200 characters or a number
            of more than 6 digits.
    """
    numbers: list[int] = []
    values: list[Fraction | None] = []
    pending: list[str] = []
    operand_next = True
    for token in _tokens(text):
        if token.isdigit():
            _expect(operand_next)
            numbers.append(int(token))
            values.append(Fraction(numbers[-1]))
            operand_next = False
        elif token == "(":
            _expect(operand_next)
            pending.append(token)
        elif token == ")":
            _expect(not operand_next)
            while pending and pending[-1] != "(":
                _reduce(values, pending.pop())
            _expect(bool(pending))
            pending.pop()
        else:
            _expect(not operand_next)
            while pending and pending[-1] != "(" and _RANK[pending[-1]] >= _RANK[token]:
                _reduce(values, pending.pop())
            pending.append(token)
            operand_next = True
    _expect(not operand_next and "(" not in pending)
    while pending:
        _reduce(values, pending.pop())
    return values[0], numbers


def _tokens(text: str) -> list[str]:
    _expect(len(text) <= MAX_LENGTH)
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(match[1]) > MAX_DIGITS:
            raise NotAnExpression(text[:MAX_LENGTH])
        found.append(match[1])
        at = match.end()
    return found


def _expect(fine: bool) -> None:
    if not fine:
        raise NotAnExpression("not an arithmetic expression")


def _reduce(values: list[Fraction | None], symbol: str) -> None:
    """Replace the two topmost values by the result; None stands for a division by zero."""
    right, left = values.pop(), values.pop()
    if left is None or right is None or (symbol == "/" and right == 0):
        values.append(None)
    else:
        values.append(_APPLY[symbol](left, right))


def solve(numbers: list[int], target: int) -> str | None:
    """Return an expression of value ``target`` that uses each number exactly once, or None.

    Depth-first over all ways to join two values; meant for up to five numbers. The result depends
    on nothing but the arguments.
    """
    found = _search([(Fraction(number), str(number)) for number in numbers], Fraction(target))
    return found[1:-1] if found is not None and found.startswith("(") else found


def _search(values: list[tuple[Fraction, str]], target: Fraction) -> str | None:
    if len(values) == 1:
        return values[0][1] if values[0][0] == target else None
    for i, (left, left_text) in enumerate(values):
        for j, (right, right_text) in enumerate(values):
            if i == j:
                continue
            rest = [value for at, value in enumerate(values) if at not in (i, j)]
            for symbol, apply in _APPLY.items():
                if (symbol in "+*" and i > j) or (symbol == "/" and right == 0):
                    continue
                joined = (apply(left, right), f"({left_text}{symbol}{right_text})")
                answer = _search([joined, *rest], target)
                if answer is not None:
                    return answer
    return None
