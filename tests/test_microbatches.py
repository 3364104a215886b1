"""Shares of micro-batches: the weights that make any split add up to the whole."""

import pytest
import torch

from ragen2_cli.training.microbatches import LOSS_NORMALIZERS, Share, micro_batches


def rows(*lengths):
    """A batch with one row per length, all tokens written by the model, prompts of one token."""
    width = max(lengths, default=1)
    mask = (torch.arange(width) < torch.tensor(lengths, dtype=torch.long)[:, None]).long()
    return {
        "prompt_ids": torch.ones(len(lengths), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(lengths), 1, dtype=torch.long),
        "completion_ids": mask * 5,
        "completion_mask": mask,
        "advantages": torch.zeros(len(lengths)),
        "num_items_in_batch": mask.sum(),
    }


def test_shares_of_three_rows_in_four_parts():
    # Sorted lengths 1, 2, 3 after an empty part. An equal part has 3/4 rows and 6/4 tokens.
    parts = micro_batches(rows(2, 3, 1), rows(4), slots=4, accumulation=4)
    shares = [part["share"] for part in parts]
    assert [share.rows for share in shares] == pytest.approx([0, 4 / 3, 4 / 3, 4 / 3])
    assert [share.tokens for share in shares] == pytest.approx([0, 2 / 3, 4 / 3, 2])
    assert [share.all_tokens for share in shares] == [0, 1, 2, 3]
    assert [part["completion_ids"].shape[1] for part in parts] == [1, 1, 2, 3]


def test_an_empty_part_has_a_masked_row_with_the_entries_of_the_others():
    kept = rows(2) | {"ref_per_token_logps": torch.ones(1, 2)}
    empty = micro_batches(kept, rows(4), slots=2, accumulation=2)[0]
    assert empty["completion_mask"].sum() == 0
    assert empty["ref_per_token_logps"].shape == empty["completion_ids"].shape
    assert empty["num_items_in_batch"] == 2


def test_no_row_at_all():
    parts = micro_batches(rows(), rows(4), slots=3, accumulation=3)
    assert [part["share"] for part in parts] == [Share(0.0, 0.0, 0)] * 3


def test_counts_of_other_processes_enter_the_shares():
    # Another process adds 2 rows with 10 tokens to the only part: 3 rows, 12 tokens, 2 processes.
    (part,) = micro_batches(
        rows(2),
        rows(4),
        slots=1,
        accumulation=1,
        processes=2,
        reduce_sum=lambda counts: counts + torch.tensor([[2, 10]]),
    )
    assert part["share"].rows == pytest.approx(1 / 1.5)
    assert part["share"].tokens == pytest.approx(2 / 6)
    assert part["share"].all_tokens == 12


@pytest.mark.parametrize("loss_type", LOSS_NORMALIZERS)
def test_loss_and_entropy_weights_multiply_to_the_token_share(loss_type):
    # TRL's entropy bonus is a mean over a part's own tokens whatever the loss type.
    share = Share(rows=0.5, tokens=0.75, all_tokens=3)
    both = share.loss_weight(loss_type) * share.entropy_weight(loss_type)
    assert both == pytest.approx(0.75)
    assert Share(0.0, 0.0, 0).entropy_weight(loss_type) in (0.0, 1.0)
