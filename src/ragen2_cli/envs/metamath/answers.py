"""When two written answers are the same: by normalized text, else by exact rational value.

Nothing is evaluated: an answer is a number in one of a few notations, or it is plain text. No
floating point takes part, so 0.1 equals 1/10 and 0.333 does not equal 1/3.
"""

import re
from fractions import Fraction

MAX_LENGTH = 200
_MAX_EXPONENT = 50
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}")
_FRAC = re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_LABEL = re.compile(r"^(?:the\s+)?(?:final\s+)?answer\s*(?:is|:|=)\s*:?\s*|^=\s*", re.IGNORECASE)
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)"
_DECIMAL = re.compile(rf"({_NUMBER})(?:[eE]([+-]?\d+))?")
_RATIO = re.compile(rf"({_NUMBER})/({_NUMBER})")
_AROUND_SLASH = re.compile(r" ?/ ?")
_MIXED = re.compile(r"([+-]?)(\d+) (\d+)/(\d+)")
_UNIT_AFTER = re.compile(rf"(\D*?)({_NUMBER}(?:[ ]?/[ ]?\d+|[eE][+-]?\d+| \d+/\d+)?)\s*([^\d]*)")


def normalize(text: str) -> str:
    r"""Return the answer without wrapping: lower case, no math markup, label or thousands commas.

    Dollar and percent signs, ``\boxed``, ``\text``, ``\frac`` (to ``a/b``), "the answer is", a
    final full stop and repeated white space go; everything else stays.
    """
    text = _BOXED.sub(r"\1", text)
    text = _FRAC.sub(r"\1/\2", _TEXT.sub(r"\1", text))
    for mark in ("\\$", "$", "\\%", "%", "\\!", "\\,", "\\left", "\\right"):
        text = text.replace(mark, "")
    text = text.replace("−", "-").strip()
    text = _LABEL.sub("", text)
    text = _THOUSANDS.sub("", text)
    return " ".join(text.lower().rstrip(".").split())


def value(text: str) -> Fraction | None:
    """Return the exact value of a number in any of the notations, or None.

    Notations: ``12``, ``-3.50``, ``1e3`` (exponent up to 50), ``3/4``, ``1 1/2``, each with an
    optional unit word behind it or currency word before it (``12 apples``).
    """
    text = normalize(text)
    if len(text) > MAX_LENGTH:
        return None
    exact = _exact(text)
    if exact is not None:
        return exact
    match = _UNIT_AFTER.fullmatch(text)
    if match is None or not _is_words(match[1]) or not _is_words(match[3]):
        return None
    return _exact(match[2])


def _is_words(text: str) -> bool:
    return all(c.isalpha() or c in " °€£²³^" for c in text) and len(text.split()) <= 3


def _exact(text: str) -> Fraction | None:
    if match := _MIXED.fullmatch(text):
        if int(match[4]) == 0:
            return None
        size = int(match[2]) + Fraction(int(match[3]), int(match[4]))
        return -size if match[1] == "-" else size
    text = _AROUND_SLASH.sub("/", text)
    if match := _DECIMAL.fullmatch(text):
        exponent = int(match[2] or 0)
        if abs(exponent) > _MAX_EXPONENT:
            return None
        return Fraction(match[1]) * Fraction(10) ** exponent
    if match := _RATIO.fullmatch(text):
        below = Fraction(match[2])
        return None if below == 0 else Fraction(match[1]) / below
    return None


def same(answer: str, reference: str) -> bool:
    """Whether two answers agree by normalized text, or else by exact rational value."""
    left, right = normalize(answer), normalize(reference)
    if left == right:
        return left != ""
    a, b = value(left), value(right)
    return a is not None and a == b
