"""The embedded policy: tokenizer, demonstrations and warm start."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ragen2_cli.envs import make
from ragen2_cli.envs.parsing import parse
from ragen2_cli.envs.splits import heldout_seeds, split_of
from ragen2_cli.errors import UserError
from ragen2_cli.rollout.template import ChatTemplate
from ragen2_cli.training.embedded.demonstrations import demonstrate, token_row
from ragen2_cli.training.embedded.files import check_folder
from ragen2_cli.training.embedded.narrators import LESSONS, READING, Lesson, countdown, frozenlake
from ragen2_cli.training.embedded.narrators.words import bearing, neighbor
from ragen2_cli.training.embedded.tokenizer import TAGS, build_tokenizer
from ragen2_cli.training.embedded.warm_start import (
    WarmStart,
    batches,
    build,
    demonstrations,
    learning_rate,
    make_model,
    make_tokenizer,
    masked_loss,
)
from ragen2_cli.training.models import load_policy

SMALL = WarmStart(steps=6, turns=4, episodes=4, width=16, layers=1, heads=2, mlp=32)
SMALL_TOKENIZER = 20


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(load_policy("embedded", device="cpu").tokenizer)


@pytest.mark.parametrize(
    "text",
    [
        "P 1 2 G 3 0\n_O__\n__P_\n____\n√G__\n",
        "<think>at 1 2</think><answer>Down || Left</answer><eos>",
        "héllo \x00\x07 🙂 你好 \u200b  two  blanks \n\n tail ",
        "<thin k> </ANSWER> <think",
        "".join(map(chr, range(256))),
    ],
)
def test_any_text_round_trips(template: ChatTemplate, text: str) -> None:
    # case 23
    tokenizer = template.tokenizer
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_random_text_round_trips(template: ChatTemplate) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        points = rng.integers(1, 0x10FFFF, 30)
        text = "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)
        assert template.text(template.tokenizer.encode(text, add_special_tokens=False)) == text


def test_tags_are_single_tokens_and_cells_stand_alone(template: ChatTemplate) -> None:
    tokenizer = template.tokenizer
    for tag in TAGS:
        assert len(tokenizer.encode(tag, add_special_tokens=False)) == 1
    # 4 cells a row; the line break belongs to the last cell of its row.
    assert len(tokenizer.encode("_OP_\nG___\n", add_special_tokens=False)) == 8


def test_the_chat_template_is_the_text_itself(template: ChatTemplate) -> None:
    messages = [
        {"role": "user", "content": "P 0 1"},
        {"role": "assistant", "content": "<think>a</think><answer>Up</answer>"},
        {"role": "user", "content": "P 0 0"},
    ]
    rendered = template.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert rendered == ("P 0 1\n<think>a</think><answer>Up</answer><eos>P 0 0\n<think>")
    assert not template.rewrites_thoughts


def test_facts_by_hand() -> None:
    message = "P 1 2 G 3 0\n_O__\n_OP_\n____\nG___"
    # One row up is ice, one column left the hole, row 2 below is ice, column 3 is ice.
    player, goal, grid = frozenlake.read(message)
    assert (player, goal) == ((1, 2), (3, 0))
    assert bearing(player, goal) == "down 2 left 2"
    kinds = [neighbor(player, grid, name, frozenlake.KINDS) for name in frozenlake.ACTIONS]
    assert kinds == ["hole", "ice", "ice", "ice"]
    assert neighbor((0, 0), grid, "Up", frozenlake.KINDS) == "wall"
    thought = frozenlake.reasoning(message, ["Down", "Left"], np.random.default_rng(0))
    assert "1 2, goal down 2 left 2. left hole down ice right ice up ice." in thought
    assert thought.endswith("down left")
    assert frozenlake.read("!\n" + message) == frozenlake.read(message)


def test_skills_by_hand() -> None:
    message = "P 2 2 G 0 2\n__G_\n____\n__P_\n____"
    rng = np.random.default_rng(0)
    always = frozenlake.Skill(toward=1.0, habit=0.0, careful=0.0, two=0.0)
    assert {tuple(frozenlake.choose(message, rng, always)) for _ in range(20)} == {("Up",)}
    habit = frozenlake.Skill(toward=0.0, habit=1.0, careful=0.0, two=0.0)
    chosen = {frozenlake.choose(message, rng, habit)[0] for _ in range(50)}
    assert chosen == {"Down", "Right"}
    uniform = frozenlake.Skill(toward=0.0, habit=0.0, careful=0.0, two=1.0)
    assert {len(frozenlake.choose(message, rng, uniform)) for _ in range(20)} == {2}
    # A corner with a hole below it: Left and Up are walls, Down is the hole, so Right is left.
    careful = frozenlake.Skill(toward=0.0, habit=0.0, careful=1.0, two=0.0)
    corner = "P 0 0 G 3 3\nP___\nO___\n____\n___G"
    assert {tuple(frozenlake.choose(corner, rng, careful)) for _ in range(20)} == {("Right",)}


def test_countdown_reckons_right() -> None:
    # (3 + 5) * 7 = 56
    assert countdown.value((3, 5, 7), ("+", "*")) == 56
    env = make("countdown")
    rng = np.random.default_rng(0)
    for seed in range(30):
        shown = demonstrate(env, countdown.speak, seed, rng)
        ((_, completion),) = shown.exchanges
        value = int(completion.split(" is ")[-1].split("<")[0])
        assert shown.success == (value == env.target)


@pytest.mark.parametrize("lesson", [*LESSONS, READING])
def test_demonstrations_use_training_boards_only(lesson: Lesson) -> None:
    env, check = make(lesson.env, **lesson.options), make(lesson.env, **lesson.options)
    assert check is not env
    (flow,) = demonstrations(3, [lesson])
    for shown in itertools.islice(flow, 150):
        check.reset(shown.seed)
        assert split_of(check.key()) == "train"
        assert shown.exchanges[0][0] == check.observe()


@pytest.mark.parametrize("lesson", LESSONS)
def test_demonstrations_are_good_and_bad(lesson: Lesson) -> None:
    (flow,) = demonstrations(1, [lesson])
    successes = sum(shown.success for shown in itertools.islice(flow, 200))
    assert 20 < successes < 160


def test_the_reasoning_depends_on_the_board() -> None:
    for lesson in LESSONS:
        (flow,) = demonstrations(2, [lesson])
        thoughts = {
            shown.exchanges[0][1].split("</think>")[0] for shown in itertools.islice(flow, 40)
        }
        assert len(thoughts) > 30, lesson.env


def test_rows_are_what_a_rollout_would_hold(template: ChatTemplate) -> None:
    (flow,) = demonstrations(5, [LESSONS[0]])
    shown = next(item for item in flow if len(item.exchanges) > 2)
    ids, mask = token_row(shown, template)
    said = [i for i, m in zip(ids, mask, strict=True) if m]
    read = [i for i, m in zip(ids, mask, strict=True) if not m]
    completions = "".join(completion + "<eos>" for _, completion in shown.exchanges)
    assert template.text(said) == completions
    assert template.text(read) == "".join(message + "\n<think>" for message, _ in shown.exchanges)
    assert (
        template.first_prompt_ids([{"role": "user", "content": shown.exchanges[0][0]}])
        == (ids[: mask.index(1)])
    )


def test_reading_comes_first_and_is_one_turn(template: ChatTemplate) -> None:
    rows = list(batches(WarmStart(steps=4, reading=0.5, turns=3, episodes=5), template))
    assert [len(step) for step in rows] == [3, 3, 5, 5]
    opening = template.tokenizer.encode("<think>", add_special_tokens=False)[0]
    assert all(ids.count(opening) == 1 for step in rows[:2] for ids, _ in step)


def test_the_loss_counts_completions_only(template: ChatTemplate) -> None:
    model = make_model(SMALL, template.tokenizer)
    pad = template.tokenizer.pad_token_id
    # Three tokens, the last one counts: its -log p under the model, whatever the row's padding.
    logits_T_V = model(torch.tensor([[5, 6, 7]])).logits[0]
    by_hand = -torch.log_softmax(logits_T_V[1], -1)[7]
    torch.testing.assert_close(masked_loss(model, [([5, 6, 7], [0, 0, 1])], pad), by_hand)
    longer = [([5, 6, 7], [0, 0, 1]), ([8, 9, 5, 6, 8], [0, 0, 0, 0, 0])]
    torch.testing.assert_close(masked_loss(model, longer, pad), by_hand)


def test_learning_rate_rises_stays_and_falls() -> None:
    config = WarmStart(steps=1000, lr=1.0)
    # Step 24 of a 50-step rise: 25/50. Falls over the last 400: at step 800 200/400.
    assert learning_rate(config, 24) == pytest.approx(0.5)
    assert learning_rate(config, 500) == 1.0
    assert learning_rate(config, 800) == pytest.approx(0.5)
    assert learning_rate(config, 999) == pytest.approx(0.02)


def shortened(out: Path, seed: int = 0) -> dict[str, object]:
    from dataclasses import replace

    return build(out, replace(SMALL, seed=seed, tokenizer_episodes=SMALL_TOKENIZER))


def test_a_shortened_rebuild_is_reproducible(tmp_path: Path) -> None:
    first, again = shortened(tmp_path / "a"), shortened(tmp_path / "b")
    assert first["sha256"] == again["sha256"]
    assert shortened(tmp_path / "c", seed=1)["sha256"] != first["sha256"]
    written = json.loads((tmp_path / "a" / "provenance.json").read_text())
    assert written == json.loads(json.dumps(first))
    loaded = load_policy(str(tmp_path / "a"), device="cpu")
    assert loaded.style == "compact"
    assert ChatTemplate(loaded.tokenizer).stop_ids


@pytest.mark.parametrize("env", ["frozenlake", "bandit"])
def test_the_shipped_files_are_those_of_the_provenance(template: ChatTemplate, env: str) -> None:
    from hashlib import sha256

    from ragen2_cli.training.embedded.files import describe
    from ragen2_cli.training.models import embedded_folder

    folder = embedded_folder(env)
    for name, expected in describe(folder)["sha256"].items():
        assert sha256((folder / name).read_bytes()).hexdigest() == expected
    fresh = make_tokenizer(WarmStart())
    assert fresh.get_vocab() == template.tokenizer.get_vocab()


def test_warm_start_lowers_the_loss(template: ChatTemplate) -> None:
    from dataclasses import replace

    from ragen2_cli.training.embedded.warm_start import train

    config = replace(SMALL, steps=60, reading=1.0, turns=8, lr=1e-2)
    losses: list[float] = []
    train(make_model(config, template.tokenizer), template, config, lambda _, x: losses.append(x))
    assert len(losses) == 60
    assert np.mean(losses[-5:]) < 0.6 * losses[0]


def test_the_words_phase_goes_on_from_the_grid_policy(tmp_path: Path) -> None:
    from dataclasses import replace

    small = replace(SMALL, steps=2, tokenizer_episodes=SMALL_TOKENIZER)
    plain, more = build(tmp_path / "a", small), build(tmp_path / "b", replace(small, words=2))
    assert plain["sha256"]["tokenizer.json"] == more["sha256"]["tokenizer.json"]
    assert plain["sha256"]["model.safetensors"] != more["sha256"]["model.safetensors"]
    assert "--variant words" in str(more["command"])


def test_the_words_variant_answers_with_a_name_that_it_read() -> None:
    env = make("bandit")
    loaded = load_policy("embedded", device="cpu", env="bandit")
    template = ChatTemplate(loaded.tokenizer)
    valid = 0
    for seed in heldout_seeds(env, 16):
        message = [{"role": "user", "content": env.reset(seed)}]
        ids = torch.tensor([template.first_prompt_ids(message)])
        out = loaded.model.generate(ids, max_new_tokens=60, do_sample=False)
        valid += parse(template.text(out[0, ids.shape[1] :].tolist())).answer in env.actions
    assert valid >= 8


def test_a_full_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(UserError, match="not empty"):
        check_folder(tmp_path, force=False)
    check_folder(tmp_path, force=True)
    with pytest.raises(UserError, match="cannot be written"):
        check_folder(tmp_path / "something" / "below", force=False)


def test_byte_complete_without_any_training_text() -> None:
    tokenizer = build_tokenizer([])
    assert tokenizer.decode(tokenizer.encode("Ünï <think>")) == "Ünï <think>"
