"""Mixed precision with a loss scaler, and steps in which nothing is trained on."""

import pytest
import torch
from transformers import Trainer

from ragen2_cli import GroupFilter, SnrGRPOTrainer
from ragen2_cli.training.empty_steps import EmptyStepScaler
from tiny_trl import Script, config, tiny_model, trainer


def stepped(scaler, optimizer, weight, slope):
    optimizer.zero_grad()
    if slope is not None:
        scaler.scale(slope * weight).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return float(weight.detach()), scaler.get_scale()


def test_a_step_without_gradients_changes_neither_weight_nor_scale():
    weight = torch.nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = EmptyStepScaler("cpu", init_scale=4.0, growth_interval=1)  # doubles after each step
    # 2 - 3; nothing; an overflow halves the scale and steps nothing; -1 - 1.
    found = [stepped(scaler, optimizer, weight, slope) for slope in (3.0, None, float("inf"), 1.0)]
    assert found == [(-1.0, 8.0), (-1.0, 8.0), (-1.0, 4.0), (-2.0, 8.0)]


def test_a_scaler_keeps_its_state_when_it_is_replaced():
    old = torch.amp.GradScaler("cpu", init_scale=32.0, growth_interval=7)
    assert EmptyStepScaler.like(old, "cpu").state_dict() == old.state_dict()


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_empty_steps_pass_under_a_scaler(tmp_path, monkeypatch, bound):
    rewards = [[1, 0, 0, 1], [2, 2, 2, 2]]  # the second batch is dead

    def trained(scaled):
        create = Trainer.create_accelerator_and_postprocess

        def with_scaler(self):
            create(self)
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6)

        with monkeypatch.context() as patch:
            if scaled:
                patch.setattr(Trainer, "create_accelerator_and_postprocess", with_scaler)
            args = config(
                tmp_path / str(scaled), rows=4, max_steps=3, learning_rate=1e-3,
                max_grad_norm=bound, lr_scheduler_type="linear",
            )  # fmt: skip
            built = trainer(
                SnrGRPOTrainer, tmp_path, Script(rewards), model=tiny_model(), args=args,
                group_filter=GroupFilter("top-p", 0.9),
            )  # fmt: skip
            built.train()
        return built

    plain, scaled = trained(False), trained(True)
    assert scaled.empty_steps == plain.empty_steps == 1
    rates = [[row["learning_rate"] for row in one.state.log_history[:3]] for one in (plain, scaled)]
    assert rates[0] == rates[1]
    if not bound:  # a power of two scales and unscales without rounding
        pairs = zip(plain.model.parameters(), scaled.model.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
