"""Known answers of SEAL on a policy: where its gradient goes, and what it does to contrast."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from ragen2_cli import SealLoss, SnrGRPOTrainer
from ragen2_cli.training.seal import contrast
from tiny_trl import Script, config, tiny_model, trainer

LORA = LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"])
GOOD, BAD = 40, 41
"""Words that only good and only bad episodes begin with: the batch can be told apart."""


def term_gradients(model, coefficient):
    """Gradients of the term alone on two rows with opposite signs."""
    seal = SealLoss(coefficient, dropout=0.0).prepare(model)
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 10]])
    with seal.reading(model) as states:
        model(input_ids=ids)
    seal(states[0], torch.tensor([1.0, -1.0]), torch.ones(2, 2)).backward()
    return {name: w.grad for name, w in model.named_parameters() if w.requires_grad}


def test_the_gradient_reaches_every_layer_of_the_backbone_and_not_the_language_head():
    found = term_gradients(tiny_model(), 1.0)
    for name, gradient in found.items():
        if "lm_head" in name:
            assert gradient is None
        else:
            assert gradient.abs().max() > 0, name


def test_the_gradient_reaches_every_matrix_of_the_adapter():
    model = get_peft_model(tiny_model(), LORA)
    for name, weight in model.named_parameters():
        if "lora_B" in name:  # a new adapter has half of its gradients at exactly 0
            weight.data = 0.05 * torch.randn(weight.shape)
    found = term_gradients(model, 1.0)
    assert len(found) == 2 * 2 * 7  # A and B of seven matrices in two layers
    for name, gradient in found.items():
        assert gradient.abs().max() > 0, name


def test_with_coefficient_zero_every_gradient_is_zero():
    for gradient in term_gradients(tiny_model(), 0.0).values():
        assert gradient is None or not gradient.any()


def separable():
    """Eight rows that are equal but for their first word, and which of them are good."""
    rest = torch.randint(3, 40, (4, 6), generator=torch.Generator().manual_seed(3))
    rows = [torch.tensor([first, *row]) for row in rest.tolist() for first in (GOOD, BAD)]
    return torch.stack(rows), torch.tensor([True, False] * 4)


@pytest.mark.parametrize("lora", [False, True])
def test_contrast_falls_within_fifty_steps_with_seal_and_not_without(lora):
    # Beside SEAL a weak loss that treats all rows alike: the likelihood of the later words.
    ids, good = separable()
    mask, advantages = torch.ones(8, 6), good.float() * 2 - 1
    ends = {}
    for coefficient in (0.0, 1.0):
        model = get_peft_model(tiny_model(), LORA) if lora else tiny_model()
        seal = SealLoss(coefficient, seed=1).prepare(model)
        optimizer = torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=0.3)
        seal.join(optimizer)
        contrasts = []
        for _ in range(50):
            optimizer.zero_grad()
            with seal.reading(model) as states:
                logits = model(input_ids=ids).logits
            likelihood = torch.nn.functional.cross_entropy(logits[:, 1:-1].mT, ids[:, 2:])
            contrasts.append(contrast(states[0][:, 1:].detach(), mask, good)["contrast"])
            (0.002 * likelihood + seal(states[0], advantages, mask)).backward()
            optimizer.step()
        ends[coefficient] = contrasts
    assert ends[0.0][0] == ends[1.0][0]
    assert ends[1.0][-1] < ends[1.0][0] - 1.0
    assert ends[0.0][-1] > ends[0.0][0] - 0.2


class Separable(Script):
    """Good episodes begin with one word and bad ones with another; all the rest is the same."""

    def row(self, group, member):
        first = GOOD if self.rewards[group][member] else BAD
        return [first, *super().row(group, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_it_falls_in_the_trainer_too(tmp_path: Path, lora):
    # Rewards of 0.001 that are not scaled leave nearly nothing of the policy's own loss, which
    # tells the first words apart as well; the entropy bonus treats all rows alike.
    contrasts = {}
    for name, seal in (("with", SealLoss(1.0, seed=1)), ("without", None)):
        args = config(
            tmp_path, rows=8, max_steps=50, learning_rate=5e-3, optim="adamw_torch",
            scale_rewards="none", entropy_coef=0.1,
        )  # fmt: skip
        built = trainer(
            SnrGRPOTrainer, tmp_path, Separable([[0.001, 0.001, 0, 0]] * 2), model=tiny_model(),
            groups=100, args=args, peft_config=LORA if lora else None, seal=seal, separation=True,
        )  # fmt: skip
        built.train()
        contrasts[name] = [
            row["separation/contrast"] for row in built.state.log_history if "loss" in row
        ]
    assert contrasts["with"][0] == pytest.approx(contrasts["without"][0], abs=1e-5)
    assert contrasts["with"][-1] < contrasts["with"][0] - 1.0
    assert contrasts["without"][-1] > contrasts["without"][0] - 0.3
