"""WebShop's own files: catalogues, instructions, and what is wrong with them."""

import json
import time
import tracemalloc

import pytest

from ragen2_cli.envs.web_shop import WebShop
from ragen2_cli.envs.web_shop.catalogue import read_catalogue, stream_items
from ragen2_cli.envs.web_shop.generate import generate
from ragen2_cli.envs.web_shop.goals import Tasks
from ragen2_cli.envs.web_shop.shop import open_shop
from ragen2_cli.errors import UserError

ITEM = {
    "name": "Oak Men Shirt",
    "asin": "B01",
    "category": "fashion",
    "query": " Men's Shirts ",
    "product_category": "Clothing › Men › Shirts",
    "small_description": ["Soft", "Machine wash"],
    "full_description": "A shirt.",
    "pricing": "$10.00$20.00",
    "customization_options": {
        "Color": [{"value": "Black/White", "image": None}, {"value": "Red "}],
        "Size": [{"value": "S"}, {"value": "M"}, {"value": "L"}],
        "Fit": None,
    },
    "images": ["x.jpg"],
}
SYNTHETIC = {
    "B01": {
        "attributes": ["machine wash"],
        "instruction": "find me a men's shirt",
        "instruction_attributes": ["machine wash"],
    }
}
HUMAN = {
    "B01": [
        {
            "instruction": "a red shirt.",
            "instruction_attributes": ["Soft"],
            "instruction_options": ["red"],
        },
        {"instruction": "nothing", "instruction_attributes": []},
        {
            "instruction": "dict",
            "instruction_attributes": ["soft"],
            "instruction_options": {"size": "M"},
        },
    ]
}


def write_files(tmp_path, items, attributes=SYNTHETIC, human=None):
    paths = {"items": items, "attributes": attributes, "human": human}
    settings = {}
    for name, value in paths.items():
        if value is not None:
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps(value, ensure_ascii=False, indent=1))
            settings[name] = str(path)
    return settings


def test_official_files_with_synthetic_instructions(tmp_path):
    files = write_files(tmp_path, [ITEM])
    shop = open_shop(files["items"], files["attributes"], "", 0)
    (product,) = shop.products
    assert product.options == {"color": ("black | white", "red"), "size": ("s", "m", "l")}
    assert product.query == "men's shirts"
    assert product.price_tag == "$10.0 to $20.0"
    assert 10 <= product.price <= 20
    assert len(shop.tasks) == 6
    texts = [task.instruction.partition(", and price")[0] for task in shop.tasks]
    assert texts[0] == "find me a men's shirt with color: black | white, and size: s"
    assert texts[1] == "find me a men's shirt with color: black | white, and size: m"
    assert texts[5] == "find me a men's shirt with color: red, and size: l"
    # the limit is above the price: the larger of two of the next four multiples of ten
    limits = {task.goal.price_upper for task in shop.tasks}
    assert limits <= {30.0, 40.0, 50.0} if product.price >= 10 else {20.0}


def test_official_files_with_human_instructions(tmp_path):
    files = write_files(tmp_path, [ITEM], human=HUMAN)
    env = WebShop(**files)
    assert "a red shirt, and price lower than" in env.reset(0)
    env.step("search[shirt]")
    env.step("click[b01]")
    env.step("click[red]")
    assert env.step("click[buy now]").reward == 1.0
    assert "dict" in env.reset(1)
    assert env.reset(2) == env.reset(0)  # the one without attributes is left out


def test_items_without_price_options_or_id_are_counted(tmp_path, caplog):
    bare = {"asin": "B02", "name": "Lamp"}
    items = [ITEM, bare, ITEM, {"name": "no id"}, {"asin": "nan", "name": "x"}]
    files = write_files(tmp_path, items)
    rows = stream_items(tmp_path / "items.json")
    catalogue = read_catalogue(rows, SYNTHETIC, files["items"])
    found = (len(catalogue.products), catalogue.skipped, catalogue.unpriced, catalogue.plain)
    assert found == (2, 3, 1, 1)
    assert catalogue.products[1].price == 100.0
    open_shop(files["items"], files["attributes"], "", 0)
    assert "2 products (3 items skipped, 1 without a price cost 100" in caplog.text
    tasks = Tasks(catalogue, {"B02": SYNTHETIC["B01"]}, "here")
    assert len(tasks) == 1
    assert tasks[0].goal.options == ()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("{}", "expected a JSON list"),
        ("[1]", "item 0: expected an object"),
        ('[{"asin": "B1"}]', "item 0: field 'name' is missing"),
        ('[{"asin": "B1", "name": "x"}, {"asin": ', "item 1: not JSON"),
        ('[{"asin": "B1", "name": 3}]', "field 'name' is int"),
        ('[{"asin": "B1", "name": "x", "customization_options": [1]}]', "'customization_options'"),
        (
            '[{"asin": "B1", "name": "x", "customization_options": {"Color": ["red"]}}]',
            "option 'Color' has an entry without the field 'value'",
        ),
        ("[]", "no product in it"),
        ('[{"asin": "B9", "name": "x"}]', "no instruction for any product"),
    ],
)
def test_a_wrong_catalogue_says_what_and_where(tmp_path, items, message):
    files = write_files(tmp_path, [])
    (tmp_path / "items.json").write_text(items)
    with pytest.raises(UserError, match=message):
        WebShop(**files).reset(0)


def test_wrong_instructions_and_paths(tmp_path):
    files = write_files(tmp_path, [ITEM], human={"B01": [{"instruction_attributes": ["a"]}]})
    with pytest.raises(UserError, match=r"entry B01\[0\]: field 'instruction' is missing"):
        WebShop(**files).reset(0)
    with pytest.raises(UserError, match="no such catalogue file"):
        WebShop(items=str(tmp_path / "absent.json"), attributes=files["attributes"]).reset(0)
    with pytest.raises(UserError, match="attributes are needed"):
        WebShop(items=files["items"]).reset(0)


def test_bytes_that_are_no_text(tmp_path):
    files = write_files(tmp_path, [ITEM])
    for name in ("attributes", "items"):
        (tmp_path / f"{name}.json").write_bytes(b'[{"a": "\xff"}]')
        with pytest.raises(UserError, match=f"{name}.json: not UTF-8 text"):
            WebShop(**files).reset(0)
        write_files(tmp_path, [ITEM])


def many_items(path, count):
    """Write ``count`` items in the official layout, from the embedded ones with new ids."""
    rows, entries = generate()
    known = {}
    with path.open("w") as file:
        file.write("[")
        for number in range(count):
            row = dict(rows[number % len(rows)])
            known[f"C{number:07d}"] = entries[row["asin"]]
            row["asin"] = f"C{number:07d}"
            file.write(("," if number else "") + json.dumps(row))
        file.write("]")
    instructions = path.with_name("ins.json")
    instructions.write_text(json.dumps(known))
    return str(path), str(instructions)


def test_a_thousand_items_in_under_five_seconds(tmp_path):
    items, instructions = many_items(tmp_path / "items.json", 1000)
    began = time.process_time()
    assert len(open_shop(items, instructions, "", 0).products) == 1000
    assert time.process_time() - began < 5


@pytest.mark.slow
def test_a_hundred_thousand_items_are_streamed(tmp_path):
    path = tmp_path / "items.json"
    many_items(path, 100_000)
    size = path.stat().st_size
    tracemalloc.start()
    count = sum(1 for _ in stream_items(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100_000
    assert size > 80e6
    assert peak < 20e6
