"""Errors a user can mend: one line that says what, where and what to do; exit code 2."""

from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """Wrong use or wrong input; the command line prints its message alone and exits with 2."""


class CollapseStop(Exception):
    """Training was stopped by a collapse rule after its state was saved; exit code 3."""


def counted(number: int, noun: str) -> str:
    """Return ``1 run``, ``2 runs``, ``12,000 runs``; for nouns with a plain plural."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def counted_from(path: str | Path) -> str:
    """Return what to say of a missing path, since a run keeps its paths as they were given.

    Empty for an absolute path.
    """
    hint = "; relative paths, a run's own too, count from the current folder"
    return "" if Path(path).expanduser().is_absolute() else hint


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest known word, or an empty string.

    Args:
        word: What the user wrote.
        known: The names that exist.
    """
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""
