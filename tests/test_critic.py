"""The critic: shared base, values before tokens, its loss, and what it learns."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from ragen2_cli.core.advantages import NO_TURN, Discounts
from ragen2_cli.errors import UserError
from ragen2_cli.training.critic import build_critic, load_weights, value_loss
from ragen2_cli.training.critic_learner import CriticLearner, CriticSettings
from tiny_trl import tiny_model

X = NO_TURN


def small_batch(rows: int = 4) -> dict:
    """Rows of uneven length: two tokens, an observation, two tokens; one row ends after two."""
    draw = torch.Generator().manual_seed(5)
    turn = torch.tensor([[0, 0, X, 1, 1]] * rows)
    mask = torch.ones(rows, 5, dtype=torch.long)
    turn[1, 2:], mask[1, 2:] = X, 0
    prompts = torch.ones(rows, 3, dtype=torch.long)
    prompts[2, 0] = 0
    return {
        "prompt_ids": torch.randint(3, 40, (rows, 3), generator=draw) * prompts,
        "prompt_mask": prompts,
        "completion_ids": torch.randint(3, 40, (rows, 5), generator=draw) * mask,
        "completion_mask": mask,
        "turns": turn,
    }


REWARDS = np.array([[0.0, 1.0], [0.5, np.nan], [0.0, 0.0], [1.0, 2.0]])


def said_something(model, **options):
    """A critic whose head and adapter are not at their start."""
    critic = build_critic(model, rank=2, alpha=4, **options)
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for one in critic.trained().values():
            one.copy_(torch.randn(one.shape, generator=draw) * 0.3)
    return critic


# ---- what it stands on ----


def test_base_tensors_are_shared_and_the_policy_stays_as_it_is():
    model = tiny_model()
    trainable = {name: one.requires_grad for name, one in model.named_parameters()}
    critic = build_critic(model, rank=2, alpha=4)
    own = {one.data_ptr() for one in model.parameters()}
    base = [one for one in critic.backbone.parameters() if not one.requires_grad]
    assert len(base) > 10
    assert all(one.data_ptr() in own for one in base)
    assert {name: one.requires_grad for name, one in model.named_parameters()} == trainable
    assert not any("lora" in name for name, _ in model.named_parameters())
    assert not own & {one.data_ptr() for one in critic.trained().values()}


@pytest.mark.parametrize(("share", "layers"), [(0.5, {1}), (0.51, {0, 1}), (1.0, {0, 1})])
def test_the_adapter_is_on_the_upper_layers(share, layers):
    # two layers: one half is one layer, anything more is both
    critic = build_critic(tiny_model(), rank=2, share=share)
    names = [name for name in critic.trained() if "lora" in name]
    assert {int(name.split(".layers.")[1][0]) for name in names} == layers
    assert len(names) == 2 * 7 * len(layers)  # A and B of seven projections


def test_no_global_generator_is_drawn_from():
    model = tiny_model()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = build_critic(model, rank=2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    again = build_critic(model, rank=2, seed=1)
    other = build_critic(model, rank=2, seed=2)
    pairs = [list(critic.trained().values()) for critic in (first, again, other)]
    assert all(torch.equal(a, b) for a, b in zip(pairs[0], pairs[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(pairs[0], pairs[2], strict=True))


def test_a_policys_adapter_is_left_out():
    bare = tiny_model()
    wrapped = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, one in wrapped.named_parameters():
            if "lora_B" in name:
                one.add_(1.0)
    batch = small_batch()
    critic, expected = said_something(wrapped), said_something(bare)
    assert torch.equal(critic.values(batch, 99), expected.values(batch, 99))
    assert any("lora" in name for name, _ in wrapped.named_parameters())


# ---- values ----


def test_the_critic_starts_at_zero():
    assert not build_critic(tiny_model()).values(small_batch(), 99).any()


def test_a_value_is_read_before_its_token():
    # Changing a token changes no value up to its own, and every later one.
    critic, batch = said_something(tiny_model()), small_batch()
    before = critic.values(batch, 99)
    batch["completion_ids"][0, 3] = 40
    after = critic.values(batch, 99)
    torch.testing.assert_close(after[0, :4], before[0, :4])
    assert not torch.isclose(after[0, 4], before[0, 4], atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 16, 4096])
def test_padding_and_chunks_do_not_matter(tokens):
    critic, batch = said_something(tiny_model()), small_batch()
    values = critic.values(batch, tokens)
    for row in range(4):
        ids = torch.cat([batch["prompt_ids"][row], batch["completion_ids"][row]])
        used = torch.cat([batch["prompt_mask"][row], batch["completion_mask"][row]]).bool()
        count = int(batch["completion_mask"][row].sum())
        alone = critic(ids[used][None])[0, -count:]
        torch.testing.assert_close(values[row, :count], alone, rtol=0, atol=1e-6)
        assert not values[row, count:].any()


def test_recomputed_activations_give_the_same_gradient():
    found = []
    for checkpointing in (False, True):
        critic = said_something(tiny_model(), checkpointing=checkpointing)
        loss = critic.values(small_batch(), 99).square().sum()
        gradients = torch.autograd.grad(loss, list(critic.trained().values()))
        found.append(torch.cat([one.flatten() for one in gradients]))
        assert critic.backbone.base_model.model.is_gradient_checkpointing == checkpointing
    torch.testing.assert_close(found[0], found[1])


def test_no_rows_have_no_values():
    empty = {key: value[:0] for key, value in small_batch().items()}
    assert build_critic(tiny_model()).values(empty, 99).shape == (0, 5)


# ---- loss ----


def test_value_loss_by_hand():
    # v 1 and 3, R 0 and 4, old 0 and 0. Plain: (1 + 1) / 2. Clipped to .5 of the old values: .5
    # and .5, squares .25 and 12.25; the larger of each pair: 1 and 12.25. The third is no token.
    values, old = torch.tensor([[1.0, 3.0, 9.0]]), torch.zeros(1, 3)
    returns, own = torch.tensor([[0.0, 4.0, 0.0]]), torch.tensor([[1, 1, 0]])
    assert float(value_loss(values, old, returns, own)) == 1.0
    assert float(value_loss(values, old, returns, own, clip=0.5)) == 6.625


# ---- judging and learning ----


def learner(critic=None, tokens=4096, **settings):
    chosen = CriticSettings(**({"lr": 1e-2, "whiten": False} | settings))
    return CriticLearner(critic or build_critic(tiny_model(), rank=2), chosen, tokens)


def test_a_silent_critic_gives_the_plain_return():
    judged = learner().judge(small_batch(), REWARDS)
    own = small_batch()["turns"].numpy() != X
    expected = np.where(own, np.array([[1.0], [0.5], [0.0], [3.0]]), 0.0)
    assert judged.advantages_N_C.tolist() == expected.tolist()
    # 4, 2, 4 and 4 tokens: .5 * (4 * 1 + 2 * .25 + 4 * 9) / 14
    assert judged.metrics["value_loss"] == pytest.approx(0.5 * 40.5 / 14)
    assert judged.metrics["explained_variance"] == 0.0
    assert judged.metrics["value_mean"] == 0.0


def test_whitening_is_over_the_policys_tokens():
    judged = learner(whiten=True).judge(small_batch(), REWARDS)
    own = small_batch()["turns"].numpy() != X
    assert judged.advantages_N_C[own].mean() == pytest.approx(0, abs=1e-12)
    assert judged.advantages_N_C[own].std(ddof=1) == pytest.approx(1)
    assert not judged.advantages_N_C[~own].any()


def test_credit_reaches_the_tokens():
    # gamma .5 over the policy's tokens: turn rewards 0 and 1, so 1/8, 1/4, 1/2, 1
    judged = learner().judge(small_batch(), REWARDS, "turn", Discounts(0.5))
    assert judged.advantages_N_C[0].tolist() == [0.125, 0.25, 0.0, 0.5, 1.0]


def test_chunks_do_not_change_the_step():
    found = []
    for tokens in (1, 4096):
        one = learner(said_something(tiny_model()), tokens)
        one.judge(small_batch(), REWARDS)
        found.append(torch.cat([w.flatten() for w in one.critic.trained().values()]).detach())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("rows", "passes"), [(1, 4), (2, 2), (None, 1)])
def test_a_forward_pass_holds_no_more_than_some_of_the_longest_rows(rows, passes):
    # Four rows of one length L: a bound of L tokens is a row a pass, of 2 L two, and 4096 all.
    critic, seen = said_something(tiny_model()), []
    critic.register_forward_pre_hook(lambda _critic, given: seen.append(len(given[0])))
    batch = {key: value[[0, 0, 0, 0]] for key, value in small_batch().items()}
    one = CriticLearner(critic, CriticSettings(), 4096, rows_per_forward=rows)
    one.judge(batch, REWARDS)
    assert seen == [4 // passes] * passes


def test_it_learns_the_returns_and_says_how_well():
    one = learner(epochs=2)
    batch, said = small_batch(), []
    for _ in range(60):
        said.append(one.judge(batch, REWARDS).metrics)
    assert said[-1]["explained_variance"] > 0.9
    assert said[-1]["value_loss"] < 0.1 * said[0]["value_loss"]


def test_the_base_is_never_changed():
    model = tiny_model()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    one = learner(build_critic(model, rank=2))
    one.judge(small_batch(), REWARDS)
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())
    assert all(weight.grad is None for weight in model.parameters())


def test_nothing_to_judge_changes_nothing():
    empty = {key: value[:0] for key, value in small_batch().items()}
    one = learner()
    before = one.state()
    judged = one.judge(empty, REWARDS[:0])
    assert judged.metrics == {}
    assert all(
        torch.equal(before["weights"][name], weight)
        for name, weight in one.critic.trained().items()
    )


def test_state_continues_bit_for_bit():
    whole, first = learner(), learner()
    for one in (whole, first):
        one.judge(small_batch(), REWARDS)
    second = learner()
    second.load(first.state())
    for one in (whole, second):
        one.judge(small_batch(), REWARDS, "turn")
    for name, weight in whole.critic.trained().items():
        assert torch.equal(weight, second.critic.trained()[name])


def test_a_state_of_another_shape_is_refused():
    other = build_critic(tiny_model(), rank=4)
    with pytest.raises(UserError, match="do not fit"):
        load_weights(other, learner().state()["weights"])


def test_zero_epochs_are_refused():
    with pytest.raises(UserError, match=r"critic\.epochs"):
        learner(epochs=0)
