"""Questions about the embedded world, with their answers and the passages they need."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ragen2_cli.envs.search_qa.world import Person, Town, World, world


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        text: The question.
        answers: Accepted answers; scores take the best one.
        gold: Titles of the passages that hold the needed facts; empty when unknown.
        hops: How many passages it needs; 0 when unknown.
    """

    text: str
    answers: tuple[str, ...]
    gold: frozenset[str]
    hops: int


def _ask(text: str, answer: object, *gold: str) -> Question:
    return Question(text, (str(answer),), frozenset(gold), len(gold))


class _Finder:
    """Looks entities up by name and draws from lists."""

    def __init__(self, found: World, rng: np.random.Generator) -> None:
        self.world = found
        self.rng = rng
        self.person_of = {person.name: person for person in found.people}
        self.town_of = {town.name: town for town in found.towns}

    def person(self, *, taught: bool = False) -> Person:
        people = [p for p in self.world.people if p.mentor] if taught else self.world.people
        return people[int(self.rng.integers(len(people)))]

    def index(self, count: int) -> int:
        return int(self.rng.integers(count))

    def town(self, person: Person) -> Town:
        return self.town_of[person.town]


def _birth_town(find: _Finder) -> Question:
    person = find.person()
    return _ask(f"In which town was {person.name} born?", person.town, person.name)


def _birth_year(find: _Finder) -> Question:
    person = find.person()
    return _ask(f"In which year was {person.name} born?", person.year, person.name)


def _teacher(find: _Finder) -> Question:
    person = find.person(taught=True)
    return _ask(f"Who was the teacher of {person.name}?", person.mentor, person.name)


def _author(find: _Finder) -> Question:
    work = find.world.works[find.index(len(find.world.works))]
    name = work.title.rpartition(" (")[0]
    return _ask(f"Who made the {work.kind} {name}?", work.author, work.title)


def _work_year(find: _Finder) -> Question:
    work = find.world.works[find.index(len(find.world.works))]
    name = work.title.rpartition(" (")[0]
    return _ask(f"In which year was the {work.kind} {name} finished?", work.year, work.title)


def _region_of_birth(find: _Finder) -> Question:
    person = find.person()
    region = find.town(person).region
    text = f"In which region was {person.name} born?"
    return _ask(text, region, person.name, person.town)


def _river_of_birth(find: _Finder) -> Question:
    person = find.person()
    river = find.town(person).river
    text = f"On which river does the town lie in which {person.name} was born?"
    return _ask(text, river, person.name, person.town)


def _author_birth_town(find: _Finder) -> Question:
    work = find.world.works[find.index(len(find.world.works))]
    author = find.person_of[work.author]
    name = work.title.rpartition(" (")[0]
    text = f"In which town was the maker of the {work.kind} {name} born?"
    return _ask(text, author.town, work.title, author.name)


def _teachers_town(find: _Finder) -> Question:
    person = find.person(taught=True)
    teacher = find.person_of[person.mentor]
    text = f"In which town was the teacher of {person.name} born?"
    return _ask(text, teacher.town, person.name, teacher.name)


def _event_region(find: _Finder) -> Question:
    event = find.world.events[find.index(len(find.world.events))]
    text = f"In which region is the {event.name} held?"
    return _ask(text, find.town_of[event.town].region, event.name, event.town)


def _founder_birth_year(find: _Finder) -> Question:
    company = find.world.companies[find.index(len(find.world.companies))]
    founder = find.person_of[company.founder]
    text = f"In which year was the founder of {company.name} born?"
    return _ask(text, founder.year, company.name, founder.name)


def _comparison(find: _Finder) -> Question:
    first, second = (
        find.world.people[int(i)] for i in find.rng.choice(len(find.world.people), 2, replace=False)
    )
    if find.index(2):
        same = first.profession == second.profession
        text = f"Did {first.name} and {second.name} have the same profession?"
    else:
        same = first.year < second.year
        text = f"Was {first.name} born in an earlier year than {second.name}?"
    return _ask(text, "yes" if same else "no", first.name, second.name)


TEMPLATES: tuple[Callable[[_Finder], Question], ...] = (
    _birth_town,
    _birth_year,
    _teacher,
    _author,
    _work_year,
    _region_of_birth,
    _river_of_birth,
    _author_birth_town,
    _teachers_town,
    _event_region,
    _founder_birth_year,
    _comparison,
)


def question(seed: int) -> Question:
    """Return the question of a seed; the same in every process."""
    find = _Finder(world(), np.random.Generator(np.random.Philox(seed)))
    return TEMPLATES[find.index(len(TEMPLATES))](find)
