import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ragen2_cli.envs import make, rooms
from ragen2_cli.envs.sokoban import ACTIONS, Sokoban, read_board
from ragen2_cli.errors import UserError

GOLDEN = json.loads((Path(__file__).parent / "goldens" / "sokoban_dynamics.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["id"])
def test_dynamics_equal_the_goldens(case):
    env = Sokoban.from_board(case["board"])
    results = [env.step(action) for action in case["actions"]]
    assert [result.reward for result in results] == case["rewards"]
    assert [bool(result.info["moved"]) for result in results] == case["moved"]
    assert (results[-1].done, results[-1].success) == (case["done"], case["success"])
    assert env.board() == case["final_board"]


def test_rewards_of_one_box_on_and_off():
    # pushing on: -0.1 + 1 + 10 = 10.9 with one box; with two: on 0.9, off -1.1, on to on -0.1
    env = Sokoban.from_board(["#######", "#PXOO_#", "#_X_O_#", "#######"])
    rewards = [env.step("Right").reward for _ in range(3)]
    assert rewards == [0.9, -0.1, -1.1]
    with pytest.raises(UserError, match="target for each box"):
        Sokoban.from_board(["####", "#PX#", "####"])


def test_a_finished_room_never_pays_twice():
    env = Sokoban.from_board(["#####", "#PXO#", "#####"])
    result = env.step("Right")
    assert (result.reward, result.done, result.success, result.outcome) == (10.9, True, True, 10.0)
    with pytest.raises(RuntimeError, match="over"):
        env.step("Right")


@pytest.mark.parametrize(("name", "boxes"), [("sokoban", 1), ("sokoban-large", 2)])
def test_500_rooms_are_solvable_within_the_budget(name, boxes):  # case 33
    env = make(name)
    lengths = []
    for seed in range(500 if boxes == 1 else 25):
        head, *grid = env.reset(seed).split("\n")
        room, state = read_board(grid)
        assert (room, state) == (env._room, env._state)  # the grid parses back to the state
        assert len(state[1]) == boxes
        words = head.split()
        pairs = [int(a) * env.size + int(b) for a, b in zip(words[1::3], words[2::3], strict=True)]
        assert pairs == [state[0], *state[1], *room.targets]  # and so do the coordinates
        lengths.append(env.distance())
        for _ in range(env.distance()):
            result = env.step(min(env.optimal_actions()))
        assert result.success
    assert min(lengths) >= 2
    assert max(lengths) <= env.max_actions
    assert sum(lengths) / len(lengths) > 4


def test_search_agrees_with_brute_force_from_the_start():
    # breadth-first forward search, written apart from the backward one
    env = make("sokoban")
    for seed in range(25):
        env.reset(seed)
        room, start = env._room, env._state
        layer, seen, length = {start}, {start}, 0
        while not any(set(boxes) <= set(room.targets) for _, boxes in layer):
            length += 1
            layer = {rooms.push(room, s, go) for s in layer for go in room.moves().values()} - seen
            seen |= layer
        assert env.distance() == length


def test_optimal_actions_of_a_stuck_box_are_none():
    env = Sokoban.from_board(["#####", "#X_O#", "#_P_#", "#####"])
    assert env.distance() is None
    assert env.optimal_actions() == frozenset()
    ahead = Sokoban.from_board(["#####", "#PXO#", "#___#", "#####"])
    assert ahead.optimal_actions() == {"Right"}


def test_same_seed_same_room_in_another_process():
    code = (
        "from ragen2_cli.envs import make; e = make('sokoban'); print([*map(e.reset, range(20))])"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    env = make("sokoban")
    assert other.stdout.strip() == str([env.reset(seed) for seed in range(20)])


@pytest.mark.parametrize(
    "options", [{"size": 4}, {"size": 5, "boxes": 3}, {"boxes": 9}, {"max_actions": 1}]
)
def test_impossible_sizes_are_refused_at_once(options):
    start = time.perf_counter()
    with pytest.raises(UserError, match="'sokoban'"):
        make("sokoban", **options)
    assert time.perf_counter() - start < 1.0


def test_rooms_that_no_draw_solves_are_refused_quickly():
    env = make("sokoban", size=6, boxes=4, max_actions=8)  # each box needs a push: too tight
    start = time.perf_counter()
    with pytest.raises(UserError, match="found no room of size 6 with 4 boxes"):
        env.reset(0)
    assert time.perf_counter() - start < 5.0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["####", "#PX#", "###"], "equal length"),
        (["#####", "#P?O#", "#####"], "symbols"),
        (["#####", "#PXO_", "#####"], "closed in"),
        (["#####", "#_XO#", "#####"], "one player"),
        ([], "equal length"),
    ],
)
def test_malformed_boards_are_refused(rows, message):
    with pytest.raises(UserError, match=message):
        Sokoban.from_board(rows)


def test_every_action_name_moves_as_it_says():
    rows = ["#######", "#_____#", "#__P__#", "#___XO#", "#######"]
    seen = {}
    for action in ACTIONS:
        env = Sokoban.from_board(rows)
        env.step(action)
        seen[action] = env._state[0] - (2 * 7 + 3)
    assert seen == {"Up": -7, "Down": 7, "Left": -1, "Right": 1}
