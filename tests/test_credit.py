"""The trainer with advantages per token: what is trained on, and by how much."""

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from ragen2_cli import GroupFilter, SnrGRPOTrainer
from ragen2_cli.core.advantages import NO_TURN, Discounts
from ragen2_cli.errors import UserError
from ragen2_cli.records import Episode, Turn
from ragen2_cli.training.credit import CreditRules, CreditTrainer, Turns, turns_of
from ragen2_cli.training.critic import build_critic
from ragen2_cli.training.critic_learner import CriticSettings
from tiny_trl import Script, config, mean_gradient, tiny_model, trainer

LIVE_AND_DEAD = [[1, 0, 0, 1], [2, 2, 2, 2]]
KEEP_LIVE = GroupFilter("top-p", 1.0)


class Scripted(CreditTrainer):
    """Cuts each row's own tokens into two turns; the second starts at the fifth column.

    The first turn earns nothing, the second the row's reward; a short row has only one.
    """

    def turns(self, inputs, width):
        turn = np.where(np.arange(width) < 4, 0, 1)[None].repeat(len(inputs), axis=0)
        earned = np.array([[0.0, float(row["scripted"])] for row in inputs])
        self.seen = Turns(earned, turn)
        return self.seen

    def on_credit(self, advantages_N):
        self.means = advantages_N


def build(tmp_path, rewards, *, settings=None, credit="episode", groups=None, parts=2, **options):
    script = Script(rewards, masks=True, groups=groups)
    model = tiny_model()
    critic = None if settings is None else build_critic(model, rank=2)
    rows = 4 * len(script.groups)
    trl = {name: options.pop(name) for name in ("max_steps", "learning_rate") if name in options}
    args = config(tmp_path / "out", rows=rows, parts=parts, loss_type="dapo", **trl)
    rules = CreditRules(credit, options.pop("discounts", Discounts()), settings)
    return trainer(
        options.pop("cls", Scripted), tmp_path, script, model=model, args=args, credit=rules,
        critic=critic, **options,
    )  # fmt: skip


def critic_weights(built):
    return torch.cat([one.detach().flatten() for one in built.learner.critic.trained().values()])


def batch_advantages(built):
    """Train on one batch; return the advantages (N, C) of what is kept, and its loss mask."""
    kept = {}
    generate = built._generate_and_score_completions

    def caught(inputs):
        batch = generate(inputs)
        kept.update(batch)
        return batch

    built._generate_and_score_completions = caught
    built.train()
    return kept["advantages"], kept["completion_mask"] * kept["tool_mask"]


PLAIN = CriticSettings(lr=1e-2, whiten=False)


def test_without_critic_or_turns_it_is_the_plain_trainer(tmp_path):
    found = []
    for cls in (SnrGRPOTrainer, CreditTrainer):
        script = Script(LIVE_AND_DEAD, masks=True)
        args = config(tmp_path, rows=8, parts=2, learning_rate=1e-2, max_steps=2)
        built = trainer(cls, tmp_path, script, args=args, group_filter=KEEP_LIVE)
        built.train()
        found.append(torch.cat([one.flatten() for one in built.model.parameters()]).detach())
    assert torch.equal(found[0], found[1])


def test_a_silent_critic_trains_on_the_plain_return(tmp_path):
    built = build(tmp_path, [[1, 0, 0, 2]], settings=PLAIN)
    advantages, own = batch_advantages(built)
    expected = torch.tensor([[1.0], [0.0], [0.0], [2.0]]) * own
    assert torch.equal(advantages, expected)


def test_dropped_groups_train_neither_policy_nor_critic(tmp_path):
    both = build(tmp_path, LIVE_AND_DEAD, settings=CriticSettings(lr=1e-2), group_filter=KEEP_LIVE)
    alone = build(tmp_path, LIVE_AND_DEAD, settings=CriticSettings(lr=1e-2), groups=[0], parts=2)
    for built in (both, alone):
        built.train()
    torch.testing.assert_close(
        mean_gradient(both.gradients), mean_gradient(alone.gradients), rtol=1e-4, atol=1e-7
    )
    torch.testing.assert_close(critic_weights(both), critic_weights(alone), rtol=0, atol=1e-6)
    assert both.last_selection.kept.tolist() == [0]
    assert np.isnan(both.means).tolist() == [False] * 4 + [True] * 4


def test_an_empty_batch_changes_neither_policy_nor_critic(tmp_path):
    built = build(
        tmp_path, [[1, 1, 1, 1]], settings=PLAIN, group_filter=KEEP_LIVE, learning_rate=1e-2
    )
    before = (
        critic_weights(built).clone(),
        [one.detach().clone() for one in built.model.parameters()],
    )
    built.train()
    assert torch.equal(critic_weights(built), before[0])
    assert all(
        torch.equal(old, new) for old, new in zip(before[1], built.model.parameters(), strict=True)
    )
    assert built.empty_steps == 1
    assert "value_loss" not in built.state.log_history[0]


