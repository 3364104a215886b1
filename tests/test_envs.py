"""Guarantees over the whole registry.

1. Same (seed, noise seed), same episode: in a new instance, in another process, after pickling.
2. Training and held-out boards never meet; the 512 held-out boards differ from each other.
3. The cursor of training seeds has no memory: two halves are the whole.
4. Chance never changes the board, the split or the recorded success, only what its kind says.
"""

import json
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest

from ragen2_cli.envs import REGISTRY, environment_class, make, options_of
from ragen2_cli.envs.bandit import CALM, DARING
from ragen2_cli.envs.session import Limits, Session
from ragen2_cli.envs.splits import (
    heldout_seeds,
    is_silent,
    noise_seed,
    split_of,
    stable_hash,
    train_seeds,
)
from ragen2_cli.errors import UserError

PLANNING = ["frozenlake", "sokoban", "sokoban-large", "countdown", "bandit"]
QUICK = [name for name in PLANNING if name != "sokoban-large"]
VARIANTS = [(name, 0.0, "slip") for name in PLANNING] + [
    ("frozenlake", 0.5, "slip"),
    ("sokoban", 0.5, "action"),
    ("bandit", 0.5, "action"),
    ("countdown", 0.5, "reward"),
    ("frozenlake", 0.5, "reward"),
]


def episodes(name, level, kind):
    """Play three episodes with a fixed random player; return all that can be seen."""
    env = make(name, stochasticity=level, kind=kind)
    seen = []
    for seed in (0, 7, 2**62):
        player = random.Random(seed)
        play = Session(env, seed=seed, noise_seed=seed + 1, limits=Limits.of(env))
        seen.append(play.messages[-1]["content"])
        while not play.done:
            word = player.choice(env.actions) if env.actions else f"{player.randrange(9)}+1"
            seen.append(play.submit(f"x</think><answer>{word} || {word}</answer>"))
        seen.append([play.status, play.episode_return, play.success, [*map(str, play.turns)]])
    return seen


