"""Shares of micro-batches: the weights that make any split add up to the whole."""

import numpy as np
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
    # Sorted lengths 1, 2, 3 after a part with an idle row. An equal part has 3/4 rows, 6/4 tokens.
    parts = micro_batches(rows(2, 3, 1), slots=4, accumulation=4)
    shares = [part["share"] for part in parts]
    assert [share.rows for share in shares] == pytest.approx([4 / 3] * 4)
    assert [share.tokens for share in shares] == pytest.approx([0, 2 / 3, 4 / 3, 2])
    assert [share.all_tokens for share in shares] == [0, 1, 2, 3]
    assert [part["completion_ids"].shape for part in parts] == [(1, 1), (1, 1), (1, 2), (1, 3)]
    assert parts[0]["completion_mask"].sum() == 0
    assert parts[0]["prompt_mask"].tolist() == [[1]]


def test_an_idle_row_has_the_entries_of_the_others():
    kept = rows(2) | {"ref_per_token_logps": torch.ones(1, 2), "tool_mask": torch.ones(1, 2)}
    empty = micro_batches(kept, slots=2, accumulation=2)[0]
    assert empty["completion_mask"].sum() == 0
    assert empty["ref_per_token_logps"].shape == empty["completion_ids"].shape == (1, 1)
    assert empty["num_items_in_batch"] == 2


def test_no_row_at_all():
    parts = micro_batches(rows(), slots=3, accumulation=3)
    assert [part["share"] for part in parts] == [Share(0.0, 0.0, 0.0, 0, 0, 1)] * 3
    assert [len(part["completion_ids"]) for part in parts] == [1] * 3


def test_other_processes_enter_the_shares_and_the_number_of_rows():
    # Another process has 2 rows with 10 tokens in the only part: 3 rows and 12 tokens over two
    # processes, so an equal part has 1.5 rows and 6 tokens. One idle row is added here.
    (part,) = micro_batches(
        rows(2),
        slots=1,
        accumulation=1,
        gather=lambda counts: torch.cat([counts, torch.tensor([[[2, 10, 2]]])]),
    )
    assert part["completion_mask"].tolist() == [[1, 1], [0, 0]]
    assert part["share"].rows == pytest.approx(2 / 1.5)
    assert part["share"].tokens == pytest.approx(2 / 6)
    assert part["share"].all_tokens == 12
    assert (part["share"].all_rows, part["share"].idle_rows) == (3, 1)


@pytest.mark.parametrize("loss_type", LOSS_NORMALIZERS)
def test_loss_and_entropy_weights_multiply_to_the_token_share(loss_type):
    # TRL's entropy bonus is a mean over a part's own tokens whatever the loss type.
    share = Share(0.5, 0.75, 0.5, all_tokens=3, all_rows=1, idle_rows=0)
    both = share.loss_weight(loss_type) * share.entropy_weight(loss_type)
    assert both == pytest.approx(0.75)
    assert Share(0.0, 0.0, 0.0, 0, 0, 1).entropy_weight(loss_type) in (0.0, 1.0)


def test_logged_means_over_rows_and_the_policy_loss_by_hand():
    # One row of 10 tokens with phi 1 and one of 100 with phi 0.5: 0.75, not 60 / 110.
    short = Share(1.0, 20 / 110, 1.0, all_tokens=10, all_rows=1, idle_rows=0)
    long = Share(1.0, 200 / 110, 1.0, all_tokens=100, all_rows=1, idle_rows=0)
    phi = "vespo/phi_seq_mean"
    found = short.behind(phi, 1.0, True), long.behind(phi, 0.5, True)
    assert np.sum(found, axis=0).tolist() == [1.5, 2]
    assert short.behind("kl", 0.3, False) == (3.0, 10)
    # A row of 0.4 beside an idle one: TRL's means are (0.4 + 1) / 2 of phi, (0.4 + 0) / 2 of clips.
    half = Share(1.0, 1.0, 1.0, all_tokens=5, all_rows=1, idle_rows=1)
    assert half.behind(phi, 0.7, True) == pytest.approx((0.4, 1))
    assert half.behind("clip_ratio/low_mean", 0.2, True) == pytest.approx((0.4, 1))
    # Losses -1.5, 0.5, 0.5 in parts of 1 and 2 rows: the mean of the three is -1/6.
    parts = micro_batches(rows(3, 2, 1), slots=2, accumulation=2)
    sizes = [len(part["completion_ids"]) for part in parts]
    losses = {1: -1.5, 2: 0.5}
    said = [
        part["share"].logged(losses[size], "grpo", 2)
        for part, size in zip(parts, sizes, strict=True)
    ]
    assert sorted(sizes) == [1, 2]
    assert sum(said) == pytest.approx(-1 / 6)
    # TRL divides dapo's by the tokens of the whole batch: parts are shares already.
    assert parts[0]["share"].logged(0.5, "dapo", 2) == 0.5
