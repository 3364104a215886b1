"""Sokoban: push every box onto a target; rooms are random and solvable within the budget."""

from collections.abc import Sequence

from ragen2_cli.envs import rooms
from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.options import whole
from ragen2_cli.errors import UserError

ACTIONS = ("Up", "Down", "Left", "Right")
STEP_COST, ONTO, OFF, ALL_PLACED = -0.1, 1.0, -1.0, 10.0
SYMBOLS = "#_OX√PS"


class Sokoban(TextEnv):
    """Push all boxes onto the targets.

    Observation: a line ``P row column X row column ... O row column ...`` (player, boxes,
    targets; from 0, top left), then the grid. Reward per action: -0.1, +1 for a box pushed onto
    a target, -1 for one pushed off, +10 when the last one is placed.

    Args:
        size: Rows and columns with the outer wall, 5 to 12.
        boxes: Number of boxes and targets, at most a quarter of the inner cells and half the
            action budget.
        max_actions: Action budget; every room can be solved within it.
    """

    name = "sokoban"
    instruction = (
        "Push every box onto a target. You push by walking into a box; you cannot pull, "
        "and a box cannot enter a wall or another box.\n"
        "Grid: # wall, _ floor, O target, X box, √ box on a target, P player, "
        "S player on a target.\n"
        "The line above the grid gives row and column of the player (P), of each box (X) and of "
        "each target (O), counted from 0 at the top left. Up lowers the row, Left lowers the "
        "column.\nEach action costs 0.1; a box onto a target earns 1, off it costs 1, and all "
        "boxes placed earns 10."
    )
    actions = ACTIONS
    outcomes = (ALL_PLACED, 0.0)

    def __init__(self, size: int = 6, boxes: int = 1, max_actions: int = 10) -> None:
        self.size = whole(self.name, "size", size, 5, 12)
        self.max_actions = whole(self.name, "max_actions", max_actions, 2, 1000)
        most = min((self.size - 2) ** 2 // 4, self.max_actions // 2)
        self.boxes = whole(self.name, "boxes", boxes, 1, most)
        self.max_turns = -(-self.max_actions // self.actions_per_turn)

    @classmethod
    def from_board(cls, rows: Sequence[str], max_actions: int = 10) -> "Sokoban":
        """Return an environment that stands on a given board; it needs no reset.

        Args:
            rows: Lines of equal length in the symbols of the grid, closed in by walls.
            max_actions: Action budget.

        Raises:
            UserError: For an unknown symbol, an open edge, no box, fewer targets than boxes, or
                not exactly one player.
        """
        env = cls(max_actions=max_actions)
        env._start(*read_board(rows))
        return env

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Draw the room of ``seed``; the dynamics have no noise."""
        self._start(*rooms.generate(seed, self.size, self.boxes, self.max_actions))
        return self.observe()

    def _start(self, room: rooms.Room, state: rooms.State) -> None:
        self._room = room
        self._state = state
        self._over = False

    def step(self, action: str) -> StepResult:
        """Move or push once; ``info["moved"]`` is 1 when the player changed its place."""
        if self._over:
            raise RuntimeError("the episode is over; call reset")
        before = self._state
        self._state = rooms.push(self._room, before, self._room.moves()[action])
        gained = self._placed(self._state) - self._placed(before)
        self._over = self._placed(self._state) == len(self._state[1])
        bonus = ALL_PLACED if self._over else 0.0
        reward = STEP_COST + (ONTO if gained > 0 else OFF if gained < 0 else 0.0) + bonus
        return StepResult(
            round(reward, 9),
            done=self._over,
            success=self._over,
            info={"moved": float(self._state[0] != before[0])},
            outcome=bonus,
        )

    def observe(self) -> str:
        """Return the coordinates and the grid."""
        player, boxes = self._state
        columns = self._room.columns
        words = [f"P {player // columns} {player % columns}"]
        words += [f"X {box // columns} {box % columns}" for box in boxes]
        words += [f"O {spot // columns} {spot % columns}" for spot in self._room.targets]
        return "\n".join([" ".join(words), *self.board()])

    def board(self) -> list[str]:
        """Return the grid as rows."""
        player, boxes = self._state
        cells = ["#" if wall else "_" for wall in self._room.walls]
        for spot in self._room.targets:
            cells[spot] = "O"
        for box in boxes:
            cells[box] = "√" if box in self._room.targets else "X"
        cells[player] = "S" if player in self._room.targets else "P"
        width = self._room.columns
        return ["".join(cells[at : at + width]) for at in range(0, len(cells), width)]

    def distance(self) -> int | None:
        """Return the fewest moves that solve the current state; None when nothing does."""
        return self._distances().get(self._state)

    def optimal_actions(self) -> frozenset[str]:
        """Return the first moves of the shortest solutions; empty when over or stuck."""
        table = self._distances()
        if self._over or self._state not in table:
            return frozenset()
        room, left = self._room, table[self._state]
        after = {name: rooms.push(room, self._state, go) for name, go in room.moves().items()}
        return frozenset(name for name, state in after.items() if table.get(state) == left - 1)

    def _distances(self) -> dict[rooms.State, int]:
        return rooms.distances(self._room, len(self._state[1]))

    def _placed(self, state: rooms.State) -> int:
        return sum(box in self._room.targets for box in state[1])


class SokobanLarge(Sokoban):
    """Sokoban with two boxes on 8x8 and 20 actions.

    Args:
        size: As for ``sokoban``.
        boxes: As for ``sokoban``.
        max_actions: As for ``sokoban``.
    """

    name = "sokoban-large"

    def __init__(self, size: int = 8, boxes: int = 2, max_actions: int = 20) -> None:
        super().__init__(size, boxes, max_actions)


def read_board(rows: Sequence[str]) -> tuple[rooms.Room, rooms.State]:
    """Return the room and state that a grid shows; the inverse of ``Sokoban.board``.

    Raises:
        UserError: See ``Sokoban.from_board``.
    """
    width = len(rows[0]) if rows else 0
    text = "".join(rows)
    cells = list(enumerate(text))
    if not width or any(len(row) != width for row in rows) or set(text) - set(SYMBOLS):
        raise UserError(f"a Sokoban board needs rows of equal length in the symbols {SYMBOLS}")
    edge = [rows[0], rows[-1], "".join(row[0] + row[-1] for row in rows)]
    if set("".join(edge)) != {"#"}:
        raise UserError("a Sokoban board must be closed in by walls (#)")
    players = [at for at, cell in cells if cell in "PS"]
    boxes = tuple(at for at, cell in cells if cell in "X√")
    targets = tuple(at for at, cell in cells if cell in "O√S")
    if len(players) != 1 or not 1 <= len(boxes) <= len(targets):
        raise UserError(
            "a Sokoban board needs one player, at least one box and a target for each box; "
            f"found {len(players)}, {len(boxes)} and {len(targets)}"
        )
    walls = tuple(cell == "#" for cell in text)
    return rooms.Room(len(rows), width, walls, targets), (players[0], boxes)
