"""Running sums of gradients: norms by numbers derived in comments."""

import math

import pytest
import torch

from ragen2_cli.training.gradient_sums import GradientSums


def test_norms_of_sums_by_hand() -> None:
    # Two parameters, of sizes 2 and 1. Task (1, 0 | -) + (2, 4 | 0) = (3, 4 | 0): 5.
    # Entropy (- | 2) and KL (0, 1 | 2): norms 2 and sqrt(5); both (0, 1 | 4): sqrt(17).
    first, second = GradientSums(["none", "entropy", "kl"]), GradientSums(["none", "entropy", "kl"])
    given = torch.tensor([1.0, 0.0])
    first.add("none", [given, None])
    first.add("entropy", [None, torch.tensor([[2.0]])])
    second.add("none", [torch.tensor([2.0, 4.0]), torch.zeros(1, 1)])
    second.add("kl", [torch.tensor([0.0, 1.0]), torch.tensor([[2.0]])])
    assert second.norms("none").entropy == 0.0  # nothing but 0 was added
    first.absorb(second)
    norms = first.norms("none")
    assert norms.task == 5
    assert (norms.entropy, norms.kl) == (2, pytest.approx(math.sqrt(5)))
    assert norms.regularizer == pytest.approx(math.sqrt(17))
    assert norms.critic is None
    # Half of the policy loss and KL, thrice the entropy: both (0, 1/2 | 6 + 1).
    other = first.norms("none", 0.5, 3.0)
    assert (other.task, other.entropy, other.kl) == (2.5, 6, pytest.approx(math.sqrt(5) / 2))
    assert other.regularizer == pytest.approx(math.hypot(0.5, 7))
    assert given.tolist() == [1, 0]
    assert second.norms("none").task == pytest.approx(math.sqrt(20))


def test_half_precision_is_added_up_in_float32() -> None:
    # In bfloat16 256 + 1 is 256.
    sums = GradientSums(["none"])
    for value in (256.0, 1.0, 1.0):
        sums.add("none", [torch.tensor([value], dtype=torch.bfloat16)])
    assert sums.norms("none").task == 258
