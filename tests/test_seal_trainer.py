"""SEAL in the trainer: it costs no forward pass, weighs rows rightly, and coefficient 0 is nothing.

Guarantees:
1. The term equals ``seal_loss`` of a batch of only the kept groups, for every loss type; its
   gradient does not depend on how rows are split into micro-batches.
2. The states are those that have read each token, from the forward pass that scores the tokens.
3. Coefficient 0 leaves training bit-equal; only the gradient of policy and head changes otherwise.
4. A resumed run goes on exactly, head, optimizer state and dropout included.
"""

from functools import cache
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from ragen2_cli import GroupFilter, SealLoss, SnrGRPOTrainer
from ragen2_cli.errors import UserError
from ragen2_cli.training.seal import AGGREGATIONS
from tiny_trl import Script, config, mean_gradient, saved_model, tiny_model, trainer

# Groups 1 and 3 are dead. Spread filter at p = 1 keeps every live group: 0 and 2, 8 of 16 rows.
REWARDS = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0.5], [1, 1, 1, 1]]
KEPT = [0, 2]
LIVE = GroupFilter("top-p", 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Path(saved_model(tmp_path_factory.mktemp("model")))


def term(**changes):
    return SealLoss(**({"coefficient": 0.5, "dropout": 0.0, "seed": 4} | changes))


def build(folder, script, args, **keywords):
    model = LlamaForCausalLM.from_pretrained(folder)
    return trainer(SnrGRPOTrainer, folder, script, model=model, args=args, **keywords)


def gradients(built):
    """Policy's and head's gradients of one optimizer step, as vectors."""
    head = []
    built.optimizer = None
    made = built.create_optimizer()

    def copy(*_):
        head.append([weight.grad.clone().flatten() for weight in built.seal.head.parameters()])

    made.register_step_pre_hook(copy)
    built.train()
    return mean_gradient(built.gradients), torch.stack([torch.cat(step) for step in head]).mean(0)


@cache
def by_hand(folder, loss_type, masks=False):
    """Gradient of the term alone, from a plain forward pass over the kept groups, row by row."""
    script = Script(REWARDS, groups=KEPT, masks=masks)
    model = LlamaForCausalLM.from_pretrained(folder)
    seal = term().prepare(model).for_loss(loss_type)
    logits, labels, weights = [], [], []
    for group in KEPT:
        rewards = torch.tensor(REWARDS[group], dtype=torch.float64)
        for member in range(4):
            prompt = [3 + group, 4, 5][: 2 + group % 2]
            completion = script.row(group, member)
            with seal.reading(model) as seen:
                model(input_ids=torch.tensor([prompt + completion]))
            states = seen[0][0, len(prompt) :]
            wanted = [not masks or place % 4 != 2 for place in range(len(completion))]
            logits.append(seal.head(states[torch.tensor(wanted)]))
            labels.append(float(rewards[member] - rewards.mean() >= 0))
    losses = [
        torch.nn.functional.binary_cross_entropy_with_logits(row, torch.full_like(row, label))
        for row, label in zip(logits, labels, strict=True)
    ]
    if AGGREGATIONS[loss_type] == "token-mean":
        weights = torch.tensor([float(len(row)) for row in logits])
    else:
        weights = torch.ones(len(logits))
    loss = 0.5 * (torch.stack(losses) * weights).sum() / weights.sum()
    loss.backward()
    policy = torch.cat([
        torch.zeros_like(weight).flatten() if weight.grad is None else weight.grad.flatten()
        for weight in model.parameters()
    ])  # fmt: skip
    return policy, torch.cat([weight.grad.flatten() for weight in seal.head.parameters()]), loss


def plain_gradient(folder, args, script):
    built = build(folder, script, args, group_filter=LIVE)
    built.train()
    return mean_gradient(built.gradients)


def assert_close(actual, expected):
    assert expected.abs().max() > 1e-4, "nothing to compare"
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6 * (1 + expected.abs().max()))


