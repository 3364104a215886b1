"""Products in WebShop's own file layout, streamed from a file of any size.

A catalogue file (``items_shuffle*.json``) is a JSON list of objects. Only what the shop shows and
the score reads is kept. An item without price costs 100, as in the original; one without options
has none; one without id or with a known one is left out. All three are counted.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen2_cli.envs.rows import Row, field, open_text
from ragen2_cli.envs.splits import stable_hash
from ragen2_cli.errors import UserError

DEFAULT_PRICE = 100.0
_CHUNK = 1 << 20
_LARGEST_ITEM = 64 << 20
_PRICE = re.compile(r"\d[\d,]*(?:\.\d+)?|\.\d+")


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Attributes:
        asin: Its id, upper case as written.
        title: Its name.
        description: Long text.
        bullets: Short texts, the "features".
        reviews: Texts of reviews.
        rating: Average rating as shown.
        category: Category path, parts separated by ``›``.
        query: Search phrase it was collected with, lower case.
        attributes: Its attributes; empty when unknown.
        options: Values by option name, all lower case, in order.
        price: What it costs; where the file gives a range, a fixed place in it.
        price_tag: The price as shown, possibly a range.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    reviews: tuple[str, ...]
    rating: str
    category: str
    query: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: float
    price_tag: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All products in file order, with what was unusual about the file.

    Attributes:
        products: The products.
        skipped: Items left out: without id, or with an id that came before.
        unpriced: Products that got the default price.
        plain: Products without any option.
    """

    products: tuple[Product, ...]
    skipped: int
    unpriced: int
    plain: int

    def summary(self) -> str:
        """Return one line with the counts."""
        return (
            f"{len(self.products)} products ({self.skipped} items skipped, {self.unpriced} without "
            f"a price cost {DEFAULT_PRICE:g}, {self.plain} without options)"
        )


def stream_items(path: Path) -> Iterator[Row]:
    """Yield the objects of a JSON list without holding the file in memory.

    Raises:
        UserError: When the file is missing, is no list, or an item is no object or not JSON.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such catalogue file; give an items_shuffle*.json of WebShop")
    decoder = json.JSONDecoder()
    with open_text(path) as file:
        text, at, number = file.read(_CHUNK).lstrip(), 1, 0
        if not text.startswith("["):
            raise UserError(f"{path}: expected a JSON list of items")
        while True:
            at = _skip(text, at)
            if text[at : at + 1] == "]":
                return
            try:
                item, at = decoder.raw_decode(text, at)
            except json.JSONDecodeError as error:
                text, at = text[at:], 0
                more = file.read(max(_CHUNK, len(text)))
                if not more or len(text) > _LARGEST_ITEM:
                    raise UserError(f"{path} item {number}: not JSON ({error.msg})") from error
                text += more
                continue
            if not isinstance(item, dict):
                raise UserError(f"{path} item {number}: expected an object")
            yield item
            number += 1


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def read_catalogue(
    items: Iterable[Row], attributes: Mapping[str, Any], source: str, limit: int = 0
) -> Catalogue:
    """Turn items into products.

    Args:
        items: Objects of the catalogue layout.
        attributes: By asin, objects with ``attributes`` (the layout of ``items_ins_v2*.json``).
        source: Where they come from, for messages.
        limit: Read this many items at most; 0 reads all.

    Raises:
        UserError: When an item lacks its name, or a field has another kind than it should.
    """
    products: dict[str, Product] = {}
    skipped = unpriced = 0
    for number, item in enumerate(items):
        if limit and number >= limit:
            break
        where = f"{source} item {number}"
        asin = item.get("asin")
        if not isinstance(asin, str) or not asin or asin == "nan" or asin in products:
            skipped += 1
            continue
        low, high = _prices(item.get("pricing"))
        unpriced += low is None
        products[asin] = _product(item, asin, attributes.get(asin), low, high, where)
    if not products:
        raise UserError(f"{source}: no product in it")
    plain = sum(not product.options for product in products.values())
    return Catalogue(tuple(products.values()), skipped, unpriced, plain)


def _product(
    item: Row, asin: str, extra: Any, low: float | None, high: float | None, where: str
) -> Product:
    bullets = item.get("small_description") or []
    price, tag = DEFAULT_PRICE, f"${DEFAULT_PRICE}"
    if low is not None and high is None:
        price, tag = low, f"${low}"
    elif low is not None and high is not None:
        share = stable_hash("price", asin) / 2**63
        price, tag = round(low + share * (high - low), 2), f"${low} to ${high}"
    own = extra.get("attributes") if isinstance(extra, dict) else None
    return Product(
        asin=asin,
        title=field(item, "name", str, where),
        description=_text(item.get("full_description")),
        bullets=tuple(map(_text, bullets if isinstance(bullets, list) else [bullets])),
        reviews=tuple(_review(review) for review in item.get("reviews") or []),
        rating=_text(item.get("average_rating")) or "N.A.",
        category=_text(item.get("product_category")),
        query=_text(item.get("query")).lower().strip(),
        attributes=tuple(map(str, own or ())),
        options=_options(item.get("customization_options"), where),
        price=price,
        price_tag=tag,
    )


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else "" if value is None else str(value)


def _review(review: Any) -> str:
    if not isinstance(review, dict):
        return _text(review)
    parts = [_text(review.get(key)) for key in ("title", "review", "body")]
    return ". ".join(part for part in parts if part)


def _prices(pricing: Any) -> tuple[float | None, float | None]:
    """Return (price, None), (low, high) or (None, None) from text like ``$12.99$34.00``."""
    if not isinstance(pricing, str):
        return None, None
    found = [float(p.replace(",", "")) for p in _PRICE.findall(pricing)]
    if not found:
        return None, None
    return found[0], found[1] if len(found) > 1 else None


def _options(value: Any, where: str) -> dict[str, tuple[str, ...]]:
    if not value:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{where}: field 'customization_options' is no object of option lists")
    options = {}
    for name, contents in value.items():
        values = [_option(content, name, where) for content in contents or []]
        if values:
            options[name.lower()] = tuple(dict.fromkeys(values))
    return options


def _option(content: Any, name: str, where: str) -> str:
    if not isinstance(content, dict) or not isinstance(content.get("value"), str):
        raise UserError(f"{where}: option {name!r} has an entry without the field 'value'")
    return str(content["value"]).strip().replace("/", " | ").lower()
