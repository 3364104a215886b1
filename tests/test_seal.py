"""SEAL: the loss's golden values, the head's shape and streams, contrast by hand."""

import json
import math
from pathlib import Path

import pytest
import torch

from ragen2_cli.errors import UserError
from ragen2_cli.training.seal import AGGREGATIONS, SealHead, contrast, seal_loss

CASES = json.loads((Path(__file__).parent / "goldens" / "seal_loss.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_loss_equals_the_golden_values(case: dict) -> None:
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    lengths = torch.tensor(case["lengths"]).unsqueeze(1)
    mask = torch.arange(logits.shape[1]).unsqueeze(0) < lengths
    advantages = torch.tensor(case["advantages"], dtype=torch.float64)
    token = seal_loss(logits, advantages, mask)
    sequence = seal_loss(logits, advantages, mask, "seq-mean-token-mean")
    assert token.item() == pytest.approx(case["expected"]["token_mean"], abs=1e-9)
    assert sequence.item() == pytest.approx(case["expected"]["seq_mean_token_mean"], abs=1e-9)


def test_loss_by_hand() -> None:
    # Row 0 (advantage >= 0, label 1), logits 0 and 0: ln 2 each. Row 1 (label 0), one logit 0.
    logits, mask = torch.zeros(2, 2), torch.tensor([[1, 1], [1, 0]])
    loss = seal_loss(logits, torch.tensor([0.0, -1.0]), mask)
    assert loss.item() == pytest.approx(math.log(2))
    # Observation tokens may hold anything, infinities included.
    logits[1, 1] = float("inf")
    assert seal_loss(logits, torch.tensor([0.0, -1.0]), mask).item() == pytest.approx(math.log(2))


def test_nothing_to_learn_is_zero() -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    for aggregation in ("token-mean", "seq-mean-token-mean"):
        loss = seal_loss(logits, torch.ones(2), torch.zeros(2, 3), aggregation)
        assert loss.item() == 0
        loss.backward()
    assert logits.grad is not None
    assert not logits.grad.any()


def test_an_unknown_mean_is_named() -> None:
    with pytest.raises(UserError, match="token-mean"):
        seal_loss(torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1), "token_mean")  # type: ignore[arg-type]


def test_every_trl_loss_has_its_mean() -> None:
    pytest.importorskip("trl")
    from trl import GRPOConfig

    text = GRPOConfig.__dataclass_fields__["loss_type"].metadata["help"]
    for name in AGGREGATIONS:
        assert name in text


def test_head_leaves_other_random_streams_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    head = SealHead(8, layers=3, seed=1)
    head(torch.ones(2, 5, 8))
    assert torch.equal(torch.rand(4), expected)


def test_head_is_decided_by_its_seed_and_has_n_linear_layers() -> None:
    first, second = SealHead(8, seed=5), SealHead(8, seed=5)
    states = torch.randn(2, 4, 8)
    assert torch.equal(first(states), second(states))
    assert first(states).shape == (2, 4)
    assert sum(isinstance(module, torch.nn.Linear) for module in first.modules()) == 3
    first.eval()
    assert torch.equal(first(states), first(states))
    with pytest.raises(UserError, match="at least 1"):
        SealHead(8, layers=0)


def test_contrast_by_hand() -> None:
    # Two good rows along x (cosine 1), two bad rows along y (cosine 1), across 0: 2*0 - (1 + 1).
    x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    states = torch.stack([x, 2 * x, y, 3 * y]).unsqueeze(1)
    values = contrast(states, torch.ones(4, 1), torch.tensor([True, True, False, False]))
    assert values == pytest.approx(
        {"within_correct": 1, "within_incorrect": 1, "across": 0, "contrast": -2}
    )
    # Equal rows: everything is 1 and the contrast 0.
    same = contrast(x.expand(4, 1, 2), torch.ones(4, 1), torch.tensor([True, True, False, False]))
    assert same["contrast"] == pytest.approx(0)


def test_contrast_without_pairs_is_undefined() -> None:
    values = contrast(torch.ones(2, 1, 3), torch.ones(2, 1), torch.tensor([True, True]))
    assert values["within_correct"] == pytest.approx(1)
    assert math.isnan(values["across"])
    assert math.isnan(values["contrast"])


def test_gradient_reaches_the_states_and_separates_them() -> None:
    # A separable batch: 50 steps on the states through the head lower the contrast.
    torch.manual_seed(0)
    states = torch.nn.Parameter(torch.randn(16, 6, 12) * 0.1 + 1)
    correct = torch.arange(16) < 8
    advantages = torch.where(correct, 1.0, -1.0)
    mask = torch.ones(16, 6)
    head = SealHead(12)
    optimizer = torch.optim.Adam([states, *head.parameters()], lr=1e-2)
    before = contrast(states.detach(), mask, correct)["contrast"]
    for _ in range(50):
        optimizer.zero_grad()
        seal_loss(head(states), advantages, mask).backward()
        optimizer.step()
    assert contrast(states.detach(), mask, correct)["contrast"] < before - 0.05
