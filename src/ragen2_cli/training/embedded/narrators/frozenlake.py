"""FrozenLake's demonstrator: says where it stands, where the goal lies and what is next to it.

What it says is always true; what it does is mixed (see ``Skill``), so the warm-started policy can
read a board but does not know what to make of it. That is left for reinforcement learning.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ragen2_cli.envs.base import TextEnv
from ragen2_cli.training.embedded.narrators.words import (
    CLOSERS,
    OPENERS,
    STEPS,
    Cell,
    bearing,
    lines_of,
    neighbor,
)

ACTIONS = ("Left", "Down", "Right", "Up")
KINDS = {"_": "ice", "P": "ice", "O": "hole", "G": "goal"}


@dataclass(frozen=True, slots=True)
class Skill:
    """How a demonstrated move is drawn.

    Attributes:
        toward: Share of moves that lower the distance to the goal, holes ignored.
        habit: Share of moves that go Right or Down whatever the board says, as one would on
            boards whose goal is always at the bottom right.
        careful: Share of moves that are uniform over the neighbors that are ice or the goal. The
            rest is uniform over the actions.
        two: Share of turns with two actions instead of one.
    """

    toward: float = 0.15
    habit: float = 0.35
    careful: float = 0.25
    two: float = 0.5


def read(message: str) -> tuple[Cell, Cell, list[str]]:
    """Return (player, goal, grid rows) of a user message."""
    lines = lines_of(message)
    _, row, column, _, goal_row, goal_column = lines[0].split()
    return (int(row), int(column)), (int(goal_row), int(goal_column)), lines[1:]


def reasoning(message: str, actions: Sequence[str], rng: np.random.Generator) -> str:
    """Return the true facts and the choice, in one of a few wordings."""
    player, goal, grid = read(message)
    near = " ".join(f"{name.lower()} {neighbor(player, grid, name, KINDS)}" for name in ACTIONS)
    opener, closer = rng.choice(OPENERS), rng.choice(CLOSERS)
    choice = " ".join(name.lower() for name in actions)
    return (
        f"{opener} {player[0]} {player[1]}, goal {bearing(player, goal)}. {near}. {closer} {choice}"
    )


def choose(message: str, rng: np.random.Generator, skill: Skill) -> list[str]:
    """Return one or two actions; the second one assumes what the first one did."""
    player, goal, grid = read(message)
    actions: list[str] = []
    for _ in range(2 if rng.random() < skill.two else 1):
        action = _move(player, goal, grid, rng, skill)
        actions.append(action)
        kind = neighbor(player, grid, action, KINDS)
        if kind in ("hole", "goal"):
            break
        if kind == "ice":
            player = (player[0] + STEPS[action][0], player[1] + STEPS[action][1])
    return actions


def _move(player: Cell, goal: Cell, grid: list[str], rng: np.random.Generator, skill: Skill) -> str:
    draw = rng.random()
    if draw < skill.toward:
        words = bearing(player, goal).split()
        names = [name for name in ACTIONS if name.lower() in words]
    elif draw < skill.toward + skill.habit:
        names = ["Down", "Right"]
    elif draw < skill.toward + skill.habit + skill.careful:
        kinds = {name: neighbor(player, grid, name, KINDS) for name in ACTIONS}
        names = [name for name, kind in kinds.items() if kind in ("ice", "goal")]
    else:
        names = list(ACTIONS)
    return str(rng.choice(names))


def narrator(skill: Skill) -> Callable[[TextEnv, str, np.random.Generator], tuple[str, str]]:
    """Return a demonstrator: (environment, user message, rng) -> (reasoning, answer)."""

    def speak(env: TextEnv, message: str, rng: np.random.Generator) -> tuple[str, str]:
        actions = choose(message, rng, skill)
        return reasoning(message, actions, rng), " || ".join(actions)

    return speak
