"""A small invented world with its encyclopedia: the embedded corpus.

Every fact is drawn once from a fixed seed and told in exactly one passage, so a question about two
facts needs two passages. Families share surnames and works share words, so that the passages of
other people and works are likely wrong finds.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

WORLD_SEED = 20_260
_REGIONS = ("Arvell", "Bergholt", "Cassmoor", "Dunmere", "Estavia", "Farrowland", "Gelden", "Harn")
_RIVERS = ("Aldra", "Brenn", "Corva", "Delle", "Emmer", "Fenna", "Grale", "Hesk", "Ister", "Jorn")
_HEADS = ("Al", "Bran", "Cor", "Dun", "El", "Fal", "Gar", "Hol", "Ish", "Jar", "Kel", "Lor")
_TAILS = ("bridge", "ford", "haven", "stead", "wick")
_GIVEN = (
    "Ada", "Bela", "Cora", "Dario", "Edda", "Falk", "Greta", "Hugo", "Ilse", "Jonas", "Karla",
    "Leon", "Mira", "Nils", "Olga", "Paul", "Quinn", "Rosa", "Sven", "Tilda",
)  # fmt: skip
_FAMILY = (
    "Abendroth", "Brandis", "Castell", "Dornbach", "Ellering", "Fenwick", "Gollner", "Hartmoor",
    "Iversen", "Jessel", "Kronauer", "Lindqvist",
)  # fmt: skip
_PROFESSIONS = ("novelist", "composer", "painter", "architect", "chemist", "botanist")
_KINDS = {
    "novelist": "novel", "composer": "opera", "painter": "painting", "architect": "tower",
    "chemist": "treatise", "botanist": "atlas",
}  # fmt: skip
_ADJECTIVES = ("Silent", "Golden", "Broken", "Distant", "Hidden", "Last", "Northern", "Second")
_NOUNS = ("Garden", "Harbor", "Lantern", "Meadow", "Mirror", "Orchard", "River", "Winter")
_FESTIVALS = ("Lantern Fair", "Harvest Race", "River Regatta", "Winter Market", "Kite Day")
_GOODS = ("clocks", "glass", "paper", "bicycles", "pianos", "tea")


@dataclass(frozen=True, slots=True)
class Person:
    """An inhabitant; ``mentor`` is a full name, empty for the oldest."""

    name: str
    profession: str
    town: str
    year: int
    mentor: str


@dataclass(frozen=True, slots=True)
class Town:
    """A town of a region on a river."""

    name: str
    region: str
    river: str
    founded: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a person made."""

    title: str
    kind: str
    author: str
    year: int


@dataclass(frozen=True, slots=True)
class Event:
    """A yearly event of a town, first held in a year."""

    name: str
    town: str
    year: int


@dataclass(frozen=True, slots=True)
class Company:
    """A firm, its founder and its goods."""

    name: str
    founder: str
    goods: str
    year: int


