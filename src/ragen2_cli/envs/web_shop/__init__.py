"""WebShop's text interface over a catalogue: search, browse, choose options, buy."""

import re

from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.options import whole
from ragen2_cli.envs.web_shop import pages
from ragen2_cli.envs.web_shop.catalogue import Product
from ragen2_cli.envs.web_shop.goals import Task
from ragen2_cli.envs.web_shop.nouns import nouns, spacy_tagger, title_overlap
from ragen2_cli.envs.web_shop.pages import Page
from ragen2_cli.envs.web_shop.score import Bought, Score, score
from ragen2_cli.envs.web_shop.shop import open_shop
from ragen2_cli.errors import UserError, did_you_mean

__all__ = ["WebShop"]

_ACTION = re.compile(r"\s*(search|click)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)
_MAX_WORDS = 100


class WebShop(TextEnv):
    """Buy what the instruction asks for: ``search[words]``, ``click[button]``.

    Only a purchase pays: the WebShop score (``score.py``), or with ``reward="binary"`` 1 for a
    score of exactly 1 and else 0. Success is a score of 1. Text that is no action of the current
    page is invalid and changes nothing.

    Args:
        items: WebShop's ``items_shuffle*.json``; empty uses the embedded catalogue.
        attributes: WebShop's ``items_ins_v2*.json`` for these items.
        human: WebShop's ``items_human_ins*.json``; empty uses synthetic instructions.
        products: Read this many items at most; 0 reads all.
        reward: ``dense`` or ``binary``.
        tagger: ``rule`` for the built-in noun rule, ``spacy`` for spaCy's tagger.
    """

    name = "web_shop"
    instruction = (
        "Buy a product that fits the instruction. Write search[words] on the search page, and "
        "click[button] with one of the buttons shown elsewhere. Choose the options that are asked "
        "for before click[buy now], which ends the task. One action a turn."
    )
    actions = None
    actions_per_turn = 1
    max_turns = 9
    max_actions = 9

    def __init__(
        self,
        items: str = "",
        attributes: str = "",
        human: str = "",
        products: int = 0,
        reward: str = "dense",
        tagger: str = "rule",
    ) -> None:
        limit = whole(self.name, "products", products, 0, 10_000_000)
        self.sources = (items, attributes, human, limit)
        self.reward = _one_of("reward", reward, "dense", "binary")
        self.tagger = _one_of("tagger", tagger, "rule", "spacy")
        self._task: Task | None = None
        self._done = True

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Start the task of ``seed``, modulo their number, on the search page."""
        tasks = open_shop(*self.sources).tasks
        self._task = tasks[seed % len(tasks)]
        self._results: list[Product] = []
        self._number = 1
        self._product: Product | None = None
        self._chosen: dict[str, str] = {}
        self._done = False
        self._page = pages.search_page(self._task.instruction)
        return self.observe()

    def step(self, action: str) -> StepResult:
        """Search or click."""
        if self._done or self._task is None:
            raise RuntimeError("the episode is over; call reset")
        match = _ACTION.fullmatch(action)
        words = match[2].strip() if match else ""
        if match is None or not words or len(words.split()) > _MAX_WORDS:
            return StepResult(reward=0.0, valid=False)
        if match[1].lower() == "search":
            if not self._page.searchable:
                return StepResult(reward=0.0, valid=False)
            self._results, self._number = open_shop(*self.sources).search(words), 1
            self._page = self._results_page(self._task)
            return StepResult(reward=0.0)
        button = words.lower()
        if button not in self._page.buttons:
            return StepResult(reward=0.0, valid=False)
        if button == pages.BUY and self._product is not None:
            return self._buy(self._task, self._product)
        self._page = self._click(self._task, button)
        return StepResult(reward=0.0)

    def _click(self, task: Task, button: str) -> Page:
        """Return the page behind a button that the current page has."""
        product = self._product
        if button == pages.BACK:
            self._results, self._product, self._chosen = [], None, {}
            return pages.search_page(task.instruction)
        if product is None:
            if button in (pages.NEXT, pages.PREVIOUS):
                self._number += 1 if button == pages.NEXT else -1
                return self._results_page(task)
            product = next(p for p in self._results if p.asin.lower() == button)
            self._product, self._chosen = product, {}
            return pages.item_page(task.instruction, product, {})
        if button == pages.PREVIOUS:
            if pages.BUY not in self._page.buttons:  # from a detail back to its product
                return pages.item_page(task.instruction, product, self._chosen)
            self._product, self._chosen = None, {}
            return self._results_page(task)
        groups = [name for name, values in product.options.items() if button in values]
        if not groups:
            return pages.detail_page(task.instruction, product, button)
        self._chosen.update(dict.fromkeys(groups, button))
        return pages.item_page(task.instruction, product, self._chosen)

    def _results_page(self, task: Task) -> Page:
        return pages.results_page(task.instruction, self._results, self._number)

    def _buy(self, task: Task, product: Product) -> StepResult:
        self._done = True
        self._page = Page(f"You have bought {product.title}.", ())
        found = self.grade(task, product, self._chosen)
        success = found.reward == 1.0
        info = {
            "score": found.reward,
            "type_factor": found.type_factor,
            "price_hit": float(found.price_hit),
        }
        paid = found.reward if self.reward == "dense" else float(success)
        return StepResult(paid, True, success, info=info)

    def grade(self, task: Task, product: Product, chosen: dict[str, str]) -> Score:
        """Return the score of buying a product with options for a task."""
        tagger = spacy_tagger() if self.tagger == "spacy" else nouns
        bought = Bought(
            product.query,
            product.category,
            product.title,
            product.attributes,
            product.title,
            product.bullets,
            product.description,
        )
        overlap = title_overlap(task.goal.name, product.title, tagger)
        return score(task.goal, bought, chosen, product.price, overlap=overlap)

    def observe(self) -> str:
        """Return the page and, before the purchase, the actions it allows."""
        if self._done:
            return self._page.text
        allowed = ["search[words]"] if self._page.searchable else []
        allowed += [f"click[{button}]" for button in self._page.buttons]
        return f"{self._page.text}\nActions: {', '.join(allowed)}"

    def key(self) -> str:
        """Return the instruction."""
        if self._task is None:
            raise RuntimeError("call reset first")
        return self._task.instruction


def _one_of(option: str, value: str, *known: str) -> str:
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise UserError(
            f"environment 'web_shop': {option} must be {' or '.join(known)}, not {value!r}{hint}"
        )
    return value
