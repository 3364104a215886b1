"""Sokoban's demonstrator: where the box lies, where it must go, what is next to the player.

The facts are true; a share of the moves is the first of a shortest solution, the rest is random.
"""

import copy

import numpy as np

from ragen2_cli.envs.base import TextEnv
from ragen2_cli.envs.sokoban import Sokoban
from ragen2_cli.training.embedded.narrators.words import (
    CLOSERS,
    OPENERS,
    Cell,
    bearing,
    lines_of,
    neighbor,
)

OPTIMAL = 0.5
TWO = 0.6
KINDS = {
    "#": "wall",
    "_": "floor",
    "P": "floor",
    "O": "target",
    "S": "target",
    "X": "box",
    "√": "box",
}


def read(message: str) -> tuple[Cell, Cell, Cell, list[str]]:
    """Return (player, first box, first target, grid rows) of a user message."""
    lines = lines_of(message)
    words = lines[0].split()
    cells = {
        letter: (int(words[words.index(letter) + 1]), int(words[words.index(letter) + 2]))
        for letter in "PXO"
    }
    return cells["P"], cells["X"], cells["O"], lines[1:]


def speak(env: TextEnv, message: str, rng: np.random.Generator) -> tuple[str, str]:
    """Return (reasoning, answer)."""
    player, box, target, grid = read(message)
    actions = _choose(env, rng)
    near = " ".join(
        f"{name.lower()} {neighbor(player, grid, name, KINDS)}" for name in env.actions or ()
    )
    choice = " ".join(name.lower() for name in actions)
    thought = (
        f"{rng.choice(OPENERS)} {player[0]} {player[1]}, box {bearing(player, box)}, "
        f"box to target {bearing(box, target)}. {near}. {rng.choice(CLOSERS)} {choice}"
    )
    return thought, " || ".join(actions)


def _choose(env: TextEnv, rng: np.random.Generator) -> list[str]:
    """Return one or two actions, planned on a copy of the environment."""
    if not isinstance(env, Sokoban):
        raise TypeError(f"Sokoban's demonstrator cannot play {type(env).__name__}")
    ahead = copy.copy(env)
    actions: list[str] = []
    for _ in range(2 if rng.random() < TWO else 1):
        best = sorted(ahead.optimal_actions())
        names = best if best and rng.random() < OPTIMAL else list(ahead.actions)
        actions.append(str(rng.choice(names)))
        if ahead.step(actions[-1]).done:
            break
    return actions
