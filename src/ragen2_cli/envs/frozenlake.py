"""FrozenLake: cross the ice to the goal; Gymnasium's dynamics on random boards.

Boards are square; each cell other than start and goal is ice with probability ``ice``, else a
hole. Start and goal are random and different. A board is used when the goal can be reached in at
least 2 and at most ``max_actions`` moves (a neighboring goal teaches nothing), else redrawn.
"""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.options import share, whole
from ragen2_cli.errors import UserError

ACTIONS = ("Left", "Down", "Right", "Up")  # in the order of Gymnasium's action numbers
STANDARD_MAP = ("SFFF", "FHFH", "FFFH", "HFFG")
MIN_DISTANCE = 2
_MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
_TRIES = 2_000

Board = tuple[str, ...]
Transitions = dict[int, dict[int, list[tuple[float, int, float, bool]]]]


@lru_cache(maxsize=1024)
def transitions(board: Board, slip: float) -> Transitions:
    """Return Gymnasium's table: state -> action -> [(probability, next state, reward, done)].

    Args:
        board: Rows of ``S`` start, ``F`` ice, ``H`` hole, ``G`` goal.
        slip: Probability that a move is not the intended one (two perpendicular ones, half each).
    """
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    lake: Any = FrozenLakeEnv(desc=list(board), is_slippery=slip > 0, success_rate=1.0 - slip)
    table: Transitions = lake.P
    return table


def distances(board: Board) -> dict[tuple[int, int], int]:
    """Return the number of moves to the goal, without slipping, of every cell that can reach it."""
    size = len(board)
    goal = _find(board, "G")
    found = {goal: 0}
    queue = deque([goal])
    while queue:
        row, column = queue.popleft()
        for down, right in _MOVES:
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < size and 0 <= cell[1] < len(board[0])
            if inside and cell not in found and board[cell[0]][cell[1]] != "H":
                found[cell] = found[row, column] + 1
                queue.append(cell)
    return found


def ceiling(board: Sequence[str], slip: float, moves: int) -> float:
    """Return the best success probability that any policy has within a move budget.

    Value iteration over the budget: V_0 = 0 (1 on the goal), V_k(s) = max_a sum p V_{k-1}(s').

    Args:
        board: Rows in Gymnasium's letters, with one ``S``.
        slip: As in :func:`transitions`; Gymnasium's ``success_rate`` is ``1 - slip``.
        moves: The budget.
    """
    rows = tuple(board)
    row, column = _find(rows, "S")
    return _values(rows, slip, moves)[-1][row * len(rows[0]) + column]


@lru_cache(maxsize=1024)
def _values(board: Board, slip: float, moves: int) -> list[list[float]]:
    """Return V_0 .. V_moves, each a list over the cells in row order."""
    table = transitions(board, slip)
    letters = "".join(board)
    values = [[float(letter == "G") for letter in letters]]
    for _ in range(moves):
        last = values[-1]
        values.append(
            [
                last[state]
                if letter in "GH"
                else max(_expected(table[state][move], last) for move in range(4))
                for state, letter in enumerate(letters)
            ]
        )
    return values


def _expected(outcomes: list[tuple[float, int, float, bool]], values: list[float]) -> float:
    return sum(chance * values[state] for chance, state, _, _ in outcomes)


def _find(board: Board, letter: str) -> tuple[int, int]:
    at = "".join(board).index(letter)
    return divmod(at, len(board[0]))


@lru_cache(maxsize=4096)
def generate(seed: int, size: int, ice: float, max_actions: int) -> Board:
    """Return the board of ``seed`` (see the module's docstring for the rules).

    Raises:
        UserError: When 2,000 draws bring no usable board (too little ice or too few actions).
    """
    rng = np.random.default_rng((seed, 0xF20))
    for _ in range(_TRIES):
        cells = np.where(rng.random(size * size) < ice, "F", "H")
        start, goal = rng.choice(size * size, 2, replace=False)
        cells[start], cells[goal] = "S", "G"
        text = "".join(cells)
        board = tuple(text[at : at + size] for at in range(0, size * size, size))
        if MIN_DISTANCE <= distances(board).get(divmod(int(start), size), -1) <= max_actions:
            return board
    raise UserError(
        f"environment 'frozenlake': no solvable board of size {size} with ice {ice:g} within "
        f"{max_actions} actions; raise ice or max_actions"
    )


