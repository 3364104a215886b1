"""WebShop's score: numbers derived by hand, the golden cases, invariants."""

import json
from pathlib import Path

import pytest

from ragen2_cli.envs.web_shop.nouns import nouns, spacy_tagger, title_overlap
from ragen2_cli.envs.web_shop.score import (
    COLORS,
    Bought,
    Goal,
    normalize_color,
    score,
    similar,
)
from ragen2_cli.errors import UserError

GOLDEN = json.loads((Path(__file__).parent / "goldens" / "webshop_score.json").read_text())

SHIRT = Bought(
    query="shirts",
    category="Clothing › Men › Shirts",
    name="Oak Hill men shirt",
    attributes=("long sleeve", "machine wash"),
    title="Oak Hill men shirt",
    bullets=("Soft cotton", "Washable at 30 degrees"),
    description="A shirt for the office.",
)
GOAL = Goal(
    query="shirts",
    category="Clothing › Men › Shirts",
    name="Oak Hill men shirt",
    attributes=("long sleeve", "machine wash"),
    options=("navy", "large"),
    price_upper=40.0,
)
CHOSEN = {"color": "navy", "size": "large"}


def goal(**changes: object) -> Goal:
    from dataclasses import replace

    return replace(GOAL, **changes)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["id"])
def test_golden_cases(case):
    wanted, product = case["goal"], case["product"]
    result = score(
        Goal(
            wanted["query"],
            wanted["product_category"],
            wanted["name"],
            tuple(wanted["attributes"]),
            tuple(wanted["goal_options"]),
            wanted["price_upper"],
        ),
        Bought(
            product["query"],
            product["product_category"],
            product["name"],
            tuple(product["Attributes"]),
            product["Title"],
            tuple(product["BulletPoints"]),
            product["Description"],
        ),
        case["options"],
        case["price"],
        overlap=case["title_overlap"],
    )
    expected = case["expected"]
    assert result.reward == pytest.approx(expected["reward"], abs=1e-12)
    assert result.type_factor == expected["type_factor"]
    assert result.attribute_share == pytest.approx(expected["attribute_share"])
    assert result.option_share == pytest.approx(expected["option_share"])
    assert result.price_hit is expected["price_hit"]


def test_case_36_perfect_and_over_budget():
    # 2 attributes + 2 options + price = 5 shares; a perfect purchase has all five.
    assert score(GOAL, SHIRT, CHOSEN, 40.0).reward == 1.0  # equal to the limit still hits
    assert score(GOAL, SHIRT, CHOSEN, 40.01).reward == pytest.approx(4 / 5)


def test_case_36_wrong_type_scales_everything():
    # No shared noun at all: factor 0. Half the shares: 0.5 factor x 4/5.
    assert score(GOAL, SHIRT, CHOSEN, 10.0, overlap=0.0).reward == 0.0
    other = goal(query="shoes", category="Clothing › Women › Shoes")
    assert score(other, SHIRT, CHOSEN, 41.0, overlap=0.15).reward == pytest.approx(0.5 * 4 / 5)
    assert score(other, SHIRT, CHOSEN, 10.0, overlap=0.05).reward == pytest.approx(0.1)


def test_case_36_wash_is_met_by_containment_only():
    # ratio("wash", "washable") = 2 * 4 / 12 = 66.7 < 85: no hit among attributes.
    assert not similar("wash", "washable")
    wanted = goal(attributes=("wash",), options=(), price_upper=None)
    bare = Bought("shirts", "", "shirt", ("washable",), "shirt", (), "")
    assert score(wanted, bare, {}, 1.0, overlap=1.0).attribute_share == 0.0
    for place in ({"title": "Washable shirt"}, {"bullets": ("Washable",)}, {"description": "wAsh"}):
        fields = {"title": "shirt", "bullets": (), "description": ""} | place
        product = Bought("shirts", "", "shirt", (), **fields)
        assert score(wanted, product, {}, 1.0, overlap=1.0).attribute_share == 1.0, place


def test_empty_lists_do_not_divide_by_zero():
    result = score(goal(attributes=(), options=()), SHIRT, {}, 10.0)
    assert (result.reward, result.attribute_share, result.option_share) == (1.0, None, None)


def test_colors():
    assert list(COLORS) == sorted(COLORS)
    assert normalize_color("Deep Atlantic Blue") == "blue"
    assert normalize_color("white | gold") == "gold"
    assert normalize_color("32W x 34L") == "32w x 34l"


def test_more_hits_never_lower_the_score():
    rewards = [
        score(GOAL, SHIRT, options, price).reward
        for options, price in (({}, 50.0), ({}, 30.0), ({"size": "large"}, 30.0), (CHOSEN, 30.0))
    ]
    # price 2/5 (attributes) + 0, then +1 share each time
    assert rewards == pytest.approx([2 / 5, 3 / 5, 4 / 5, 1.0])


def test_a_missing_tagger_is_named():
    with pytest.raises(UserError, match="spaCy with the pipeline 'no_such_model'"):
        spacy_tagger("no_such_model")


def test_noun_rule():
    assert nouns("Men's Soft Washable Running Shoes, 2 Pack") == {"men", "running", "shoe"}
    assert title_overlap("running shoes", "trail shoe") == 0.5
    assert title_overlap("soft 42", "anything") == 0.2
