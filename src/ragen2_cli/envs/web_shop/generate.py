"""An invented catalogue of 1,000 products in WebShop's layout: the embedded shop.

Forty products of each of twenty-five kinds share their words and differ in brand, attributes,
options and price, so that the right one has to be told from many near ones.
"""

from functools import lru_cache
from typing import Any

import numpy as np

CATALOGUE_SEED = 1_912
PRODUCTS_PER_KIND = 40
_BRANDS = ("Alderon", "Brightway", "Corvane", "Delmore", "Estrin", "Fairlow", "Gantry", "Helmsley")
_COLORS = (
    "black", "white", "navy blue", "forest green", "wine red", "light grey", "rose gold", "teal",
    "mustard yellow", "chocolate brown",
)  # fmt: skip
_CLOTHES = ("small", "medium", "large", "x-large")
_SHOES = ("7", "8", "9", "10", "11")
_BEDS = ("twin", "full", "queen", "king")
_PACKS = ("pack of 1", "pack of 3", "pack of 6")
_LENGTHS = ("3 ft", "6 ft", "10 ft")
_VOLUMES = ("250 ml", "500 ml", "1 liter")
_WEAR = "machine wash,long sleeve,quick drying,cotton spandex,classic fit,moisture wicking"
_FOOT = "non slip,rubber sole,memory foam,water resistant,arch support,ethylene vinyl"
_FOOD = "gluten free,low sugar,non gmo,dairy free,high protein,artificial flavors free"
_TECH = "fast charging,noise cancelling,high definition,easy to install,plug and play,long lasting"
_HOME = "easy clean,stainless steel,space saving,assembly required,heavy duty,eco friendly"
_SKIN = (
    "fragrance free,cruelty free,paraben free,for sensitive skin,long lasting,natural ingredients"
)
# search phrase, category path, words of the title, attributes, name of the size option, its values
_KINDS: tuple[tuple[str, str, str, str, str, tuple[str, ...]], ...] = (
    ("men's shirts", "Clothing › Men › Shirts", "Men Dress Shirt", _WEAR, "size", _CLOTHES),
    ("women's blouses", "Clothing › Women › Blouses", "Women Blouse", _WEAR, "size", _CLOTHES),
    ("hoodies", "Clothing › Men › Hoodies", "Pullover Hoodie", _WEAR, "size", _CLOTHES),
    ("leggings", "Clothing › Women › Leggings", "Yoga Leggings", _WEAR, "size", _CLOTHES),
    ("jackets", "Clothing › Women › Coats", "Rain Jacket", _WEAR, "size", _CLOTHES),
    ("running shoes", "Clothing › Men › Shoes", "Running Shoes", _FOOT, "size", _SHOES),
    ("sandals", "Clothing › Women › Shoes", "Beach Sandals", _FOOT, "size", _SHOES),
    ("hiking boots", "Clothing › Men › Boots", "Hiking Boots", _FOOT, "size", _SHOES),
    ("slippers", "Clothing › Women › Slippers", "House Slippers", _FOOT, "size", _SHOES),
    ("snack bars", "Grocery › Snacks › Bars", "Almond Snack Bar", _FOOD, "pack", _PACKS),
    ("coffee", "Grocery › Beverages › Coffee", "Ground Coffee Beans", _FOOD, "pack", _PACKS),
    ("tea", "Grocery › Beverages › Tea", "Herbal Tea Bags", _FOOD, "pack", _PACKS),
    ("cookies", "Grocery › Snacks › Cookies", "Oat Cookies", _FOOD, "pack", _PACKS),
    ("headphones", "Electronics › Audio › Headphones", "Headphones", _TECH, "length", _LENGTHS),
    ("cables", "Electronics › Accessories › Cables", "USB Cable", _TECH, "length", _LENGTHS),
    ("speakers", "Electronics › Audio › Speakers", "Bookshelf Speaker", _TECH, "length", _LENGTHS),
    ("monitors", "Electronics › Screens › Monitors", "Desktop Monitor", _TECH, "length", _LENGTHS),
    ("bedding", "Home › Bedroom › Sheets", "Bed Sheet Cover", _HOME, "size", _BEDS),
    ("mattresses", "Home › Bedroom › Mattresses", "Spring Mattress", _HOME, "size", _BEDS),
    ("shelves", "Home › Furniture › Shelves", "Wall Shelf Rack", _HOME, "pack", _PACKS),
    ("lamps", "Home › Lighting › Lamps", "Reading Lamp", _HOME, "pack", _PACKS),
    ("water bottles", "Home › Kitchen › Bottles", "Water Bottle", _HOME, "volume", _VOLUMES),
    ("shampoo", "Beauty › Hair › Shampoo", "Hair Shampoo", _SKIN, "volume", _VOLUMES),
    ("lotions", "Beauty › Skin › Lotions", "Body Lotion", _SKIN, "volume", _VOLUMES),
    ("lipstick", "Beauty › Makeup › Lips", "Matte Lipstick", _SKIN, "pack", _PACKS),
)  # fmt: skip