class FrozenLake(TextEnv):
    """Walk over the ice to the goal without falling into a hole.

    Observation: a line ``P row column G row column`` (from 0, top left), then the grid. Reward 1
    on the goal, else 0.

    Args:
        size: Rows and columns, 3 to 12.
        ice: Probability that a cell is ice, 0.2 to 1.
        slip: Probability of a perpendicular move instead of the intended one.
        max_actions: Action budget; every board can be solved within it.
    """

    name = "frozenlake"
    instruction = (
        "Move the player to the goal without falling into a hole.\n"
        "Grid: P player, _ ice, O hole, G goal, X player in a hole, √ player on the goal.\n"
        "The line above the grid gives row and column of the player (P) and the goal (G), "
        "counted from 0 at the top left. Up lowers the row, Left lowers the column; "
        "a move against the edge does nothing. Reaching the goal earns 1."
    )
    actions = ACTIONS

    def __init__(
        self, size: int = 4, ice: float = 0.9, slip: float = 0.0, max_actions: int = 10
    ) -> None:
        self.size = whole(self.name, "size", size, 3, 12)
        self.ice = share(self.name, "ice", ice, 0.2, 1.0)
        self.slip = share(self.name, "slip", slip)
        self.max_actions = whole(self.name, "max_actions", max_actions, MIN_DISTANCE, 1000)
        self.max_turns = -(-self.max_actions // self.actions_per_turn)
        self.board: Board = ()

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Draw the board of ``seed``; ``noise_seed`` decides the slips."""
        return self.start(generate(seed, self.size, self.ice, self.max_actions), noise_seed)

    def start(self, board: Sequence[str], noise_seed: int = 0) -> str:
        """Start on a given board (Gymnasium's letters) instead of a random one."""
        self.board = tuple(board)
        self._rng = np.random.default_rng((noise_seed, 0x511))
        self._player = _find(self.board, "S")
        self._moves_left = self.max_actions
        self._over = False
        return self.observe()

    def step(self, action: str) -> StepResult:
        """Move once; the direction follows Gymnasium's probabilities."""
        if self._over:
            raise RuntimeError("the episode is over; call reset")
        columns = len(self.board[0])
        state = self._player[0] * columns + self._player[1]
        outcomes = transitions(self.board, self.slip)[state][ACTIONS.index(action)]
        at = 0
        if len(outcomes) > 1:
            draw = self._rng.random()
            at = int(np.searchsorted(np.cumsum([o[0] for o in outcomes[:-1]]), draw, "right"))
        _, after, reward, done = outcomes[at]
        self._player = divmod(after, columns)
        self._moves_left -= 1
        self._over = bool(done)
        return StepResult(float(reward), done=self._over, success=self._over and reward > 0)

    def observe(self) -> str:
        """Return the coordinates and the grid."""
        row, column = self._player
        goal = _find(self.board, "G")
        under = self.board[row][column]
        player = {"G": "√", "H": "X"}.get(under, "P")
        grid = [line.translate(_SYMBOLS) for line in self.board]
        grid[row] = grid[row][:column] + player + grid[row][column + 1 :]
        return "\n".join([f"P {row} {column} G {goal[0]} {goal[1]}", *grid])

    def distance_to_goal(self) -> int | None:
        """Return the moves still needed without slipping; None when the player cannot get there."""
        return distances(self.board).get(self._player)

    def optimal_actions(self) -> frozenset[str]:
        """Return the moves on a shortest path; with slip, those of the highest success probability.

        Empty once the episode is over or its budget is spent.
        """
        if self._over or self._moves_left < 1:
            return frozenset()
        state = self._player[0] * len(self.board[0]) + self._player[1]
        table = transitions(self.board, self.slip)[state]
        if self.slip == 0:
            far = distances(self.board)
            cells = [divmod(table[move][0][1], len(self.board[0])) for move in range(4)]
            lengths = [far.get(cell, len(far) + 1) for cell in cells]
            nearest = min(lengths)
            return frozenset(a for a, n in zip(ACTIONS, lengths, strict=True) if n == nearest)
        last = _values(self.board, self.slip, self._moves_left)[-2]
        chances = [_expected(table[move], last) for move in range(4)]
        best = max(chances)
        return frozenset(a for a, c in zip(ACTIONS, chances, strict=True) if c >= best - 1e-12)

    def ceiling(self) -> float:
        """Return the best-policy success probability on this board within the whole budget."""
        return ceiling(self.board, self.slip, self.max_actions)


_SYMBOLS = str.maketrans({"S": "_", "F": "_", "H": "O"})