def test_a_group_without_spread_still_teaches_a_policy_with_a_critic(tmp_path):
    # All earn 2; against the critic's 0 that is an advantage of 2, not of 0.
    built = build(tmp_path, [[2, 2, 2, 2]], settings=PLAIN)
    advantages, own = batch_advantages(built)
    assert torch.equal(advantages, 2.0 * own)
    assert float(mean_gradient(built.gradients).norm()) > 0


def test_warm_up_trains_the_critic_alone(tmp_path):
    settings = CriticSettings(lr=1e-2, warmup_steps=1)
    built = build(tmp_path, [[1, 0, 0, 1]], settings=settings, learning_rate=1e-2, max_steps=2)
    start = [one.detach().clone() for one in built.model.parameters()]
    kept, critics = [], []

    class After(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            kept.append([one.detach().clone() for one in built.model.parameters()])
            critics.append(critic_weights(built).clone())

    before = critic_weights(built).clone()
    built.add_callback(After())
    built.train()
    assert all(torch.equal(a, b) for a, b in zip(start, kept[0], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(kept[0], kept[1], strict=True))
    assert not torch.equal(before, critics[0])
    assert built.empty_steps == 0


def test_metrics_are_logged(tmp_path):
    built = build(tmp_path, LIVE_AND_DEAD, settings=PLAIN)
    built.train()
    row = built.state.log_history[0]
    assert {"value_loss", "value_mean", "explained_variance", "critic_grad_norm"} <= row.keys()
    assert row["value_loss"] > 0


def test_loss_scaling_reaches_tokens(tmp_path):
    built = build(
        tmp_path, LIVE_AND_DEAD, settings=PLAIN, group_filter=KEEP_LIVE, loss_scaling="linear"
    )
    advantages, own = batch_advantages(built)  # one of two groups is kept: half
    assert torch.equal(advantages, torch.tensor([[0.5], [0.0], [0.0], [0.5]]) * own)


def test_turn_credit_without_a_critic_by_hand(tmp_path):
    # To go, both turns: 3, 0, 0, 1, mean 1; dead group: exactly 0.
    built = build(
        tmp_path, [[3, 0, 0, 1], [2, 2, 2, 2]], credit="turn",
    )  # fmt: skip
    built.scale_rewards = "none"
    advantages, own = batch_advantages(built)
    turn = torch.as_tensor(built.seen.turn_N_C)
    assert set(turn.unique().tolist()) == {0, 1}
    expected = torch.tensor([[2.0], [-1.0], [-1.0], [0.0], [0.0], [0.0], [0.0], [0.0]]) * own
    torch.testing.assert_close(advantages, expected)


def test_turn_credit_differs_between_turns(tmp_path):
    class Early(Scripted):
        """The reward comes in the first turn."""

        def turns(self, inputs, width):
            found = super().turns(inputs, width)
            return Turns(found.rewards_N_K[:, ::-1], found.turn_N_C)

    built = build(tmp_path, [[3, 0, 0, 1]], credit="turn", cls=Early)
    built.scale_rewards = "none"
    advantages, own = batch_advantages(built)
    first = (torch.arange(own.shape[1]) < 4) * own
    expected = torch.tensor([[2.0], [-1.0], [-1.0], [0.0]]) * first  # nothing to go: 0
    torch.testing.assert_close(advantages, expected)


def test_bi_level_needs_a_critic(tmp_path):
    with pytest.raises(UserError, match="bi-level needs a critic"):
        build(tmp_path, LIVE_AND_DEAD, credit="bi-level")


def test_the_loss_must_take_advantages_per_token(tmp_path):
    with pytest.raises(UserError, match="vespo"):
        trainer(
            CreditTrainer, tmp_path, Script(LIVE_AND_DEAD),
            args=config(tmp_path, rows=8, loss_type="vespo"), credit=CreditRules("turn"),
        )  # fmt: skip


def test_turns_of_episodes():
    turn = Turn("o", "r", "a", ("x",), 1.0, -0.1, True)
    episode = Episode(
        1, 0, 0, 0, "p", (turn, turn), 1.8, 2.0, True, "success",
        completion_ids=(5, 6, 7, 8), loss_mask=(1, 1, 0, 1), turn_spans=((0, 2), (3, 4)),
    )  # fmt: skip
    found = turns_of([episode], 5)
    np.testing.assert_allclose(found.rewards_N_K, [[0.9, 0.9]])
    assert found.rewards_N_K.sum() == pytest.approx(episode.episode_return)
    assert found.turn_N_C.tolist() == [[0, 0, NO_TURN, 1, NO_TURN]]