@pytest.mark.parametrize("loss_type", AGGREGATIONS)
def test_the_term_is_the_one_of_the_kept_groups(folder, loss_type):
    args = config(folder / "out", rows=16, parts=4, loss_type=loss_type)
    built = build(folder, Script(REWARDS), args, group_filter=LIVE, seal=term())
    policy, head = gradients(built)
    expected_policy, expected_head, loss = by_hand(folder, loss_type)
    assert_close(head, expected_head)
    without = plain_gradient(folder, args, Script(REWARDS))
    assert_close(policy - without, expected_policy)
    assert built.state.log_history[0]["seal/loss"] == pytest.approx(loss.item() / 0.5, rel=1e-5)


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
@pytest.mark.parametrize(
    ("slots", "accumulation", "steps"), [(1, 1, 1), (16, 16, 1), (8, 4, 2), (8, 12, 2)]
)
def test_the_split_does_not_matter(folder, loss_type, slots, accumulation, steps):
    args = config(
        folder / "out", rows=16, parts=slots, loss_type=loss_type, max_steps=steps,
        steps_per_generation=slots, gradient_accumulation_steps=accumulation,
    )  # fmt: skip
    built = build(folder, Script(REWARDS), args, group_filter=LIVE, groups=12, seal=term())
    _, head = gradients(built)
    assert_close(head, by_hand(folder, loss_type)[1])


def test_observation_tokens_are_left_out(folder):
    args = config(folder / "out", rows=16, parts=4, loss_type="dapo")
    built = build(folder, Script(REWARDS, masks=True), args, group_filter=LIVE, seal=term())
    assert_close(gradients(built)[1], by_hand(folder, "dapo", masks=True)[1])


def test_rows_without_a_token_do_not_count_as_rows(folder):
    # Truncated completions are masked: in groups 0 and 2 the rows without an end have no token.
    script = Script(REWARDS, groups=KEPT)
    row = script.row
    script.row = lambda group, member: row(group, member)[: 100 if member % 2 else -1]
    settings = {"loss_type": "grpo", "mask_truncated_completions": True}
    heads = []
    for parts in (1, 8):
        args = config(folder / "out", rows=8, parts=parts, **settings)
        built = build(folder, script, args, group_filter=LIVE, seal=term())
        script.cursor = 0
        heads.append(gradients(built)[1])
        assert built.state.log_history[0]["completions/clipped_ratio"] == 0.5
    assert_close(heads[1], heads[0])


class Counted(LlamaForCausalLM):
    """Counts its forward passes."""

    passes = 0

    def forward(self, *args, **kwargs):
        Counted.passes += 1
        return super().forward(*args, **kwargs)


def run(folder, *, lora=False, lr=1e-2, steps=3, **keywords):
    model = Counted.from_pretrained(folder)
    args = config(
        folder / "out", rows=16, parts=4, learning_rate=lr, max_steps=steps, optim="adamw_torch",
        max_grad_norm=0.1,
    )  # fmt: skip
    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.2)
    built = trainer(
        SnrGRPOTrainer, folder, Script(REWARDS), model=model, args=args, group_filter=LIVE,
        groups=12, peft_config=adapter if lora else None, **keywords,
    )  # fmt: skip
    Counted.passes = 0
    built.train()
    built.passes = Counted.passes
    built.ends = {
        name: weight.detach().clone()
        for name, weight in built.model.named_parameters()
        if weight.requires_grad
    }
    return built


def same(first, second):
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


@pytest.mark.parametrize("lora", [False, True])
def test_coefficient_zero_is_bit_equal_and_any_other_costs_no_forward_pass(folder, lora):
    plain = run(folder, lora=lora)
    random = torch.rand(3)
    zero = run(folder, lora=lora, seal=0.0)
    assert torch.equal(torch.rand(3), random)
    assert zero.seal is None
    assert same(plain.ends, zero.ends)
    seal = run(folder, lora=lora, seal=0.5)
    assert torch.equal(torch.rand(3), random), "the head has drawn from another stream"
    assert not same(plain.ends, seal.ends)
    assert seal.passes == plain.passes
    watched = run(folder, lora=lora, separation=True)
    assert same(plain.ends, watched.ends)
    first, log = plain.state.log_history[0], seal.state.log_history[0]
    assert not {key for key in first if "separation" in key or "seal" in key}
    names = {
        f"separation/{n}" for n in ("within_correct", "within_incorrect", "across", "contrast")
    }
    assert {key for key in watched.state.log_history[0] if "sep" in key} == names
    assert {key for key in log if "sep" in key or "seal" in key} == names | {
        "seal/loss", "seal/accuracy",
    }  # fmt: skip
    # The same policy and rollouts before the first update, whoever watches.
    for name in names:
        assert log[name] == pytest.approx(watched.state.log_history[0][name], abs=1e-6)
    assert 0 <= log["seal/accuracy"] <= 1