@lru_cache(maxsize=1)
def generate() -> tuple[tuple[dict[str, Any], ...], dict[str, dict[str, Any]]]:
    """Return the items, and the attributes and instructions by asin, in WebShop's layouts."""
    rng = np.random.Generator(np.random.Philox(CATALOGUE_SEED))
    items: list[dict[str, Any]] = []
    instructions: dict[str, dict[str, Any]] = {}
    for kind in range(len(_KINDS)):
        for number in range(PRODUCTS_PER_KIND):
            asin = f"B{kind:02d}{number:03d}{int(rng.integers(1000, 9999))}"
            item, entry = _item(rng, kind, asin)
            items.append(item)
            instructions[asin] = entry
    order = rng.permutation(len(items))
    return tuple(items[i] for i in order), instructions


def _pick(rng: np.random.Generator, values: tuple[str, ...], count: int) -> list[str]:
    return [values[i] for i in sorted(rng.choice(len(values), size=count, replace=False))]


def _item(rng: np.random.Generator, kind: int, asin: str) -> tuple[dict[str, Any], dict[str, Any]]:
    query, category, noun, pool, size_name, sizes = _KINDS[kind]
    attributes = _pick(rng, tuple(pool.split(",")), int(rng.integers(2, 5)))
    brand = _BRANDS[int(rng.integers(len(_BRANDS)))]
    title = f"{brand} {noun}, {attributes[0].title()}"
    if rng.random() < 0.5:
        title += f" and {attributes[-1].title()}"
    options = {"color": _pick(rng, _COLORS, int(rng.integers(2, 5)))}
    if rng.random() < 0.9:
        options[size_name] = _pick(rng, sizes, int(rng.integers(2, len(sizes) + 1)))
    if rng.random() < 0.05:
        options = {}
    price = int(rng.integers(600, 12_000)) / 100
    wanted = _pick(rng, tuple(attributes), int(rng.integers(1, 3)))
    item = {
        "asin": asin,
        "name": title,
        "category": category.split(" › ")[0].lower(),
        "query": query,
        "product_category": category,
        "small_description": [f"{a[0].upper()}{a[1:]}, for daily use." for a in attributes],
        "full_description": f"The {noun.lower()} by {brand} is made for people who want "
        f"{' and '.join(attributes[:2])}. It comes in a plain box.",
        "pricing": f"${price:.2f}",
        "customization_options": {
            name: [{"value": value, "image": None} for value in values]
            for name, values in options.items()
        },
        "average_rating": f"{int(rng.integers(30, 50)) / 10:.1f}",
        "reviews": [{"title": "As described", "review": f"A good {noun.lower()} from {brand}."}],
        "images": [],
    }
    said = " and ".join(wanted)
    entry = {
        "attributes": attributes,
        "instruction": f"i am looking for {query} that are {said}",
        "instruction_attributes": wanted,
    }
    return item, entry
