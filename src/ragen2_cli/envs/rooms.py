"""Sokoban rooms: geometry, exact distances by search, and random rooms that can be solved.

Cells are numbered row by row over the whole grid, walls included. A state is (player, boxes) with
the boxes as a sorted tuple. Distances count moves, pushes and steps alike.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ragen2_cli.errors import UserError

MIN_DISTANCE = 2
_TRIES = 60
_STATES = 1_500  # states that a generator's search may visit
_ALL_STATES = 300_000

State = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Room:
    """The part of a board that never changes.

    Attributes:
        rows: Number of rows.
        columns: Number of columns.
        walls: One bool per cell.
        targets: Sorted target cells.
    """

    rows: int
    columns: int
    walls: tuple[bool, ...]
    targets: tuple[int, ...]

    def moves(self) -> dict[str, int]:
        """Return the change of the cell number for each action."""
        return {"Up": -self.columns, "Down": self.columns, "Left": -1, "Right": 1}


def push(room: Room, state: State, change: int) -> State:
    """Return the state after a move by ``change`` cells; the same state when it is blocked."""
    player, boxes = state
    ahead = player + change
    if room.walls[ahead]:
        return state
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead + change
    if room.walls[beyond] or beyond in boxes:
        return state
    return ahead, tuple(sorted(beyond if box == ahead else box for box in boxes))


@lru_cache(maxsize=256)
def distances(
    room: Room, boxes: int, depth: int = 1_000_000, states: int = _ALL_STATES
) -> dict[State, int]:
    """Return the fewest moves to "all boxes on targets" for every state that can get there.

    Searches backwards from the solved states, so a state that is missing cannot be solved (within
    ``depth`` moves, when given).

    Args:
        room: The room.
        boxes: Number of boxes; at least one, at most one per target.
        depth: Largest distance of interest.
        states: The search ends early after about this many states.
    """
    from itertools import combinations

    walls, changes = room.walls, tuple(room.moves().values())
    floor = [cell for cell, wall in enumerate(walls) if not wall]
    found: dict[State, int] = {
        (player, goal): 0
        for goal in combinations(room.targets, boxes)
        for player in floor
        if player not in goal
    }
    layer = list(found)
    for length in range(1, depth + 1):
        before: list[State] = []
        for player, placed in layer:
            for change in changes:
                start = player - change
                if walls[start] or start in placed:
                    continue
                earlier = [(start, placed)]
                pushed = player + change
                if pushed in placed:
                    moved = (player if box == pushed else box for box in placed)
                    earlier.append((start, tuple(sorted(moved))))
                for state in earlier:
                    if state not in found:
                        found[state] = length
                        before.append(state)
        if not before or len(found) > states:
            break
        layer = before
    return found


@lru_cache(maxsize=4096)
def generate(seed: int, size: int, boxes: int, max_actions: int) -> tuple[Room, State]:
    """Return the room and start of ``seed``: as hard as a drawn length, solvable by search.

    Inner cells are walls with probability 0.15; the floor is connected. The needed number of
    moves is drawn uniformly from 2 to ``max_actions`` (the nearest length that the room has), then
    a start of that distance, with no box on a target.

    Raises:
        UserError: When 60 rooms bring no start (the size cannot hold the boxes).
    """
    rng = np.random.default_rng((seed, 0x50C0))
    for _ in range(_TRIES):
        room = _empty_room(rng, size, boxes)
        if room is None:
            continue
        wanted = int(rng.integers(MIN_DISTANCE, max_actions + 1))
        starts: dict[int, list[State]] = {}
        for state, length in distances(room, boxes, wanted, _STATES).items():
            if length >= MIN_DISTANCE and not set(state[1]) & set(room.targets):
                starts.setdefault(length, []).append(state)
        if starts:
            choices = starts[min(starts, key=lambda length: (abs(length - wanted), length))]
            return room, choices[int(rng.integers(len(choices)))]
    raise UserError(
        f"environment 'sokoban': found no room of size {size} with {boxes} boxes that "
        f"{max_actions} actions solve; use a larger size, fewer boxes or more actions"
    )


def _empty_room(rng: np.random.Generator, size: int, boxes: int) -> Room | None:
    """Draw walls and targets; None when the floor is not connected or too small."""
    grid = np.ones((size, size), dtype=bool)
    grid[1:-1, 1:-1] = rng.random((size - 2, size - 2)) < 0.15
    walls: tuple[bool, ...] = tuple(grid.ravel().tolist())
    floor = [cell for cell, wall in enumerate(walls) if not wall]
    if len(floor) < 2 * boxes + 2:
        return None
    seen, frontier = {floor[0]}, [floor[0]]
    while frontier:
        cell = frontier.pop()
        for near in (cell - 1, cell + 1, cell - size, cell + size):
            if not walls[near] and near not in seen:
                seen.add(near)
                frontier.append(near)
    if len(seen) < len(floor):
        return None
    targets = sorted(int(cell) for cell in rng.choice(floor, boxes, replace=False))
    return Room(size, size, walls, tuple(targets))
