"""Bandit: choose between a sure small payout and a risky large one; the names tell which is which.

A name from the calm list belongs to the sure arm, one from the daring list to the risky arm. Which
words are daring must be learned (or known); held-out prompts are new pairs.
"""

import numpy as np

from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.options import share

_CALM_WORDS = """
    Accountant Archivist Baker Bench Blanket Bookkeeper Brook Cabinet Candle Clerk Cottage Cow
    Cushion Daisy Dentist Donkey Fern Fossil Garden Goat Gardener Hammock Haystack Hedgehog Kettle
    Koala Ladder Lamp Librarian Meadow Mitten Monk Moss Notary Nurse Oak Orchard Oyster Panda
    Pebble Pillow Pond Porridge Postman Quilt Scarf Sheep Slipper Sloth Snail Sofa Spoon Tailor
    Teacher Teapot Tortoise Turtle Umbrella Willow Wool
"""
_DARING_WORDS = """
    Acrobat Adventurer Avalanche Blaze Bull Buccaneer Cannon Catapult Cheetah Comet Condor
    Corsair Crusader Cyclone Daredevil Dragon Dynamo Eagle Explorer Falcon Firework Gambler
    Gladiator Griffin Hawk Hunter Hurricane Inferno Jaguar Joker Kraken Lightning Lion Maverick
    Meteor Outlaw Panther Phoenix Pilot Pirate Racer Raider Ranger Rebel Rider Rocket Shark
    Smuggler Stallion Storm Stuntman Thunder Tiger Tornado Trader Typhoon Viking Volcano Warrior
    Wolf
"""
CALM = tuple(_CALM_WORDS.split())
DARING = tuple(_DARING_WORDS.split())
LOW, HIGH = 0.1, 1.0


class Bandit(TextEnv):
    """Pull one of two named arms, once.

    Observation: ``arms Turtle Dragon``. The calm arm pays 0.1; the daring arm pays 1 with
    probability ``chance``, else 0. Success is choosing the daring arm, whatever it pays.

    Args:
        chance: Probability that the daring arm pays; from 0.1 (as good as
            the calm one on average) to 1.
    """

    name = "bandit"
    instruction = (
        "Pull one of the two arms that are named, once. The arm with the calm name always pays "
        "0.1. The arm with the daring name pays 1 now and then, else nothing, and is the better "
        "one on average. Answer with the name of an arm."
    )
    actions: tuple[str, ...] = ()
    max_turns = 1
    max_actions = 1
    actions_per_turn = 1
    outcomes = (HIGH, LOW)

    def __init__(self, chance: float = 0.25) -> None:
        self.chance = share(self.name, "chance", chance, 0.1, 1.0)

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Draw the two names and their order from ``seed``; ``noise_seed`` decides the payout."""
        rng = np.random.default_rng((seed, 0xBA))
        self._daring = DARING[int(rng.integers(len(DARING)))]
        pair = [CALM[int(rng.integers(len(CALM)))], self._daring]
        self.actions = tuple(pair[:: 1 if rng.random() < 0.5 else -1])
        self._pays = float(np.random.default_rng((noise_seed, 0xBB)).random()) < self.chance
        self._over = False
        return self.observe()

    def step(self, action: str) -> StepResult:
        """Pull an arm."""
        if self._over:
            raise RuntimeError("the episode is over; call reset")
        self._over = True
        if action != self._daring:
            return StepResult(LOW, done=True)
        return StepResult(HIGH if self._pays else 0.0, done=True, success=True)

    def observe(self) -> str:
        """Return the two names."""
        return f"arms {' '.join(self.actions)}"

    def key(self) -> str:
        """Return the pair whatever its order."""
        return f"arms {' '.join(sorted(self.actions))}"

    def optimal_actions(self) -> frozenset[str]:
        """Return the daring arm; empty once the episode is over."""
        return frozenset() if self._over else frozenset({self._daring})
