"""The shop: pages and buttons, purchases, the embedded catalogue."""

import pickle
import subprocess
import sys

import pytest

from ragen2_cli.envs.web_shop import WebShop
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


def test_wrong_options():
    with pytest.raises(UserError, match=r"dense or binary, not 'dens' \(did you mean 'dense'"):
        WebShop(reward="dens")