@dataclass(frozen=True, slots=True)
class Passage:
    """One article."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class World:
    """Everything there is, in a fixed order."""

    towns: tuple[Town, ...]
    people: tuple[Person, ...]
    works: tuple[Work, ...]
    events: tuple[Event, ...]
    companies: tuple[Company, ...]
    passages: tuple[Passage, ...]


@lru_cache(maxsize=1)
def world() -> World:
    """Return the world: 60 towns, 240 people, 240 works, 60 events, 60 companies."""
    rng = np.random.Generator(np.random.Philox(WORLD_SEED))
    towns = _towns(rng)
    people = _people(rng, towns)
    works = _works(rng, people)
    names = [f"{town.name} {festival}" for town in towns for festival in _FESTIVALS]
    chosen = sorted(rng.choice(len(names), size=60, replace=False))
    events = tuple(
        Event(names[i], towns[i // len(_FESTIVALS)].name, int(rng.integers(1850, 1990)))
        for i in chosen
    )
    founders = sorted(rng.choice(len(people), size=60, replace=False))
    companies = tuple(
        Company(
            f"{people[i].name.split()[1]} {_GOODS[k % 6].title()} of {people[i].name.split()[0]}",
            people[i].name,
            _GOODS[k % 6],
            people[i].year + int(rng.integers(25, 50)),
        )
        for k, i in enumerate(founders)
    )
    passages = (
        *map(_tell_town, towns),
        *map(_tell_person, people),
        *map(_tell_work, works),
        *map(_tell_event, events),
        *map(_tell_company, companies),
    )
    return World(towns, people, works, events, companies, passages)


def _towns(rng: np.random.Generator) -> tuple[Town, ...]:
    return tuple(
        Town(
            head + tail,
            _REGIONS[int(rng.integers(len(_REGIONS)))],
            _RIVERS[int(rng.integers(len(_RIVERS)))],
            int(rng.integers(1100, 1700)),
        )
        for head in _HEADS
        for tail in _TAILS
    )


def _people(rng: np.random.Generator, towns: tuple[Town, ...]) -> tuple[Person, ...]:
    """Draw people oldest first, so that a mentor is always an older one of the same trade."""
    names = [f"{given} {family}" for given in _GIVEN for family in _FAMILY]
    order = rng.permutation(len(names))
    years = sorted(int(year) for year in rng.integers(1800, 1950, size=len(names)))
    people: list[Person] = []
    for index, year in zip(order, years, strict=True):
        profession = _PROFESSIONS[int(rng.integers(len(_PROFESSIONS)))]
        town = towns[int(rng.integers(len(towns)))].name
        older = [p.name for p in people if p.profession == profession and 15 < year - p.year < 60]
        mentor = older[int(rng.integers(len(older)))] if older else ""
        people.append(Person(names[index], profession, town, year, mentor))
    return tuple(people)


def _works(rng: np.random.Generator, people: tuple[Person, ...]) -> tuple[Work, ...]:
    """Give every person one work; equal words recur under different kinds."""
    works, taken = [], set()
    for person in people:
        kind = _KINDS[person.profession]
        while True:
            adjective = _ADJECTIVES[int(rng.integers(len(_ADJECTIVES)))]
            noun = _NOUNS[int(rng.integers(len(_NOUNS)))]
            title = f"The {adjective} {noun}"
            if (title, kind) not in taken:
                break
        taken.add((title, kind))
        works.append(Work(f"{title} ({kind})", kind, person.name, person.year + 22))
    return tuple(
        Work(work.title, work.kind, work.author, work.year + int(rng.integers(0, 35)))
        for work in works
    )


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _tell_town(town: Town) -> Passage:
    return Passage(
        town.name,
        f"{town.name} is a town in the region of {town.region}. It lies on the river {town.river} "
        f"and was founded in {town.founded}. Its market square is among the oldest of the region.",
    )


def _tell_person(person: Person) -> Passage:
    learned = f" The {person.profession} {person.mentor} was the teacher." if person.mentor else ""
    return Passage(
        person.name,
        f"{person.name} was {_a(person.profession)} born in {person.town} in {person.year}."
        f"{learned} The family name {person.name.split()[1]} is common in several towns.",
    )


def _tell_work(work: Work) -> Passage:
    return Passage(
        work.title,
        f"{work.title.rpartition(' (')[0]} is {_a(work.kind)} by {work.author}, finished in "
        f"{work.year}. It is one of the better known works of its kind.",
    )


def _tell_event(event: Event) -> Passage:
    return Passage(
        event.name,
        f"The {event.name} is held every year in {event.town}. It took place for the first time in "
        f"{event.year} and draws visitors from all regions.",
    )


def _tell_company(company: Company) -> Passage:
    return Passage(
        company.name,
        f"{company.name} is a company that makes {company.goods}. It was set up by "
        f"{company.founder} in {company.year} and stayed in the family for long.",
    )