def test_the_head_learns_and_its_gradient_reaches_the_adapter(folder):
    built = run(folder, lora=True, seal=term(), steps=25)
    losses = [row["seal/loss"] for row in built.state.log_history if "seal/loss" in row]
    assert losses[-1] < losses[0] - 0.1
    accuracy = [row["seal/accuracy"] for row in built.state.log_history if "seal/loss" in row]
    assert accuracy[-1] > accuracy[0]


def test_a_step_without_anything_to_learn_leaves_the_head_alone(folder):
    dead = [[1, 1, 1, 1], [0, 0, 0, 0]]
    args = config(folder / "out", rows=8, parts=2, learning_rate=0.1, max_steps=2)
    built = build(folder, Script(dead), args, group_filter=LIVE, seal=term(), groups=4)
    before = [weight.clone() for weight in built.seal.head.parameters()]
    built.train()
    after = built.seal.head.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert built.empty_steps == 2


def test_holes_in_the_mask_take_the_parents_way_with_the_same_states(folder):
    # A prompt of one token, a hole, two completion tokens.
    model = tiny_model()
    built = build(folder, Script(REWARDS), config(folder / "out", rows=16), seal=term())
    ids = torch.tensor([[5, 0, 7, 8], [5, 6, 7, 8]])
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]])
    from ragen2_cli.training.states import TokenStates

    built._states = TokenStates()
    built._get_per_token_logps_and_entropies(built.model, ids, mask, 2)
    states, places = built._states.take(torch.tensor([[1, 1], [0, 1]]))
    expected = built.model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(states, expected[[0, 0, 1], [2, 3, 3]])
    assert places.tolist() == [[True, True], [False, True]]
    del model


def test_the_optimizer_knows_the_head_once_and_decay_spares_norms(folder):
    args = config(folder / "out", rows=16, weight_decay=0.1)
    built = build(folder, Script(REWARDS), args, seal=term(layers=2))
    made = built.create_optimizer()
    built.create_optimizer()
    # Two groups of the policy; Linear weights (16 x 16 and 1 x 16); biases, LayerNorm.
    sizes = [sum(w.numel() for w in group["params"]) for group in made.param_groups[2:]]
    assert sizes == [16 * 16 + 16, 16 + 1 + 2 * 16]
    assert [group["weight_decay"] for group in made.param_groups[2:]] == [0.1, 0.0]


def test_a_saved_head_resumes_in_plain_checkpoints_too(folder, tmp_path):
    settings = {"learning_rate": 1e-2, "parts": 4, "save_strategy": "steps", "save_steps": 1}

    def make(**changes):
        args = config(tmp_path, rows=16, **(settings | changes))
        return build(folder, Script(REWARDS), args, group_filter=LIVE, groups=12, seal=0.5)

    first = make(max_steps=2)
    first.train()
    saved = load_file(tmp_path / "checkpoint-2" / "seal_head.safetensors")
    assert all(torch.equal(saved[n], w) for n, w in first.seal.head.state_dict().items())
    assert "seal" not in "".join(load_file(tmp_path / "checkpoint-2" / "model.safetensors"))
    rest = make(max_steps=2)
    rest.seal.head.out.bias.data.fill_(9)
    rest.create_optimizer_and_scheduler(2)
    rest._load_optimizer_and_scheduler(str(tmp_path / "checkpoint-2"))
    assert torch.equal(rest.seal.head.out.bias, first.seal.head.out.bias)
    (tmp_path / "checkpoint-2" / "seal_head.safetensors").unlink()
    with pytest.raises(UserError, match="was written without SEAL"):
        rest._load_optimizer_and_scheduler(str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"coefficient": -0.1}, "0 or more"),
        ({"layers": 0}, "layers must be 1"),
        ({"dropout": 1.0}, "below 1"),
    ],
)
def test_wrong_numbers_are_refused(changes, said):
    with pytest.raises(UserError, match=said):
        SealLoss(**changes)


def test_a_scheduler_of_ones_own_is_refused(folder):
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    args = config(folder / "out", rows=16)
    with pytest.raises(UserError, match="the optimizer alone"):
        trainer(
            SnrGRPOTrainer, folder, Script(REWARDS), model=model, args=args, seal=0.1,
            optimizers=(optimizer, schedule),
        )  # fmt: skip
