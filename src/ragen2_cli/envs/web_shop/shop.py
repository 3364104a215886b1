"""A shop: a catalogue, its search engine and its tasks, loaded once and shared."""

import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ragen2_cli.envs import bm25
from ragen2_cli.envs.web_shop.catalogue import Product, read_catalogue, stream_items
from ragen2_cli.envs.web_shop.generate import generate
from ragen2_cli.envs.web_shop.goals import Tasks, read_instructions
from ragen2_cli.errors import UserError

MAX_RESULTS = 50
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shop:
    """Everything that episodes share; never changed after it is built."""

    products: tuple[Product, ...]
    tasks: Tasks
    model: Any

    def search(self, words: str) -> list[Product]:
        """Return at most 50 products, best first."""
        found = bm25.top(self.model, words, MAX_RESULTS, len(self.products))
        return [self.products[number] for number in found]


@lru_cache(maxsize=2)
def open_shop(items: str, attributes: str, human: str, limit: int) -> Shop:
    """Load the shop of WebShop's files, or the embedded one when ``items`` is empty.

    Args:
        items: Path of ``items_shuffle*.json``.
        attributes: Path of ``items_ins_v2*.json``: attributes and synthetic instructions.
        human: Path of ``items_human_ins*.json``; empty uses the synthetic instructions.
        limit: Read this many items at most; 0 reads all.

    Raises:
        UserError: When a file is missing or has another layout.
    """
    if not items:
        rows, instructions = generate()
        catalogue = read_catalogue(rows, instructions, "embedded catalogue")
        source = "embedded instructions"
    else:
        if not attributes:
            raise UserError(
                f"{items}: its attributes are needed too; "
                "give --set env.options.attributes=items_ins_v2*.json"
            )
        known = read_instructions(Path(attributes))
        catalogue = read_catalogue(stream_items(Path(items)), known, items, limit)
        if catalogue.skipped or catalogue.unpriced or catalogue.plain:
            _log.warning("web_shop: %s: %s", items, catalogue.summary())
        source = human or attributes
        instructions = read_instructions(Path(human)) if human else known
    found = Tasks(catalogue, instructions, source)
    model = bm25.build([_searched(product) for product in catalogue.products])
    return Shop(catalogue.products, found, model)


def _searched(product: Product) -> str:
    options = " ".join(value for values in product.options.values() for value in values)
    bullets = " ".join(product.bullets)
    return f"{product.title} {product.description} {bullets} {options}"
