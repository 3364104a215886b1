"""What a folder is: a run, a sweep of runs, or something else, such as a model or logs."""

import json
from pathlib import Path

from ragen2_cli.errors import UserError
from ragen2_cli.runs.claim import CONFIG

CELLS = "cells.jsonl"


def is_sweep(path: Path) -> bool:
    """Whether a folder is a sweep's."""
    return (path / CELLS).is_file()


def is_run(path: Path) -> bool:
    """Whether a folder is one of our runs, from the moment that it has its config.json.

    That of a model has no table ``config``. Beside rollouts a damaged one counts too, so that its
    reader can say what is wrong with it.

    Raises:
        UserError: It is a sweep, which holds runs and is none.
    """
    _refuse_sweep(path)
    if not (path / CONFIG).is_file():
        return False
    if (path / "rollouts").is_dir():
        return True
    try:
        content = json.loads((path / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and isinstance(content.get("config"), dict)


def check_run(path: Path) -> None:
    """Check that a folder has what a run begins with.

    Raises:
        UserError: No such folder, a sweep, or no config.json.
    """
    if not path.is_dir():
        raise UserError(f"no run at {path}: no such folder")
    _refuse_sweep(path)
    if not (path / CONFIG).is_file():
        raise UserError(f"no run at {path}: {CONFIG} is missing")


def _refuse_sweep(path: Path) -> None:
    if is_sweep(path):
        raise UserError(f"{path} is a sweep; give one of its runs, they are in {path / 'runs'}/")
