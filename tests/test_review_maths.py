"""Edge cases of the formulas, each derived by hand: rounding, size and order at the limits."""

from types import SimpleNamespace

import numpy as np
import pytest

from ragen2_cli.core.degeneration import tag_fault, ungrounded_facts
from ragen2_cli.core.filters import GroupFilter, Selection
from ragen2_cli.core.groups import group_by_id
from ragen2_cli.training.run_trainer import GenerationBatch, RunTrainer
from test_resampling import group


def test_a_target_that_is_zero_but_for_rounding_keeps_nothing():
    # 0.1 x 0.1 - 0.01 = 0; in floating point 1.7e-18, which any group would reach.
    selection = GroupFilter(value=0.1, eps=0.01).select([[0, 0], [0, 1]], score_P=[0.0, 0.1])
    assert selection.kept.size == 0
    assert "zero or below" in selection.reason
    # A small share alone is a small target, not a zero one.
    assert GroupFilter(value=1e-12).select([[0, 1], [0, 2]]).kept.tolist() == [1]


def test_large_group_ids_keep_their_order_whatever_the_order_of_rows():
    # 2**60 and 2**60 + 1 are the same float.
    low, high = 2**60, 2**60 + 1
    assert [rows.tolist() for rows in group_by_id([low, high])] == [[0], [1]]
    assert [rows.tolist() for rows in group_by_id([high, low])] == [[1], [0]]


def test_long_numbers_are_compared_in_full():
    # Six significant digits are equal, the seventh is not: an invented number.
    assert ungrounded_facts("so 1234568 is there", ["the key is 1234567"]) == 1.0
    assert ungrounded_facts("so 1234567.0 is there", ["the key is 1234567"]) == 0.0
    assert ungrounded_facts(f"so {'9' * 400} is there", [f"the key is {'8' * 400}"]) == 1.0


@pytest.mark.parametrize(
    ("text", "fault"),
    [("</think> plan <think>", "unclosed"), ("<think> plan </think>", None)],
)
def test_a_tag_that_closes_before_it_opens_is_a_fault(text, fault):
    assert tag_fault(text) == fault


@pytest.mark.parametrize(
    ("discarded", "std", "var"),
    # Kept groups [0, 1] and [0, 0.4]: std 0.7071 and 0.2828, variance 0.5 and 0.08.
    # [1, 0.9] has equal outcomes but a penalty: std 0.0707, variance 0.005. [1, 1] has none.
    [
        ([1, 0.9], (0.7071068 + 0.2828427 + 0.0707107) / 3, (0.5 + 0.08 + 0.005) / 3),
        ([1, 1], (0.7071068 + 0.2828427) / 3, (0.5 + 0.08) / 3),
    ],
)
def test_the_spread_of_a_step_counts_discarded_groups_by_their_returns(discarded, std, var):
    rewards = np.array([0, 1, 0, 0.4])
    batch = GenerationBatch(step=1, discarded=group(2, discarded, [1.0, 1.0]))
    trainer = SimpleNamespace(
        source=SimpleNamespace(batch=batch, observe=lambda batch: None),
        accelerator=SimpleNamespace(process_index=0),
        num_generations=2,
    )
    selection = Selection(np.arange(2), np.ones(2), np.ones(2), np.zeros(2, bool), None, "")
    RunTrainer.on_selection(trainer, selection, rewards, rewards, [{}] * 4)
    assert batch.reward_std == pytest.approx(std)
    assert batch.reward_var == pytest.approx(var)
