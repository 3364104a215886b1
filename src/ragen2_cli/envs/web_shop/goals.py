"""What shoppers want: goals from WebShop's instruction files, each with a price limit.

Synthetic goals (``items_ins_v2*.json``: an object by asin) name one combination of options each;
human goals (``items_human_ins*.json``: a list by asin) come as people wrote them. The limit is the
larger of two draws from the next four multiples of ten above the price, as in the original, but
drawn from a hash of the goal, so that it is the same in every process.
"""

import itertools
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from ragen2_cli.envs.rows import open_text
from ragen2_cli.envs.splits import stable_hash
from ragen2_cli.envs.web_shop.catalogue import Catalogue, Product
from ragen2_cli.envs.web_shop.score import Goal
from ragen2_cli.errors import UserError

_LARGEST_LIMIT = 990


@dataclass(frozen=True, slots=True)
class Task:
    """A goal and the words that tell it to the shopper."""

    instruction: str
    goal: Goal
    asin: str


def read_instructions(path: Path) -> dict[str, Any]:
    """Return an instruction file: objects or lists of objects by asin.

    Raises:
        UserError: When the file is missing or no JSON object.
    """
    try:
        with open_text(path) as file:
            found = json.load(file)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such instruction file") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected an object by asin, found {type(found).__name__}")
    return found


class Tasks(Sequence[Task]):
    """All tasks of a catalogue in its order, each made when it is asked for.

    A product with synthetic instructions has one task per combination of its options, so a large
    catalogue has far too many to hold. An instruction without attributes is left out, as in the
    original.

    Args:
        catalogue: The products.
        instructions: What ``read_instructions`` returned.
        source: Where they come from, for messages.

    Raises:
        UserError: When no product has an instruction, or one is malformed.
    """

    def __init__(self, catalogue: Catalogue, instructions: Mapping[str, Any], source: str) -> None:
        self._told: list[tuple[Product, _Told]] = []
        self._ends: list[int] = []
        total = 0
        for product in catalogue.products:
            for told in _told(instructions.get(product.asin), f"{source} entry {product.asin}"):
                self._told.append((product, told))
                total += 1 if told.options is not None else _combinations(product)
                self._ends.append(total)
        if not self._told:
            raise UserError(f"{source}: no instruction for any product of the catalogue")

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = bisect_right(self._ends, index)
        product, told = self._told[at]
        number = index - (self._ends[at - 1] if at else 0)
        if told.options is not None:
            return _task(product, told.text.strip("."), told.wanted, told.options, told.number)
        names = sorted(product.options)
        values = _combination(product, names, number)
        said = ", and ".join(f"{n}: {v}" for n, v in zip(names, values, strict=True))
        text = told.text + (f" with {said}" if said else "")
        return _task(product, text, told.wanted, values, number)


@dataclass(frozen=True, slots=True)
class _Told:
    """An instruction; ``options`` is None when it stands for every combination."""

    text: str
    wanted: tuple[str, ...]
    options: tuple[str, ...] | None
    number: int


def _told(entry: Any, where: str) -> Iterator[_Told]:
    if entry is None:
        return
    if isinstance(entry, list):
        for number, human in enumerate(entry):
            place = f"{where}[{number}]"
            wanted = _strings(human, "instruction_attributes", place)
            if wanted:
                options = _option_values(human.get("instruction_options"))
                yield _Told(_text(human, place), wanted, options, number)
        return
    wanted = _strings(entry, "instruction_attributes", where)
    if wanted and entry.get("instruction"):
        yield _Told(_text(entry, where), wanted, None, 0)


def _combinations(product: Product) -> int:
    return math.prod(len(values) for values in product.options.values())


def _combination(product: Product, names: list[str], number: int) -> tuple[str, ...]:
    """Return combination ``number``; the last option changes fastest."""
    values = []
    for name in reversed(names):
        number, place = divmod(number, len(product.options[name]))
        values.append(product.options[name][place])
    return tuple(reversed(values))


def _strings(entry: Any, name: str, where: str) -> tuple[str, ...]:
    if not isinstance(entry, dict):
        raise UserError(f"{where}: expected an object, found {type(entry).__name__}")
    values = entry.get(name) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UserError(f"{where}: field {name!r} is no list of texts")
    return tuple(value.lower() for value in values)


def _text(entry: Mapping[str, Any], where: str) -> str:
    text = entry.get("instruction")
    if not isinstance(text, str):
        raise UserError(f"{where}: field 'instruction' is missing")
    return text


def _option_values(value: Any) -> tuple[str, ...]:
    values = value.values() if isinstance(value, dict) else value or ()
    return tuple(str(option).lower() for option in values)


def _task(
    product: Product, text: str, wanted: tuple[str, ...], options: tuple[str, ...], number: int
) -> Task:
    limit = _limit(product, number)
    if limit is not None:
        text = f"{text}, and price lower than {limit:.2f} dollars"
    goal = Goal(product.query, product.category, product.title, wanted, options, limit)
    return Task(text, goal, product.asin)


def _limit(product: Product, number: int) -> float | None:
    first = int(product.price // 10) * 10 + 10
    choices = range(first, min(first + 40, _LARGEST_LIMIT + 1), 10)
    pairs = list(itertools.combinations(choices, 2))
    if not pairs:
        return None
    return float(max(pairs[stable_hash("limit", product.asin, number) % len(pairs)]))
