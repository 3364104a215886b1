"""Text from models and environments, made safe to print: literal, visible, cut."""

import sys
import unicodedata

# Besides control characters and lone surrogates: line and paragraph separators, and the marks
# that change the direction of text, with which a line could pretend to be another.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def visible(text: str, limit: int = 2000) -> str:
    r"""Return ``text`` with what a terminal would act on written as escapes, cut to ``limit``.

    Newlines stay, tabs become four blanks, ``\x1b`` and the like show as they are written here.
    What was cut off is counted in the text.

    Args:
        text: Anything.
        limit: The most characters of ``text`` that are shown.
    """
    shown = "".join(_visible_character(character) for character in text[:limit])
    rest = len(text) - limit
    return f"{shown} [... {rest:,} more characters]" if rest > 0 else shown


def _visible_character(character: str) -> str:
    if character == "\n":
        return character
    if character == "\t":
        return "    "
    if character in _DIRECTION or unicodedata.category(character) in _UNSAFE_CATEGORIES:
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return character


def printable(text: str) -> str:
    """Return ``text`` with what the encoding of stdout lacks written as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
