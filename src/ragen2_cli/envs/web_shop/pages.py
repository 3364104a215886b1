"""The shop's pages as text, with the buttons that each one has.

Pieces are joined with ``[SEP]`` in the order of WebShop's text mode; buttons are matched in lower
case.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ragen2_cli.envs.web_shop.catalogue import Product

SEPARATOR = " [SEP] "
PER_PAGE = 10
BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"
DETAILS = ("description", "features", "reviews")


@dataclass(frozen=True, slots=True)
class Page:
    """What is shown.

    Attributes:
        text: The page.
        buttons: What can be clicked, lower case, in the order shown.
        searchable: Whether there is a search bar.
    """

    text: str
    buttons: tuple[str, ...]
    searchable: bool = False


def search_page(instruction: str) -> Page:
    """Return the start page."""
    text = SEPARATOR.join(["WebShop", "Instruction:", instruction, "Search"])
    return Page(text, (), searchable=True)


def results_page(instruction: str, results: list[Product], number: int) -> Page:
    """Return page ``number`` (from 1) of the results, ten products each."""
    shown = results[(number - 1) * PER_PAGE : number * PER_PAGE]
    head = [f"Page {number} (Total results: {len(results)})"]
    buttons = [BACK]
    if number > 1:
        head.append("< Prev")
        buttons.append(PREVIOUS)
    if number * PER_PAGE < len(results):
        head.append("Next >")
        buttons.append(NEXT)
    cells = [cell for p in shown for cell in (p.asin, p.title, p.price_tag)]
    text = SEPARATOR.join([*_top(instruction), *head, *cells])
    return Page(text, (*buttons, *(product.asin.lower() for product in shown)))


def item_page(instruction: str, product: Product, chosen: Mapping[str, str]) -> Page:
    """Return a product's page; chosen options are named in its first line."""
    values = [cell for name, options in product.options.items() for cell in (name, *options)]
    text = SEPARATOR.join(
        [
            *_top(instruction),
            "< Prev",
            *values,
            product.title,
            f"Price: {product.price_tag}",
            f"Rating: {product.rating}",
            "Description",
            "Features",
            "Reviews",
            "Buy Now",
        ]
    )
    if chosen:
        text = f"You have clicked {', '.join(chosen.values())}.\n{text}"
    options = [value for group in product.options.values() for value in group]
    return Page(text, tuple(dict.fromkeys([BACK, PREVIOUS, *options, *DETAILS, BUY])))


def detail_page(instruction: str, product: Product, detail: str) -> Page:
    """Return the description, features or reviews of a product."""
    cells = {
        "description": (product.description,),
        "features": product.bullets,
        "reviews": product.reviews,
    }[detail]
    text = SEPARATOR.join([*_top(instruction), "< Prev", *(c for c in cells if c)])
    return Page(text, (BACK, PREVIOUS))


def _top(instruction: str) -> list[str]:
    return ["Instruction:", instruction, "Back to Search"]
