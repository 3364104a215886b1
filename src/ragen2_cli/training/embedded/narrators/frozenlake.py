"""FrozenLake's demonstrator: says where it stands, where the goal lies and what is next to it.

What it says is always true; what it does is mixed (see ``Skill``), so the warm-started policy can
read a board but does not know what to make of it. That is left for reinforcement learning.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ragen2_cli.envs.base import TextEnv

ACTIONS = ("Left", "Down", "Right", "Up")
_STEPS = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
_KINDS = {"_": "ice", "P": "ice", "O": "hole", "G": "goal"}
_OPENERS = ("at", "now at", "I am at")
_CLOSERS = ("go", "try", "so")


@dataclass(frozen=True, slots=True)
class Skill:
    """How a demonstrated move is drawn.

    Attributes:
        toward: Share of moves that lower the distance to the goal, holes ignored.
        habit: Share of moves that go Right or Down whatever the board says, as one would on
            boards whose goal is always at the bottom right. The rest is uniform over the actions.
        two: Share of turns with two actions instead of one.
    """

    toward: float = 0.1
    habit: float = 0.4
    two: float = 0.5


def read(observation: str) -> tuple[tuple[int, int], tuple[int, int], list[str]]:
    """Return (player, goal, grid rows) of an observation, an invalid turn's mark left out."""
    lines = observation.removeprefix("!\n").split("\n")
    _, row, column, _, goal_row, goal_column = lines[0].split()
    return (int(row), int(column)), (int(goal_row), int(goal_column)), lines[1:]


def bearing(player: tuple[int, int], goal: tuple[int, int]) -> str:
    """Return where the goal lies, for example ``down 2 left 1``."""
    down, right = goal[0] - player[0], goal[1] - player[1]
    words = []
    if down:
        words.append(f"{'down' if down > 0 else 'up'} {abs(down)}")
    if right:
        words.append(f"{'right' if right > 0 else 'left'} {abs(right)}")
    return " ".join(words)


def neighbor(player: tuple[int, int], grid: Sequence[str], action: str) -> str:
    """Return what lies one move away: ``ice``, ``hole``, ``goal`` or ``wall`` (the edge)."""
    row, column = player[0] + _STEPS[action][0], player[1] + _STEPS[action][1]
    inside = 0 <= row < len(grid) and 0 <= column < len(grid[0])
    return _KINDS[grid[row][column]] if inside else "wall"


def reasoning(observation: str, actions: Sequence[str], rng: np.random.Generator) -> str:
    """Return the true facts and the choice, in one of a few wordings."""
    player, goal, grid = read(observation)
    near = " ".join(f"{name.lower()} {neighbor(player, grid, name)}" for name in ACTIONS)
    opener, closer = rng.choice(_OPENERS), rng.choice(_CLOSERS)
    choice = " ".join(name.lower() for name in actions)
    return (
        f"{opener} {player[0]} {player[1]}, goal {bearing(player, goal)}. {near}. {closer} {choice}"
    )


def choose(observation: str, rng: np.random.Generator, skill: Skill) -> list[str]:
    """Return one or two actions; the second one assumes that the first one moved."""
    player, goal, grid = read(observation)
    actions: list[str] = []
    for _ in range(2 if rng.random() < skill.two else 1):
        action = _move(player, goal, rng, skill)
        actions.append(action)
        kind = neighbor(player, grid, action)
        if kind in ("hole", "goal"):
            break
        if kind == "ice":
            player = (player[0] + _STEPS[action][0], player[1] + _STEPS[action][1])
    return actions


def _move(
    player: tuple[int, int], goal: tuple[int, int], rng: np.random.Generator, skill: Skill
) -> str:
    draw = rng.random()
    if draw < skill.toward:
        names = [name for name in ACTIONS if name.lower() in bearing(player, goal).split()]
    elif draw < skill.toward + skill.habit:
        names = ["Down", "Right"]
    else:
        names = list(ACTIONS)
    return str(rng.choice(names))


def narrator(skill: Skill) -> Callable[[TextEnv, str, np.random.Generator], tuple[str, str]]:
    """Return a demonstrator: (environment, observation, rng) -> (reasoning, answer)."""

    def speak(env: TextEnv, observation: str, rng: np.random.Generator) -> tuple[str, str]:
        actions = choose(observation, rng, skill)
        return reasoning(observation, actions, rng), " || ".join(actions)

    return speak
