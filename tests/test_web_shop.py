"""The shop: pages and buttons, purchases, WebShop's files, the embedded catalogue."""

import json
import pickle
import subprocess
import sys
import time
import tracemalloc

import pytest

from ragen2_cli.envs.web_shop import WebShop
from ragen2_cli.envs.web_shop.catalogue import read_catalogue, stream_items
from ragen2_cli.envs.web_shop.generate import generate
from ragen2_cli.envs.web_shop.goals import Tasks
from ragen2_cli.envs.web_shop.shop import open_shop
from ragen2_cli.errors import UserError


def embedded():
    return open_shop("", "", "", 0)


def buttons(env: WebShop) -> list[str]:
    shown = env.observe().rpartition("\nActions: ")[2]
    return shown.split(", ")


def go_to(env: WebShop, asin: str) -> None:
    """Search for the product's own title and page on until it is shown."""
    product = next(p for p in embedded().products if p.asin == asin)
    assert env.step(f"search[{product.title}]").valid
    while f"click[{asin.lower()}]" not in buttons(env):
        assert env.step("click[next >]").valid
    assert env.step(f"click[{asin}]").valid


def buy(seed: int, *, options: bool = True, **settings: object):
    env = WebShop(**settings)
    env.reset(seed)
    task = embedded().tasks[seed]
    go_to(env, task.asin)
    for option in task.goal.options if options else ():
        assert env.step(f"click[{option}]").valid
    return env, task, env.step("click[buy now]")


def test_the_embedded_shop():
    shop = embedded()
    assert len(shop.products) == 1000
    assert len({p.asin for p in shop.products}) == 1000
    assert len(shop.tasks) > 5000
    first, last = shop.tasks[0], shop.tasks[len(shop.tasks) - 1]
    assert first.instruction != last.instruction
    assert [task.asin for task in shop.tasks[:3]] == [shop.tasks[i].asin for i in range(3)]
    with pytest.raises(IndexError):
        shop.tasks[len(shop.tasks)]
    for task in shop.tasks[::97]:
        product = next(p for p in shop.products if p.asin == task.asin)
        assert set(task.goal.attributes) <= set(product.attributes)
        assert task.goal.price_upper is None or product.price < task.goal.price_upper
        assert len(task.goal.options) == len(product.options)


@pytest.mark.parametrize("seed", [0, 1234, 4321])
def test_case_36_a_perfect_purchase_earns_one(seed):
    env, _, result = buy(seed)
    assert (result.reward, result.done, result.success) == (1.0, True, True)
    assert env.observe().startswith("You have bought")
    with pytest.raises(RuntimeError):
        env.step("click[buy now]")


def test_missing_options_cost_their_share_and_binary_pays_nothing():
    seed = next(i for i in range(500) if len(embedded().tasks[i].goal.options) == 2)
    _, task, result = buy(seed, options=False)
    parts = len(task.goal.attributes) + 2 + 1
    assert result.reward == pytest.approx((parts - 2) / parts)
    assert not result.success
    assert buy(seed, options=False, reward="binary")[2].reward == 0.0
    assert buy(seed, reward="binary")[2].reward == 1.0


def test_pages_show_what_can_be_clicked():
    env = WebShop()
    start = env.reset(7)
    task = embedded().tasks[7]
    assert start == f"WebShop [SEP] Instruction: [SEP] {task.instruction} [SEP] Search\n" + (
        "Actions: search[words]"
    )
    assert env.key() == task.instruction
    env.step("search[long lasting]")
    page = env.observe()
    assert "[SEP] Back to Search [SEP] Page 1 (Total results: " in page
    assert buttons(env)[:2] == ["click[back to search]", "click[next >]"]
    assert len(buttons(env)) == 12
    env.step("Click[Next >]")
    assert "Page 2" in env.observe()
    assert buttons(env)[:3] == ["click[back to search]", "click[< prev]", "click[next >]"]
    env.step("click[< prev]")
    assert env.observe() == page
    for _ in range(4):
        env.step("click[next >]")
    assert "Page 5" in env.observe()  # at most 50 results
    assert "click[next >]" not in buttons(env)


def test_an_items_pages_and_options():
    env = WebShop()
    env.reset(0)
    product = next(p for p in embedded().products if len(p.options) == 2)
    go_to(env, product.asin)
    item = env.observe()
    assert f"[SEP] Price: {product.price_tag} [SEP] Rating: {product.rating} [SEP]" in item
    color = product.options["color"][1]
    env.step(f"click[{color}]")
    chosen = env.observe()
    assert chosen == f"You have clicked {color}.\n{item}"
    for detail, text in (
        ("description", product.description),
        ("features", product.bullets[0]),
        ("reviews", "As described. A good"),
    ):
        env.step(f"click[{detail}]")
        assert text in env.observe()
        assert buttons(env) == ["click[back to search]", "click[< prev]"]
        env.step("click[< prev]")
        assert env.observe() == chosen
    env.step("click[< prev]")
    assert "Total results" in env.observe()
    env.step(f"click[{product.asin}]")
    assert env.observe() == item  # options are forgotten
    env.step("click[back to search]")
    assert buttons(env) == ["search[words]"]


def test_actions_outside_the_list_are_invalid_and_change_nothing():
    env = WebShop()
    env.reset(3)
    tries = ("", "buy now", "click[]", "search[]", "click[buy now]", "click[back to search]")
    for text in (*tries, "search[" + "x " * 200 + "]", "click[b000000000]", "look[shoes]"):
        before = env.observe()
        assert not env.step(text).valid, text
        assert env.observe() == before
    env.step("search[lamp]")
    before = env.observe()
    for text in ("search[lamp]", "click[buy now]", "click[description]", "click[< prev]"):
        assert not env.step(text).valid, text
        assert env.observe() == before


def test_no_results():
    env = WebShop()
    env.reset(0)
    assert env.step("search[zzzz]").valid
    assert "(Total results: 0)" in env.observe()
    assert buttons(env) == ["click[back to search]"]


def test_a_copy_goes_on_where_the_original_is():
    env = WebShop()
    env.reset(2)
    env.step("search[tea]")
    copy = pickle.loads(pickle.dumps(env))
    button = buttons(env)[3]
    assert copy.step(button) == env.step(button)
    assert copy.observe() == env.observe()


def test_same_catalogue_and_prices_in_another_process():
    code = (
        "from ragen2_cli.envs.web_shop.shop import open_shop; s = open_shop('', '', '', 0);"
        "print(s.tasks[99].instruction, s.products[9])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shop = embedded()
    assert out.stdout.strip() == f"{shop.tasks[99].instruction} {shop.products[9]}"


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


def test_wrong_instructions_and_options(tmp_path):
    files = write_files(tmp_path, [ITEM], human={"B01": [{"instruction_attributes": ["a"]}]})
    with pytest.raises(UserError, match=r"entry B01\[0\]: field 'instruction' is missing"):
        WebShop(**files).reset(0)
    with pytest.raises(UserError, match="no such catalogue file"):
        WebShop(items=str(tmp_path / "absent.json"), attributes=files["attributes"]).reset(0)
    with pytest.raises(UserError, match="attributes are needed"):
        WebShop(items=files["items"]).reset(0)
    with pytest.raises(UserError, match=r"dense or binary, not 'dens' \(did you mean 'dense'"):
        WebShop(reward="dens")


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