def test_every_environment_replays_in_another_process():
    code = (
        f"import sys, json; sys.path.insert(0, {str(__file__.rsplit('/', 1)[0])!r});"
        "from test_envs import VARIANTS, episodes;"
        "print(json.dumps([episodes(*variant) for variant in VARIANTS]))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(other.stdout) == [episodes(*variant) for variant in VARIANTS]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_reset_leaves_no_trace_of_earlier_episodes(variant):
    name, level, kind = variant
    used, fresh = (make(name, stochasticity=level, kind=kind) for _ in range(2))
    for seed in range(5):
        used.reset(seed, seed)
    assert used.reset(3, 4) == fresh.reset(3, 4) == fresh.observe()
    assert used.key() == fresh.key()
    copy = pickle.loads(pickle.dumps(used))
    assert copy.observe() == used.observe()
    for action in sorted(used.optimal_actions())[:1]:
        assert copy.step(action) == used.step(action)
        assert copy.observe() == used.observe()


@pytest.mark.parametrize("name", PLANNING)
def test_a_finished_episode_never_pays_twice(name):
    env = make(name)
    env.reset(1)
    while not env.step(min(env.optimal_actions())).done:
        assert env.optimal_actions()
    assert env.optimal_actions() == frozenset()
    with pytest.raises(RuntimeError, match="over"):
        env.step("Up")


@pytest.mark.parametrize("name", [*QUICK, pytest.param("sokoban-large", marks=pytest.mark.slow)])
def test_train_and_heldout_boards_are_disjoint(name):
    env = make(name)
    held = heldout_seeds(env)
    held_keys = {key_of(env, seed) for seed in held}
    assert len(held) == len(held_keys) == 512
    trained, counter = train_seeds(env, 0, 0, 1_000)
    assert counter >= 1_000
    train_keys = {key_of(env, seed) for seed in trained}
    assert not train_keys & held_keys
    assert len(train_keys) > 500
    assert held[:20] == heldout_seeds(make(name), 20)  # the same for every run
    noisy = make(name, stochasticity=0.5, kind="reward")
    assert held[:20] == heldout_seeds(noisy, 20)


def key_of(env, seed):
    env.reset(seed)
    return env.key()


def test_keys_ignore_an_order_that_does_not_matter():
    bandit, countdown = make("bandit"), make("countdown")
    bandit.reset(0)
    first = bandit.key()
    bandit.actions = bandit.actions[::-1]
    assert bandit.key() == first
    countdown.start(15, [3, 5, 7])
    first = countdown.key()
    countdown.start(15, [7, 3, 5])
    assert countdown.key() == first


def test_training_cursor_has_no_memory():
    env = make("frozenlake")
    whole, end = train_seeds(env, 5, 0, 12)
    first, middle = train_seeds(env, 5, 0, 4)
    second, last = train_seeds(make("frozenlake"), 5, middle, 8)
    assert first + second == whole
    assert last == end
    assert train_seeds(env, 6, 0, 12)[0] != whole
    assert train_seeds(env, 5, 3, 0) == ([], 3)


def test_a_fifth_is_held_out_by_a_hash_that_never_changes():
    share = sum(split_of(f"board {i}") == "heldout" for i in range(5_000)) / 5_000
    assert abs(share - 0.2) < 0.02
    # literal values: a change of the hash would silently mix boards of old and new runs
    assert [split_of(f"board {i}") for i in range(8)].count("heldout") == LOCK_HELDOUT
    assert stable_hash("a", 1) == LOCK_HASH


LOCK_HELDOUT = 1
LOCK_HASH = 4665976284724862560


def test_noise_seeds_differ_between_rollouts_and_repeat():
    seeds = {noise_seed(0, step, g, r) for step in range(3) for g in range(4) for r in range(4)}
    assert len(seeds) == 48
    assert noise_seed(1, 2, 3, 4) == noise_seed(1, 2, 3, 4)


def test_silent_share_is_stable_and_nested():
    seeds = range(4_000)
    assert not any(is_silent(seed, 0.0) for seed in seeds)
    assert all(is_silent(seed, 1.0) for seed in seeds)
    half = {seed for seed in seeds if is_silent(seed, 0.5)}
    assert abs(len(half) / 4_000 - 0.5) < 0.03
    assert half <= {seed for seed in seeds if is_silent(seed, 0.75)}


def test_an_environment_of_few_boards_says_so():
    class One(type(make("countdown"))):
        def reset(self, seed, noise_seed=0):
            return self.start(15, [3, 5, 7])

    only = split_of("target 15 numbers 3 5 7")
    with pytest.raises(UserError, match="has only") as few:
        heldout_seeds(One(), 512)
    assert f"only {int(only == 'heldout')} held-out" in str(few.value)
    if only == "train":
        assert len(train_seeds(One(), 0, 0, 3)[0]) == 3


def test_group_members_share_the_arms_and_draw_their_own_payout():
    env = make("bandit")
    pays = []
    for noise in range(4_000):
        assert env.reset(9, noise) == "arms " + " ".join(env.actions)
        (daring,) = env.optimal_actions()
        result = env.step(daring)
        assert result.success
        pays.append(result.reward)
    assert set(pays) == {0.0, 1.0}
    assert abs(np.mean(pays) - 0.25) < 0.03
    env.reset(9)
    (daring,) = env.optimal_actions()
    (calm,) = set(env.actions) - {daring}
    assert (calm in CALM, daring in DARING) == (True, True)
    result = env.step(calm)
    assert (result.reward, result.success) == (0.1, False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make("frozenlak"), "did you mean 'frozenlake'"),
        (lambda: make("xyz"), "known: frozenlake, sokoban"),
        (lambda: make("frozenlake", sise=4), r"no option 'sise' \(did you mean 'size'\?\)"),
        (lambda: make("frozenlake", kind="slipp", stochasticity=0.1), "did you mean 'slip'"),
        (lambda: make("frozenlake", stochasticity=1.5), "from 0 to 1"),
        (lambda: make("sokoban", stochasticity=0.1), "'sokoban' cannot slip"),
        (lambda: make("countdown", stochasticity=0.1, kind="action"), "'countdown' takes free"),
        (lambda: make("no/such/file.py:Env"), "does not exist"),
    ],
)
def test_wrong_names_are_mended_by_the_message(call, message):
    with pytest.raises(UserError, match=message):
        call()


@pytest.mark.parametrize("name", REGISTRY)
def test_every_environment_tells_what_it_is(name):
    env = make(name)
    assert env.name == name
    assert env.instruction.strip()
    assert environment_class(name).__doc__
    assert all(value is not None for value in options_of(environment_class(name)).values())
