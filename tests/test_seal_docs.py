"""The examples of docs/seal.md run as they stand."""

import re
from pathlib import Path

import pytest
import torch

from ragen2_cli import SealLoss
from ragen2_cli.errors import UserError
from tiny_trl import saved_model, tiny_model

DOCUMENT = Path(__file__).parents[1] / "docs" / "seal.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", [0, 1])
def test_an_example_trains_the_head_it_shows(tmp_path, monkeypatch, number):
    saved_model(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    exec(compile(EXAMPLES[number], str(DOCUMENT), "exec"), names)
    trainer = names["trainer"]
    seal = names["seal"] if number else trainer.seal
    assert trainer.state.global_step == 2
    fresh = SealLoss(0.02).prepare(tiny_model()).head
    assert fresh.state_dict().keys() == seal.head.state_dict().keys()
    assert not torch.equal(fresh.out.weight, seal.head.out.weight)


def test_the_term_by_hand_and_columns_before_the_completion_do_not_count():
    seal = SealLoss(0.5, layers=1, dropout=0.0).prepare(tiny_model())
    with torch.no_grad():
        seal.head.out.weight.zero_()
        seal.head.out.bias.zero_()
    states = torch.randn(2, 7, 16)
    # Every logit is 0, so every token costs ln 2, and the coefficient halves it.
    term = seal(states, torch.tensor([1.0, -1.0]), torch.tensor([[1, 1, 0], [1, 0, 0]]))
    assert term.item() == pytest.approx(0.5 * 0.6931472)
    seal.head.out.weight.data.fill_(1.0)
    changed = states.clone()
    changed[:, :4] = 9.0
    mask = torch.tensor([[1, 1, 1], [1, 1, 1]])
    advantages = torch.tensor([1.0, -1.0])
    assert torch.equal(seal(states, advantages, mask), seal(changed, advantages, mask))


def test_joining_clears_the_heads_gradient_after_each_step():
    model = tiny_model()
    seal = SealLoss(1.0).prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seal.join(optimizer)
    seal.join(optimizer)
    assert len(optimizer.param_groups) == 3
    seal(torch.randn(1, 2, 16), torch.ones(1), torch.ones(1, 2)).backward()
    before = seal.head.out.bias.detach().clone()
    optimizer.step()
    assert not torch.equal(before, seal.head.out.bias)
    assert seal.head.out.bias.grad is None


def test_a_head_that_is_not_built_is_named():
    with pytest.raises(UserError, match="call prepare"):
        SealLoss()(torch.zeros(1, 1, 4), torch.ones(1), torch.ones(1, 1))
