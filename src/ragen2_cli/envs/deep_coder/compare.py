"""Whether a program's output is what was expected; runs outside the sandbox, on captured bytes.

Numbers are compared as text where they are whole (any number of digits) and within a tolerance of
1e-6, relative or absolute, where the expected one has a decimal point or an exponent.
"""

import json
import math
import re
from typing import Any

TOLERANCE = 1e-6
_WHOLE = re.compile(r"([+-]?)0*(\d+)(?:\.0*)?")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?")
_LONGEST_DECIMAL = 400


def same_output(output: bytes, expected: str) -> bool:
    """Whether printed text agrees with the expected text.

    Line ends (CRLF), spaces at the end of lines and empty lines at the end do not count; the lines
    must agree in number, and within a line the words, separated by white space.
    """
    try:
        got = _lines(output.decode("utf-8"))
    except UnicodeDecodeError:
        return False
    want = _lines(expected)
    return len(got) == len(want) and all(map(_same_line, got, want))


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_line(got: str, want: str) -> bool:
    if got == want:
        return True
    got_words, want_words = got.split(), want.split()
    return len(got_words) == len(want_words) and all(map(same_word, got_words, want_words))


def same_word(got: str, want: str) -> bool:
    """Whether two words agree: as text, as whole numbers, or as decimals within the tolerance."""
    if got == want:
        return True
    got_whole, want_whole = _WHOLE.fullmatch(got), _WHOLE.fullmatch(want)
    if want_whole and "." not in want:
        return got_whole is not None and _canonical(got_whole) == _canonical(want_whole)
    if max(len(got), len(want)) > _LONGEST_DECIMAL:
        return False
    if not _DECIMAL.fullmatch(got) or not _DECIMAL.fullmatch(want):
        return False
    return _close(float(got), float(want))


def _canonical(number: re.Match[str]) -> str:
    sign, digits = number.groups()
    return "-" + digits if sign == "-" and digits != "0" else digits


def _close(got: float, want: float) -> bool:
    return math.isclose(got, want, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def same_result(output: bytes, expected: Any) -> bool:
    """Whether a function's result, as JSON, agrees with the expected value.

    Tuples count as lists. An expected value that data sets wrap in a list of one also agrees bare.
    """
    try:
        got = json.loads(output)
    except (ValueError, RecursionError):
        return False
    if same_value(got, expected):
        return True
    return isinstance(expected, list) and len(expected) == 1 and same_value(got, expected[0])


def same_value(got: Any, want: Any, depth: int = 0) -> bool:
    """Whether two JSON values agree, floats within the tolerance; true and 1 are different."""
    if depth > 100 or isinstance(got, bool) != isinstance(want, bool):
        return False
    if isinstance(want, float) and isinstance(got, int | float):
        return got == want or (abs(got) < 1e300 and _close(float(got), want))
    if isinstance(want, list) and isinstance(got, list):
        pairs = zip(got, want, strict=False)
        return len(got) == len(want) and all(same_value(g, w, depth + 1) for g, w in pairs)
    if isinstance(want, dict) and isinstance(got, dict):
        return got.keys() == want.keys() and all(
            same_value(got[key], want[key], depth + 1) for key in want
        )
    return bool(got == want)
