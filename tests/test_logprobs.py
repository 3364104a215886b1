"""Token scores do not depend on padding, chunks or what else is in the batch.

Guarantees: the same values as TRL's own function to 1e-5, and the same gradients; entropy is never
negative and does not change with padding (case 20); no position without a label is scored.
"""

from types import SimpleNamespace

import pytest
import torch
import trl
from accelerate import DistributedType
from trl import GRPOTrainer

from ragen2_cli import SnrGRPOTrainer
from ragen2_cli.training.logprobs import chunk_by_length, is_contiguous, score_in_chunks
from ragen2_cli.training.token_scores import TokenScoresTrainer
from tiny_trl import Script, config, tiny_model, trainer

SCRIPT = Script([[1, 0, 0, 0]])


@pytest.fixture(scope="module")
def trainers(tmp_path_factory):
    """Plain TRL and ours around the same weights."""
    folder = tmp_path_factory.mktemp("out")
    return [
        trainer(cls, folder, SCRIPT, model=tiny_model(), args=config(folder, rows=4))
        for cls in (GRPOTrainer, SnrGRPOTrainer)
    ]


def padded(prompt_lengths, completion_lengths, prompt_width, completion_width):
    """Random ids with prompts padded on the left and completions on the right."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.zeros(len(prompt_lengths), prompt_width + completion_width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(
        zip(prompt_lengths, completion_lengths, strict=True)
    ):
        tokens = torch.randint(3, 48, (prompt + completion,), generator=generator)
        span = slice(prompt_width - prompt, prompt_width + completion)
        ids[row, span], mask[row, span] = tokens, 1
    return ids, mask


def scores(built, ids, mask, keep):
    logps, entropies, _ = built._get_per_token_logps_and_entropies(
        built.model, ids, mask, keep, compute_entropy=True
    )
    return logps, entropies


@pytest.mark.parametrize("tokens_per_forward", [1, 20, 4096])
def test_scores_and_gradients_equal_trl(trainers, tokens_per_forward):
    plain, ours = trainers
    ours.tokens_per_forward = tokens_per_forward
    ids, mask = padded([3, 1, 5, 2], [9, 2, 1, 6], prompt_width=6, completion_width=12)
    gradients = []
    values = []
    for built in (plain, ours):
        logps, entropies = scores(built, ids, mask, 12)
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(2, *logps.shape, generator=generator) * mask[:, 6:]
        built.model.zero_grad()
        (weights[0] * logps + weights[1] * entropies).sum().backward()
        gradients.append(torch.cat([w.grad.flatten() for w in built.model.parameters()]))
        values.append((logps.detach(), entropies.detach()))
    torch.testing.assert_close(values[0][0], values[1][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(values[0][1], values[1][1], rtol=0, atol=1e-5)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-5)
    assert gradients[0].abs().max() > 0.1


def test_padding_to_10_and_to_100_gives_equal_entropy(trainers):
    # Case 20.
    ours = trainers[1]
    short = padded([3, 2], [7, 4], prompt_width=5, completion_width=10)
    wide = padded([3, 2], [7, 4], prompt_width=20, completion_width=100)
    entropies = [scores(ours, *short, 10)[1], scores(ours, *wide, 100)[1]]
    assert all((entropy >= 0).all() for entropy in entropies)
    torch.testing.assert_close(entropies[0], entropies[1][:, :10], rtol=0, atol=1e-5)
    assert (entropies[1][:, 10:] == 0).all()


def test_only_labeled_positions_reach_the_head(trainers, monkeypatch):
    # 9 + 2 completion tokens; TRL on a CPU scores all 2 x 15 positions.
    seen = []
    original = trl.trainer.utils._ChunkedLogProbFunction

    class Spy:
        @staticmethod
        def apply(hidden, *rest):
            seen.append(len(hidden))
            return original.apply(hidden, *rest)

    monkeypatch.setattr(trl.trainer.utils, "_ChunkedLogProbFunction", Spy)
    ids, mask = padded([3, 1], [9, 2], prompt_width=4, completion_width=12)
    for built in trainers:
        scores(built, ids, mask, 12)
    assert seen[0] == 30
    assert sum(seen[1:]) == 11


def test_a_batch_without_a_token_is_zero_and_still_connected(trainers):
    ours = trainers[1]
    ids, mask = padded([3, 2], [0, 0], prompt_width=4, completion_width=3)
    logps, entropies = scores(ours, ids, mask, 3)
    assert (logps == 0).all()
    assert (entropies == 0).all()
    ours.model.zero_grad()
    (logps.sum() + entropies.sum()).backward()
    assert all((weight.grad == 0).all() for weight in ours.model.parameters())


def test_a_mask_with_a_hole_goes_the_parents_way(trainers):
    plain, ours = trainers
    ids, mask = padded([3, 1], [6, 2], prompt_width=4, completion_width=8)
    mask[0, 6] = 0
    assert not is_contiguous(mask)
    expected, actual = (scores(built, ids, mask, 8)[0] for built in (plain, ours))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("processes", "kind", "without_gradient", "with_gradient"),
    [
        (1, "NO", False, False),
        (2, "MULTI_CPU", False, True),
        (8, "MULTI_GPU", False, True),
        (8, "FSDP", True, True),
        (8, "DEEPSPEED", True, True),
    ],
)
def test_whole_copies_need_no_passes_together_without_a_gradient(
    processes, kind, without_gradient, with_gradient
):
    accelerator = SimpleNamespace(num_processes=processes, distributed_type=DistributedType(kind))
    trainer = SimpleNamespace(accelerator=accelerator)
    together = TokenScoresTrainer._passes_together.fget
    assert together(trainer) == with_gradient
    with torch.no_grad():
        assert together(trainer) == without_gradient


def test_contiguous_masks():
    assert is_contiguous(torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]))
    assert not is_contiguous(torch.tensor([[1, 0, 1, 0]]))


def test_chunks_hold_every_row_once_and_keep_to_the_bound():
    # Sorted lengths 3 6 8 12: 2 x 6 fits into 16, 3 x 8 does not, 2 x 12 does not.
    assert chunk_by_length([12, 3, 6, 8], max_tokens=16) == [[1, 2], [3], [0]]


def test_one_row_is_allowed_to_exceed_the_bound():
    assert chunk_by_length([12, 12], max_tokens=1) == [[0], [1]]


@pytest.mark.parametrize("max_tokens", [1, 8, 100])
def test_scores_come_back_in_the_batch_order(max_tokens):
    # A score that says which token it is for: its id. Prompts of 1 and 2, completions of 3, 1, 2.
    ids = torch.tensor([[0, 9, 1, 2, 3, 0], [8, 9, 4, 0, 0, 0], [0, 9, 5, 6, 0, 0]])
    mask = (ids > 0).long()

    def score(chunk_ids, chunk_mask, wanted):
        assert (chunk_mask[:, 0] == 1).all()
        return chunk_ids[:, 1:].float() * wanted, None, None

    logps, entropies, scalar = score_in_chunks(score, ids, mask, 4, max_tokens)
    assert logps.tolist() == [[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 0, 0]]
    assert entropies is None
    assert scalar is None


def test_a_first_token_without_a_prompt_has_no_score():
    ids = torch.tensor([[0, 7, 8], [9, 6, 0]])
    mask = (ids > 0).long()
    logps, _, _ = score_in_chunks(
        lambda ids, _mask, wanted: (ids[:, 1:].float() * wanted, None, None), ids, mask, 2, 100
    )
    assert logps.tolist() == [[0, 8], [6, 0]]
