"""The WebShop score of a purchase: type, attributes, options and price, each by a stated rule.

``reward = type_factor * (attribute hits + option hits + price hit) / (n_attr + n_opt + 1)``

Source: WebShop (Yao et al. 2022), section 3 and its released scorer; the part-of-speech tagger is
replaced by ``nouns.title_overlap`` unless an overlap is handed in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz, utils

from ragen2_cli.envs.web_shop.nouns import title_overlap as noun_overlap

SIMILAR = 85.0
_COLOR_WORDS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown
    burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee
    cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold
    granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon
    leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom
    mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust
    sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger
    turquoise violet walnut wheat white wine yellow
"""
COLORS = tuple(_COLOR_WORDS.split())


@dataclass(frozen=True, slots=True)
class Goal:
    """What the shopper was asked to buy.

    Attributes:
        query: The search phrase the target product was collected with.
        category: Category path, parts separated by ``›``.
        name: Title of the target product.
        attributes: Wanted attributes, lower case.
        options: Wanted option values (without their names), lower case.
        price_upper: Highest acceptable price; 0 or None means there is no limit.
    """

    query: str
    category: str
    name: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float | None


@dataclass(frozen=True, slots=True)
class Bought:
    """The side of a product that the score reads."""

    query: str
    category: str
    name: str
    attributes: tuple[str, ...]
    title: str
    bullets: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True)
class Score:
    """A purchase's reward and its parts; a share of an empty list is None, never a division."""

    reward: float
    type_factor: float
    attribute_share: float | None
    option_share: float | None
    price_hit: bool


def similar(left: str, right: str) -> bool:
    """Whether the token-set similarity exceeds 85 of 100, ignoring case and punctuation."""
    return fuzz.token_set_ratio(left, right, processor=utils.default_process) > SIMILAR


def normalize_color(option: str) -> str:
    """Replace an option by the alphabetically first color word that occurs in it, if any.

    Occurring means as a substring, in lower case: "white | gold" becomes "gold" and "deep atlantic
    blue" becomes "blue"; "no colour" stays.
    """
    lowered = option.lower()
    return next((color for color in COLORS if color in lowered), lowered)


def type_factor(goal: Goal, bought: Bought, overlap: float) -> float:
    """How far the product is the right kind of thing: 1, 0.5, 0.1 or 0.

    Args:
        goal: What was wanted.
        bought: What was bought.
        overlap: Share of the goal title's nouns that the product's name holds, in [0, 1].

    Returns:
        0 when the overlap is 0 and 0.1 below 0.1, whatever else matches; else 1 when the query is
        the same, two category parts are shared or the overlap exceeds 0.2; else 0.5.
    """
    if overlap == 0:
        return 0.0
    if overlap < 0.1:
        return 0.1
    shared = _category_parts(goal.category) & _category_parts(bought.category)
    match = goal.query == bought.query or len(shared) >= 2 or overlap > 0.2
    return 1.0 if match else 0.5


def _category_parts(path: str) -> set[str]:
    return {part.strip() for part in path.split("›")}


def attribute_hits(wanted: Sequence[str], bought: Bought) -> int:
    """Count wanted attributes that the product has.

    A hit is a similar product attribute, or the wanted text standing inside the title, the joined
    bullet points or the description (so "wash" is met by "washable" there, and only there).
    """
    texts = (bought.title.lower(), " ".join(bought.bullets).lower(), bought.description.lower())
    return sum(
        any(similar(own, attribute) for own in bought.attributes)
        or any(attribute.lower() in text for text in texts)
        for attribute in wanted
    )


def option_hits(wanted: Sequence[str], chosen: Iterable[str]) -> int:
    """Count wanted options that a chosen one resembles after color normalization."""
    chosen_colors = [normalize_color(option) for option in chosen]
    return sum(
        any(similar(own, normalize_color(option)) for own in chosen_colors) for option in wanted
    )


def score(
    goal: Goal,
    bought: Bought,
    options: Mapping[str, str],
    price: float,
    *,
    overlap: float | None = None,
) -> Score:
    """Score a purchase in [0, 1].

    Args:
        goal: What was wanted.
        bought: What was bought.
        options: Chosen option values by option name.
        price: What it costs; equal to the limit still hits.
        overlap: Noun overlap of the titles; None computes it with ``nouns.title_overlap``.
    """
    if overlap is None:
        overlap = noun_overlap(goal.name, bought.name)
    factor = type_factor(goal, bought, overlap)
    n_attr, n_opt = len(goal.attributes), len(goal.options)
    attributes = attribute_hits(goal.attributes, bought)
    chosen = option_hits(goal.options, options.values())
    price_hit = not goal.price_upper or price <= goal.price_upper
    return Score(
        reward=factor * (attributes + chosen + price_hit) / (n_attr + n_opt + 1),
        type_factor=factor,
        attribute_share=attributes / n_attr if n_attr else None,
        option_share=chosen / n_opt if n_opt else None,
        price_hit=price_hit,
    )
