"""Word problems from a seed: fourteen templates over small numbers with exact rational answers.

A template draws its numbers so that every intermediate count is whole and positive where the story
needs it. To add one, write a function ``(draw) -> (question, answer)`` and list it in
``TEMPLATES``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

NAMES = ("Ada", "Ben", "Chloe", "Dev", "Ema", "Femi", "Gus", "Hana", "Ivo", "June", "Kofi", "Lena")
THINGS = ("apples", "pencils", "marbles", "stickers", "shells", "cards", "beads", "coins")


@dataclass(frozen=True, slots=True)
class Draw:
    """The random choices of one problem."""

    rng: np.random.Generator

    def number(self, low: int, high: int) -> int:
        """Return an integer between low and high, both included."""
        return int(self.rng.integers(low, high + 1))

    def names(self, count: int = 1) -> list[str]:
        """Return different first names."""
        return [NAMES[i] for i in self.rng.choice(len(NAMES), size=count, replace=False)]

    def thing(self) -> str:
        """Return a plural noun for countable things."""
        return THINGS[int(self.rng.integers(len(THINGS)))]


Problem = tuple[str, Fraction]


def _buy_and_give(draw: Draw) -> Problem:
    (name, other), thing = draw.names(2), draw.thing()
    boxes, each = draw.number(2, 9), draw.number(3, 12)
    given = draw.number(1, boxes * each - 1)
    return (
        f"{name} buys {boxes} boxes with {each} {thing} in each box and gives {given} of them to "
        f"{other}. How many {thing} does {name} have left?",
        Fraction(boxes * each - given),
    )


def _share_equally(draw: Draw) -> Problem:
    (name,), thing = draw.names(), draw.thing()
    friends, each = draw.number(2, 8), draw.number(2, 12)
    start = draw.number(1, friends * each - 1)
    return (
        f"{name} had {start} {thing} and found {friends * each - start} more. All of them are "
        f"shared equally among {friends} friends. How many {thing} does each friend get?",
        Fraction(each),
    )


def _price_and_change(draw: Draw) -> Problem:
    (name,) = draw.names()
    count, cents = draw.number(2, 6), draw.number(3, 39) * 5
    paid = -(-count * cents // 500) * 5 + 5
    return (
        f"{name} buys {count} notebooks at ${cents // 100}.{cents % 100:02d} each and pays with "
        f"${paid}. How many dollars of change does {name} get?",
        Fraction(paid * 100 - count * cents, 100),
    )


def _constant_speed(draw: Draw) -> Problem:
    speed, minutes = draw.number(4, 30) * 2, draw.number(1, 11) * 15
    return (
        f"A bus drives at {speed} kilometers per hour for {minutes} minutes. How many kilometers "
        "does it cover?",
        Fraction(speed * minutes, 60),
    )


def _percent_off(draw: Draw) -> Problem:
    price, percent = draw.number(4, 60) * 5, draw.number(1, 9) * 10
    return (
        f"A jacket costs ${price}. In the sale it is {percent}% cheaper. What does it cost in the "
        "sale, in dollars?",
        Fraction(price * (100 - percent), 100),
    )


def _ages(draw: Draw) -> Problem:
    old, young = draw.names(2)
    age, times, years = draw.number(3, 12), draw.number(2, 4), draw.number(2, 9)
    return (
        f"{young} is {age} years old and {old} is {times} times as old. How old will {old} be in "
        f"{years} years?",
        Fraction(age * times + years),
    )


def _rectangle(draw: Draw) -> Problem:
    width, longer = draw.number(3, 15), draw.number(1, 9)
    return (
        f"A garden is {width} meters wide and {longer} meters longer than it is wide. How many "
        "meters of fence go around it?",
        Fraction(2 * (2 * width + longer)),
    )


def _average(draw: Draw) -> Problem:
    (name,) = draw.names()
    scores = [draw.number(40, 100) for _ in range(draw.number(3, 5))]
    listed = ", ".join(map(str, scores[:-1]))
    return (
        f"{name} scores {listed} and {scores[-1]} points in {len(scores)} games. What is the "
        "average score per game?",
        Fraction(sum(scores), len(scores)),
    )


def _fraction_of(draw: Draw) -> Problem:
    (name,), thing = draw.names(), draw.thing()
    parts = draw.number(2, 6)
    taken, each = draw.number(1, parts - 1), draw.number(3, 12)
    return (
        f"{name} has {parts * each} {thing} and loses {taken}/{parts} of them. How many {thing} "
        "are left?",
        Fraction((parts - taken) * each),
    )


def _two_workers(draw: Draw) -> Problem:
    first, second = draw.names(2)
    hours_a, hours_b = draw.number(2, 9), draw.number(2, 9)
    return (
        f"{first} paints a fence in {hours_a} hours and {second} paints the same fence in "
        f"{hours_b} hours. How many hours do they need together? Give an exact fraction.",
        Fraction(hours_a * hours_b, hours_a + hours_b),
    )


def _find_unknown(draw: Draw) -> Problem:
    (name,) = draw.names()
    unknown, factor, added = draw.number(2, 30), draw.number(2, 9), draw.number(1, 40)
    return (
        f"{name} thinks of a number, multiplies it by {factor}, adds {added} and gets "
        f"{unknown * factor + added}. What is the number?",
        Fraction(unknown),
    )


def _legs(draw: Draw) -> Problem:
    hens, goats = draw.number(2, 15), draw.number(2, 15)
    return (
        f"A yard holds hens and goats: {hens + goats} heads and {2 * hens + 4 * goats} legs. How "
        "many goats are there?",
        Fraction(goats),
    )


def _tank(draw: Draw) -> Problem:
    hours, into, out = draw.number(2, 9), draw.number(10, 30), draw.number(2, 9)
    start = draw.number(0, 50)
    return (
        f"A tank holds {start} liters. A pipe adds {into} liters an hour while a leak loses {out} "
        f"liters an hour. How many liters does it hold after {hours} hours?",
        Fraction(start + hours * (into - out)),
    )


def _mixture(draw: Draw) -> Problem:
    cheap, dear = draw.number(2, 8), draw.number(9, 20)
    kilos_cheap, kilos_dear = draw.number(1, 9), draw.number(1, 9)
    return (
        f"A shop mixes {kilos_cheap} kilos of tea at ${cheap} a kilo with {kilos_dear} kilos at "
        f"${dear} a kilo. What is a kilo of the mixture worth, in dollars? Give an exact fraction.",
        Fraction(cheap * kilos_cheap + dear * kilos_dear, kilos_cheap + kilos_dear),
    )


TEMPLATES: tuple[Callable[[Draw], Problem], ...] = (
    _buy_and_give,
    _share_equally,
    _price_and_change,
    _constant_speed,
    _percent_off,
    _ages,
    _rectangle,
    _average,
    _fraction_of,
    _two_workers,
    _find_unknown,
    _legs,
    _tank,
    _mixture,
)


def generate(seed: int) -> Problem:
    """Return the question and the exact answer of a seed; the same in every process."""
    draw = Draw(np.random.Generator(np.random.Philox(seed)))
    return TEMPLATES[draw.number(0, len(TEMPLATES) - 1)](draw)
