import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen2_cli.envs.parsing import Parsed, match_actions, parse, split_actions

GOOD = "go up</think><answer>Up || Left</answer>"
TAGS = ["<think>", "</think>", "<answer>", "</answer>", " ", "Up", "||", "\ud800", "√", "\n"]


@pytest.mark.parametrize("completion", [GOOD, "<think>" + GOOD, " \n<think>" + GOOD])
def test_repeating_the_opening_tag_changes_nothing(completion):
    assert parse(completion) == Parsed("go up", "Up || Left", well_formed=True)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("a</think> \n <answer> Up </answer> tail", "Up"),
        ("a</think><answer>Up</answer><think>b</think><answer>Down</answer>", "Up"),  # the first
        ("a</think> so <think>b</think><answer>Down</answer>", "Down"),  # text between: not a pair
        ("say <answer>Up</answer> no</think><answer>Down</answer>", "Down"),
        ("</think><answer>Up</answer>", "Up"),
        ("a</think><answer>x < y > z</answer>", "x < y > z"),
    ],
)
def test_first_well_formed_pair_wins(completion, answer):
    parsed = parse(completion)
    assert parsed.well_formed
    assert parsed.answer == answer


@pytest.mark.parametrize(  # case 35
    "completion",
    [
        "",
        "Up",
        "<answer>Up</answer>",
        "a <answer>Up</answer>",
        "a</think>Up",
        "a</think><answer>Up",
        "a</think><answer>Up<answer>Down</answer>",
        "a</think>then<answer>Up</answer>",
        "a</answer><think></think><answer>",
        "a</THINK><answer>Up</answer>",
    ],
)
def test_malformed_text_has_no_answer(completion):
    parsed = parse(completion)
    assert not parsed.well_formed
    assert parsed.answer == ""


def test_cut_off_reasoning_stays_readable():
    assert parse("I was about to say").reasoning == "I was about to say"
    assert parse("half <answer>Up").reasoning == "half"


def test_empty_answer_is_well_formed_but_holds_no_action():
    parsed = parse("a</think><answer>  </answer>")
    assert parsed == Parsed("a", "", well_formed=True)
    assert split_actions(parsed.answer, 2) == []


def test_split_trims_drops_empty_parts_and_cuts():
    assert split_actions(" Up ||  || Left||Down", 2) == ["Up", "Left"]


def test_match_is_case_insensitive_and_separates_unknown_names():
    assert match_actions(["uP", "jump", "LEFT"], ("Left", "Up")) == (["Up", "Left"], ["jump"])
    assert match_actions(["any text"], None) == (["any text"], [])


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(TAGS)).map("".join)))
def test_any_string_parses_and_the_pair_is_really_there(completion):
    parsed = parse(completion)
    assert not any(tag in parsed.answer for tag in TAGS[:4])
    if parsed.well_formed:
        text = "<think>" + completion
        assert parsed.answer in text
        assert parsed.reasoning in text
        assert "</think>" not in parsed.reasoning
    else:
        assert parsed.answer == ""


@pytest.mark.parametrize(
    "junk", ["<think>", "</think>", "</think><answer>", "<", "a</think> ", "|"]
)
def test_a_megabyte_of_junk_takes_linear_time(junk):
    text = junk * (1_000_000 // len(junk))
    start = time.perf_counter()
    parsed = parse(text)
    split_actions(text, 2)
    assert time.perf_counter() - start < 2.0
    assert not parsed.well_formed
