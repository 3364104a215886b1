import dataclasses
import math

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from planted import IDS, Planted, episode, sample, tokenizer
from ragen2_cli.errors import UserError
from ragen2_cli.training.diagnostics import ReasoningCut, episode_sample, measure

torch.set_num_threads(1)


@pytest.mark.parametrize("sampling", ["first-turn", "trajectory"])
def test_planted_policies_of_equal_entropy_are_told_apart_by_information_only(sampling):
    rows = {
        dependent: measure(
            Planted(dependent), tokenizer(), sample(dependent), step=1, sampling=sampling
        )
        for dependent in (True, False)
    }
    for row in rows.values():  # log 8 = 2.079 up to the rest of the vocabulary
        assert row["conditional_entropy"] == pytest.approx(math.log(8), abs=0.01)
    assert rows[True]["mi_seq_estimate"] == pytest.approx(
        math.log(8), abs=0.35 if sampling == "trajectory" else 1e-3
    )
    assert rows[False]["mi_seq_estimate"] == pytest.approx(0, abs=1e-5)
    assert rows[True]["retrieval_accuracy"] == 1.0
    assert rows[False]["retrieval_accuracy"] == pytest.approx(rows[False]["retrieval_chance"])
    assert rows[True]["prefix_mi_zscore"] > 10
    assert abs(rows[False]["prefix_mi_zscore"]) < 4
    assert rows[True]["cross_scoring"] == "done"


def test_first_turn_coverage_is_even_and_repeatable():
    episodes = sample(True)
    row = measure(Planted(True), tokenizer(), episodes, step=3, samples=24)
    assert (row["reasonings"], row["columns"], row["columns_merged"]) == (24, 8, 16)
    assert row["rows"] == 64  # the batch, not the sample
    again = measure(Planted(True), tokenizer(), episodes, step=3, samples=24)
    assert {**again, "seconds": 0} == {**row, "seconds": 0}
    assert row["seconds"] > 0


def test_trajectory_draws_are_columns_of_their_own():
    row = measure(Planted(True), tokenizer(), sample(True), step=1, sampling="trajectory")
    assert (row["reasonings"], row["columns"], row["columns_merged"]) == (64, 64, 0)
    assert row["scored_prompts"] == 8


def test_words_in_both_units_agree_when_a_token_is_a_word():
    row = measure(Planted(True), tokenizer(), sample(True), step=1)
    assert row["prefix_mi_token"] == pytest.approx(row["prefix_mi"])
    assert row["prefix_mi_zscore_token"] == pytest.approx(row["prefix_mi_zscore"])


def test_reasoning_is_cut_by_ids_and_tags_are_excluded():
    cut = ReasoningCut(tokenizer())
    ids = [IDS[token] for token in ("w1", "w2", "</think>", "<answer>", "Up", "</answer>", "<eos>")]
    assert cut(ids) == ((IDS["w1"], IDS["w2"]), True)
    assert cut([IDS["</think>"], IDS["w1"]]) == ((), True)
    assert cut([IDS["w1"], IDS["<eos>"], IDS["<pad>"]]) == ((IDS["w1"],), False)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and a few merges, one of which swallows the start of the tag: ``.</``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["</", ".</", "th", "thin", "think", "in"]
    vocabulary = {piece: i for i, piece in enumerate([*alphabet, *pieces])}
    merges = [("<", "/"), (".", "</"), ("t", "h"), ("i", "n"), ("th", "in"), ("thin", "k")]
    core = Tokenizer(models.BPE(vocabulary, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("go up</think>x", "go up"),
        ("go up.</think>x", "go up"),
        ("</think>", ""),
        ("é.</think>", "é"),
    ],
)
def test_a_token_with_a_piece_of_the_tag_is_not_reasoning(text, kept):
    fast = byte_tokenizer()
    ids, closed = ReasoningCut(fast)(fast.encode(text))
    assert closed
    assert fast.decode(ids) == kept


def test_context_of_a_later_turn_holds_everything_before_it():
    words = [
        "w1",
        "</think>",
        "<answer>",
        "Up",
        "</answer>",
        "p3",
        "<think>",
        "w2",
        "w3",
        "</think>",
    ]
    one = episode(1, 0, 0, ["w1"], "Up", words, 1.0)
    two = type(one)(
        **{name: getattr(one, name) for name in one.__slots__} | {"turn_spans": ((0, 5), (7, 10))}
    )
    taken = episode_sample(two, 1, ReasoningCut(tokenizer()))
    assert taken.context == two.prompt_ids + two.completion_ids[:7]
    assert taken.reasoning == (IDS["w2"], IDS["w3"])


def test_a_broken_policy_does_not_end_the_run_that_measures_it():
    broken = Planted(True)
    with torch.no_grad():
        broken.table.fill_(float("nan"))
    row = measure(broken, tokenizer(), sample(True), step=1)
    assert row["cross_scoring"].startswith("none of the 64 reasonings can be scored")
    assert row["prefix_mi_zscore"] > 10
    assert "mi_estimate" not in row


def test_contexts_without_room_for_the_longest_reasoning_are_left_out_and_counted():
    policy = Planted(True)
    policy.config.max_position_embeddings = 20  # 2 + 10 fit; 12 + 10 do not
    episodes = sample(True)
    long = [
        dataclasses.replace(e, prompt_ids=e.prompt_ids[:1] * 11 + e.prompt_ids[1:])
        for e in episodes[:8]
    ]
    row = measure(policy, tokenizer(), long + episodes[8:], step=1)
    assert (row["too_long"], row["reasonings"], row["columns"]) == (8, 56, 7)
    assert row["cross_scoring"] == "done"


def test_one_prompt_or_no_reasoning_is_said_not_hidden():
    row = measure(Planted(True), tokenizer(), sample(True)[:8], step=1)
    assert row["cross_scoring"] == "needs two different prompts, there are 1"
    assert "mi_estimate" not in row
    silent = [episode(1, p, 0, [], "Up", ["</think>", "Up"], 0.0) for p in range(4)]
    row = measure(Planted(True), tokenizer(), silent, step=1)
    assert row["empty_reasonings"] == 4
    assert row["cross_scoring"].endswith("there are 0")
    assert measure(Planted(True), tokenizer(), [], step=1)["rows"] == 0
    with pytest.raises(UserError, match="first-turn or trajectory"):
        measure(Planted(True), tokenizer(), sample(True), step=1, sampling="last-turn")


def test_the_think_tag_is_read_from_the_sampled_ids():
    # The prompts end with the opening tag and every reasoning is closed; without that last prompt
    # token the closing tag has none to close.
    names = ("think_missing", "think_unclosed", "think_repeated")
    opened = sample(True)
    row = measure(Planted(True), tokenizer(), opened, step=1)
    assert [row[name] for name in names] == [0.0, 0.0, 0.0]
    bare = [dataclasses.replace(e, prompt_ids=e.prompt_ids[:-1]) for e in opened]
    row = measure(Planted(True), tokenizer(), bare, step=1)
    assert [row[name] for name in names] == [1.0, 0.0, 0.0]
