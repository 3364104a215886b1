"""Rows and padding that are removed, and rows that are shared out, by hand-made batches."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen2_cli.training.compaction import (
    even_sizes,
    loss_mask,
    row_lengths,
    share_out,
    take_rows,
    trim_padding,
)


def batch():
    """Three rows; prompts of 1, 3, 2 tokens (width 4), completions of 2, 1, 4 (width 6)."""
    prompt_mask = torch.tensor([[0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1]])
    completion_mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]])
    numbers = torch.arange(18).view(3, 6)
    return {
        "prompt_ids": prompt_mask * 7,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_mask * 8,
        "completion_mask": completion_mask,
        "tool_mask": torch.tensor([[1] * 6, [1] * 6, [1, 0, 1, 1, 1, 1]]),
        "advantages": torch.tensor([0.1, 0.2, 0.3]),
        "num_items_in_batch": torch.tensor(6),
        "old_per_token_logps": numbers * 0.1,
        "importance_sampling_ratio": torch.tensor([[1.0], [2.0], [3.0]]),
        "sampling_per_token_logps": numbers * 0.2,
        "token_type_ids": torch.arange(30).view(3, 10),
        "names": ["a", "b", "c"],
        "absent": None,
    }


def test_loss_is_on_every_model_token_and_on_no_observation_token():
    # Case 19: the third row's second token was not written by the model.
    assert loss_mask(batch()).tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0],
        [1, 0, 1, 1, 0, 0],
    ]


def test_lengths_leave_padding_out():
    assert row_lengths(batch()).tolist() == [3, 4, 6]


def test_every_entry_with_a_row_each_is_compacted():
    taken = take_rows(batch(), torch.tensor([2, 0]))
    assert taken["advantages"].tolist() == torch.tensor([0.3, 0.1]).tolist()
    assert taken["importance_sampling_ratio"].tolist() == [[3.0], [1.0]]
    assert taken["names"] == ["c", "a"]
    assert taken["num_items_in_batch"] == 6
    assert taken["absent"] is None
    assert all(
        len(value) == 2
        for key, value in taken.items()
        if key not in ("num_items_in_batch", "absent")
    )


def test_no_rows_is_a_batch_of_no_rows():
    empty = take_rows(batch(), torch.tensor([], dtype=torch.long))
    assert empty["completion_ids"].shape == (0, 6)
    assert empty["names"] == []
    assert trim_padding(empty)["completion_ids"].shape == (0, 6)


def test_padding_goes_from_the_left_of_prompts_and_the_right_of_completions():
    # Rows 0 and 1: prompts of at most 3 tokens, completions of at most 2.
    trimmed = trim_padding(take_rows(batch(), torch.tensor([0, 1])))
    assert trimmed["prompt_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]
    assert trimmed["completion_mask"].tolist() == [[1, 1], [1, 0]]
    assert trimmed["old_per_token_logps"].shape == trimmed["tool_mask"].shape == (2, 2)
    assert trimmed["importance_sampling_ratio"].shape == (2, 1)
    # Columns 1..5 of prompt (4) and completion (6) together.
    assert trimmed["token_type_ids"].tolist() == [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15]]


def test_widths_stay_multiples_when_asked():
    trimmed = trim_padding(batch(), multiple=2)
    assert trimmed["prompt_ids"].shape == (3, 4)
    assert trimmed["completion_ids"].shape == (3, 4)
    assert trim_padding(batch(), multiple=8)["completion_ids"].shape == (3, 6)


def test_a_masked_out_completion_keeps_one_column():
    masked = batch()
    masked["completion_mask"] = torch.zeros(3, 6, dtype=torch.long)
    assert trim_padding(masked)["completion_ids"].shape == (3, 1)


def test_three_rows_in_four_parts_start_with_the_empty_one():
    parts = share_out(torch.tensor([5, 9, 7]), torch.arange(3), slots=4, window=4)
    assert [part.tolist() for part in parts] == [[], [0], [2], [1]]


def test_rows_are_sorted_within_a_window_and_never_across():
    # Order 3 1 | 2 0 makes two windows; lengths 4 3 2 1 sort each of them.
    parts = share_out(torch.tensor([4, 3, 2, 1]), torch.tensor([3, 1, 2, 0]), slots=4, window=2)
    assert [part.tolist() for part in parts] == [[3], [1], [2], [0]]


@given(
    st.lists(st.integers(1, 9), max_size=20),
    st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 3), (5, 1)]),
    st.randoms(use_true_random=False),
)
def test_no_row_is_lost_and_parts_are_even(lengths, split, random):
    slots, window = split
    order = list(range(len(lengths)))
    random.shuffle(order)
    parts = share_out(
        torch.tensor(lengths, dtype=torch.long),
        torch.tensor(order, dtype=torch.long),
        slots=slots,
        window=window,
    )
    assert len(parts) == slots
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(lengths)))
    for start in range(0, slots, window):
        sizes = [len(part) for part in parts[start : start + window]]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes)


def test_even_sizes():
    assert even_sizes(10, 4) == [2, 2, 3, 3]
    assert even_sizes(0, 3) == [0, 0, 0]
