"""Words that the grid narrators share."""

from collections.abc import Mapping, Sequence

Cell = tuple[int, int]

STEPS: Mapping[str, Cell] = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
OPENERS = ("at", "now at", "I am at")
CLOSERS = ("go", "try", "so")


def lines_of(message: str) -> list[str]:
    """Return the lines of a compact user message without an invalid turn's mark."""
    return message.removeprefix("!\n").split("\n")


def bearing(origin: Cell, target: Cell) -> str:
    """Return where a cell lies, for example ``down 2 left 1``; ``here`` when it is the same."""
    down, right = target[0] - origin[0], target[1] - origin[1]
    words = []
    if down:
        words.append(f"{'down' if down > 0 else 'up'} {abs(down)}")
    if right:
        words.append(f"{'right' if right > 0 else 'left'} {abs(right)}")
    return " ".join(words) or "here"


def neighbor(cell: Cell, grid: Sequence[str], action: str, kinds: Mapping[str, str]) -> str:
    """Return what lies one move away, by ``kinds``; ``wall`` beyond the edge."""
    row, column = cell[0] + STEPS[action][0], cell[1] + STEPS[action][1]
    inside = 0 <= row < len(grid) and 0 <= column < len(grid[0])
    return kinds[grid[row][column]] if inside else "wall"
