import pytest

from ragen2_cli.core.batches import batch_metrics, episode_row
from ragen2_cli.core.degeneration import (
    degeneration_metrics,
    repeated_ngram_mass,
    sentence_duplication,
    tag_fault,
    tag_state,
    text_metrics,
    ungrounded_facts,
    unique_token_ratio,
)
from ragen2_cli.records import Episode, Turn


def test_sentence_duplication_by_hand():
    # Four sentences of 20+ characters, two equal after lower-casing and spacing: 2 / 4.
    text = (
        "The goal is two steps right. I should go around the hole. Ok. "
        "the  GOAL is two steps right! Therefore I will go down now."
    )
    assert sentence_duplication(text) == pytest.approx(0.5)
    assert sentence_duplication("Ok. Ok. Ok. Ok.") is None  # all too short
    assert sentence_duplication("") is None
    assert sentence_duplication("a distinct sentence no. 3.14 is here") == 0.0


def test_line_breaks_and_full_width_stops_end_a_sentence():
    assert sentence_duplication("move right until the wall\n" * 3) == 1.0
    sentence = "目标在右边两步远的地方然后我需要向下走才能到达那里"
    assert sentence_duplication(f"{sentence}。{sentence}。") == 1.0


def test_ngram_mass_by_hand():
    # a b c a b c: bigrams ab bc ca ab bc -> ab, bc twice: 4 / 5.
    assert repeated_ngram_mass(["a", "b", "c", "a", "b", "c"], 2) == pytest.approx(0.8)
    assert repeated_ngram_mass(["a", "b", "c"], 5) is None
    assert repeated_ngram_mass([str(i) for i in range(30)], 5) == 0.0
    assert repeated_ngram_mass(["!"] * 12, 10) == 1.0


def test_unique_token_ratio():
    assert unique_token_ratio(["a", "a", "b", "c"]) == 0.75
    assert unique_token_ratio([]) is None


@pytest.mark.parametrize(
    ("text", "opened", "fault"),
    [
        ("<think>a</think>", False, None),
        ("a</think><answer>Up</answer>", True, None),
        ("<think>a", False, "unclosed"),
        ("a", True, "unclosed"),
        ("a", False, "missing"),
        ("a</think>", False, "missing"),
        ("<think>a</think><think>b</think>", False, "repeated"),
        ("<think>a</think>", True, "repeated"),
        ("a</think></think>", True, "repeated"),
    ],
)
def test_tag_faults(text, opened, fault):
    assert tag_fault(text, opened_by_prompt=opened) == fault


def test_ungrounded_facts_by_hand():
    board = "Player at (1, 2). The goal is at (3, 3). Alice waits."
    # Facts: 1, 2, 3, 7, alice, bob -> 7 and bob come from nowhere: 2 / 6.
    reasoning = "From 1, 2.0 to column 3 and not 7, because Alice told Bob."
    assert ungrounded_facts(reasoning, [board]) == pytest.approx(2 / 6)
    assert (
        ungrounded_facts("Go right. Then down.", [board]) is None
    )  # sentence openers are no names
    assert ungrounded_facts("at 9", [board, "now at 9"]) == 0.0  # an earlier turn said so


def test_means_skip_texts_where_a_pattern_is_undefined():
    metrics = degeneration_metrics(["", "!!!!", "go go go go go go", "one two three four five six"])
    assert metrics["sentence_duplication"] == 0.0  # one sentence is long enough
    assert metrics["repeated_5gram_mass"] == pytest.approx(0.5)
    assert metrics["repeated_10gram_mass"] is None
    assert metrics["unique_token_ratio"] == pytest.approx((1 + 1 / 6 + 1) / 3)
    assert set(degeneration_metrics([]).values()) == {None}


def test_degeneration_flag_counts_texts():
    loop = "I am moving in circles now. " * 4
    fine = "I am moving to the goal now. Then I will stop right there."
    assert degeneration_metrics([loop, fine])["duplication_flagged"] == 0.5


def test_text_metrics_by_hand():
    # Of four rows three have a known tag: one sound, one missing, one unclosed; facts are known of
    # two rows: 0 and 1/2, mean 1/4.
    found = text_metrics(["sound", "missing", None, "unclosed"], [0.0, None, None, 0.5])
    assert found == {
        "think_missing": pytest.approx(1 / 3),
        "think_unclosed": pytest.approx(1 / 3),
        "think_repeated": 0.0,
        "ungrounded_facts": 0.25,
    }
    assert text_metrics([None], [None]) == {}
    assert tag_state("a</think>b") == "missing"
    assert tag_state("a</think>b", opened_by_prompt=True) == "sound"


def test_an_episode_knows_what_it_read():
    # The reasoning names 3, 7 and Down; the observation has 3, and the action that ran is Down:
    # one of three facts is from nowhere.
    turn = Turn("box at 3", "3 and 7, then go Down", "Down", ("Down",), 1.0, 0.0, True)
    episode = Episode(1, 0, 0, 0, "reach it", (turn,), 1.0, 1.0, True, "success")
    row = episode_row(episode, raw="<think>3 and 7, then go Down<answer>Down</answer>")
    assert row.ungrounded == pytest.approx(1 / 3)
    assert row.tag == "unclosed"
    metrics = batch_metrics([row])
    assert metrics["ungrounded_facts"] == row.ungrounded
    assert metrics["think_unclosed"] == 1.0
    unknown = batch_metrics([episode_row(episode, patterns=False)])
    assert "ungrounded_facts" not in unknown
    assert "think_missing" not in unknown
