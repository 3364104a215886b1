"""Kept rows dealt out anew over processes: even, complete, and padded alike."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ragen2_cli.training.rebalancing import deal, rebalance


class Peer:
    """One of several threads that stand in for processes."""

    def __init__(self, index, count, board, barrier):
        self.process_index, self.num_processes = index, count
        self.board, self.barrier = board, barrier

    def gather(self, tensor):
        self.board[self.process_index] = tensor
        self.barrier.wait(10)
        assert len({value.shape for value in self.board}) == 1
        gathered = torch.cat(self.board)
        self.barrier.wait(10)
        return gathered


def spread(*batches):
    """Rebalance one batch per process, all at the same time."""
    count = len(batches)
    board, barrier = [None] * count, threading.Barrier(count)
    peers = [Peer(index, count, board, barrier) for index in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(rebalance, batches, peers))


def rows(prompts, completions, *, first=0):
    """Left-padded prompts and right-padded completions of given lengths; row r says 10 + r."""
    prompt = torch.arange(max(prompts, default=4)).flip(0) < torch.tensor(prompts)[:, None]
    completion = torch.arange(max(completions, default=5)) < torch.tensor(completions)[:, None]
    says = torch.arange(first, first + len(prompts))[:, None] + 10
    return {
        "prompt_ids": prompt * says,
        "prompt_mask": prompt.long(),
        "completion_ids": completion * says,
        "completion_mask": completion.long(),
        "advantages": says[:, 0].float(),
        "importance_sampling_ratio": says.float(),
        "num_items_in_batch": torch.tensor(99),
    }


def test_deal_goes_back_and_forth():
    # Lengths in order: rows 1 (1), 3 (2), 0 (3), 2 (4), 4 (5). Owners 0, 1, 1, 0, 0.
    dealt = deal(torch.tensor([3, 1, 4, 2, 5]), 2)
    assert [rows.tolist() for rows in dealt] == [[1, 2, 4], [3, 0]]


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 7, 64])
def test_every_row_goes_to_one_process_and_numbers_are_even(processes, count):
    lengths = torch.randint(1, 9, (count,), generator=torch.Generator().manual_seed(count))
    dealt = deal(lengths, processes)
    assert sorted(torch.cat(dealt).tolist()) == list(range(count))
    sizes = [len(rows) for rows in dealt]
    assert max(sizes) - min(sizes) <= 1


def test_one_process_keeps_its_rows():
    (batch,) = spread(kept := rows([1, 2], [3, 1]))
    assert batch is kept


def test_all_rows_on_one_process_are_halved():
    # Tokens of the rows: 2 + 3, 1 + 1, 2 + 1, 1 + 4: order 1, 2, 0, 3; owners 0, 1, 1, 0.
    first, second = spread(rows([2, 1, 2, 1], [3, 1, 1, 4]), rows([], []))
    assert first["advantages"].tolist() == [11, 13]
    assert second["advantages"].tolist() == [12, 10]
    assert first["prompt_ids"].tolist() == [[0, 11], [0, 13]]
    assert second["prompt_ids"].tolist() == [[12, 12], [10, 10]]
    assert first["completion_ids"].tolist() == [[11, 0, 0, 0], [13, 13, 13, 13]]
    assert second["completion_mask"].tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]
    assert second["importance_sampling_ratio"].tolist() == [[12], [10]]
    assert first["num_items_in_batch"] == 99


def test_rows_of_different_widths_meet_in_the_wider_one():
    # Process 0: one row of 1 + 1 tokens. Process 1: rows of 3 + 2 and 2 + 2. Order: 0, 2, 1.
    first, second = spread(rows([1], [1]), rows([3, 2], [2, 2], first=1))
    assert first["prompt_ids"].tolist() == [[0, 0, 10]]
    assert second["prompt_ids"].tolist() == [[0, 12, 12], [11, 11, 11]]
    assert first["completion_ids"].tolist() == [[10, 0]]
    assert second["completion_ids"].tolist() == [[12, 12], [11, 11]]
    assert first["importance_sampling_ratio"].tolist() == [[10]]


def test_nothing_kept_anywhere():
    for batch in spread(rows([], []), rows([], [])):
        assert len(batch["completion_ids"]) == 0
