"""The gradient does not depend on what was dropped beside a row, nor on how rows are split.

Guarantees (cases 15 and 16):
1. With half the groups dropped, the gradient equals that of plain TRL on a batch of only the kept
   groups, for every loss type, with the entropy bonus and with KL.
2. The same holds for any split into generation and accumulation steps, for unequal and empty parts.
3. Without a filter it equals plain TRL's on the same batch.
"""

from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM
from trl import GRPOTrainer

from ragen2_cli import GroupFilter, SnrGRPOTrainer
from tiny_trl import Script, config, mean_gradient, saved_model, trainer

LOSS_TYPES = ["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"]
# Groups 1 and 3 are dead. Spread filter at p = 1 keeps every live group: 0 and 2, 8 of 16 rows.
REWARDS = [[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0.5], [1, 1, 1, 1]]
KEPT = [0, 2]
LIVE = GroupFilter("top-p", 1.0)
TERMS = {
    "policy": {},
    "entropy": {"entropy_coef": 0.05},
    "kl": {"beta": 0.3},
    "both": {"entropy_coef": 0.05, "beta": 0.3},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Path(saved_model(tmp_path_factory.mktemp("model")))


def moved_model(folder):
    """The saved model, whose reference TRL loads from its folder, moved away from it."""
    model = LlamaForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(7)
    for weight in model.parameters():
        weight.data += 0.02 * torch.randn(weight.shape, generator=generator)
    return model


def gradient(cls, folder, script, args, **keywords):
    built = trainer(cls, folder, script, model=moved_model(folder), args=args, **keywords)
    built.train()
    return mean_gradient(built.gradients)


@cache
def kept_only(folder, loss_type, term, masks=False):
    """Plain TRL on a batch that holds nothing but the kept groups, in one piece."""
    args = config(folder / "out", rows=8, loss_type=loss_type, **TERMS[term])
    return gradient(GRPOTrainer, folder, Script(REWARDS, groups=KEPT, masks=masks), args)


def assert_same(actual, expected):
    assert expected.abs().max() > 1e-3, "nothing to compare"
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6 * (1 + expected.abs().max()))


@pytest.mark.parametrize(
    "term", ["both", *(pytest.param(term, marks=pytest.mark.slow) for term in list(TERMS)[:3])]
)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_dropping_equals_a_batch_of_the_kept_groups(folder, loss_type, term):
    args = config(folder / "out", rows=16, parts=4, loss_type=loss_type, **TERMS[term])
    actual = gradient(SnrGRPOTrainer, folder, Script(REWARDS), args, group_filter=LIVE)
    assert_same(actual, kept_only(folder, loss_type, term))


# (steps per generation, accumulation steps, optimizer steps): one part; 8 rows in 16 parts; two
# windows of a generation; eight windows; two generations in a window; windows across generations.
SPLITS = [
    (16, 16, 1),
    (8, 12, 2),
    *(
        pytest.param(split, marks=pytest.mark.slow)
        for split in [(1, 1, 1), (8, 4, 2), (16, 1, 16), (2, 4, 1)]
    ),
]


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: "gen{}-acc{}-steps{}".format(*split))
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_split_does_not_matter(folder, loss_type, split):
    slots, accumulation, steps = split
    args = config(
        folder / "out",
        rows=16,
        parts=slots,
        loss_type=loss_type,
        steps_per_generation=slots,
        gradient_accumulation_steps=accumulation,
        max_steps=steps,
        **TERMS["both"],
    )
    actual = gradient(
        SnrGRPOTrainer, folder, Script(REWARDS), args, group_filter=LIVE, groups=4 * 3
    )
    assert_same(actual, kept_only(folder, loss_type, "both"))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_observation_tokens_are_left_out_of_every_normalizer(folder, loss_type):
    args = config(folder / "out", rows=16, parts=4, loss_type=loss_type, **TERMS["both"])
    actual = gradient(SnrGRPOTrainer, folder, Script(REWARDS, masks=True), args, group_filter=LIVE)
    assert_same(actual, kept_only(folder, loss_type, "both", masks=True))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_three_rows_in_four_parts(folder, loss_type):
    # Groups of 3; one of 4 groups is live: TRL itself would cut 3 rows into four empty parts.
    rewards = [[0, 0, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]]
    settings = {"num_generations": 3, "loss_type": loss_type, **TERMS["both"]}
    expected = gradient(
        GRPOTrainer, folder, Script(rewards, groups=[1]), config(folder / "out", 3, **settings)
    )
    args = config(folder / "out", rows=12, parts=4, **settings)
    actual = gradient(SnrGRPOTrainer, folder, Script(rewards), args, group_filter=LIVE)
    assert_same(actual, expected)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_without_a_filter_it_is_plain_trl(folder, loss_type):
    args = {"rows": 16, "loss_type": loss_type, **TERMS["both"]}
    expected = gradient(GRPOTrainer, folder, Script(REWARDS), config(folder / "out", **args))
    args = config(folder / "out", parts=2, **args)
    assert_same(gradient(SnrGRPOTrainer, folder, Script(REWARDS), args), expected)


def test_several_iterations_use_every_row_each_time(folder):
    args = config(folder / "out", rows=16, parts=4, num_iterations=3, max_steps=3)
    built = trainer(
        SnrGRPOTrainer, folder, Script(REWARDS), model=moved_model(folder), args=args,
        group_filter=LIVE, groups=4,
    )  # fmt: skip
    built.train()
    assert len(built.gradients) == 3
    for step in built.gradients:  # learning rate 0: each iteration sees the same policy
        assert_same(mean_gradient([step]), mean_gradient(built.gradients))


def test_sequence_level_importance_sampling(folder):
    settings = {"importance_sampling_level": "sequence", "loss_type": "luspo"}
    expected = gradient(
        GRPOTrainer, folder, Script(REWARDS, groups=KEPT), config(folder / "o", 8, **settings)
    )
    args = config(folder / "out", rows=16, parts=4, **settings)
    actual = gradient(SnrGRPOTrainer, folder, Script(REWARDS), args, group_filter=LIVE)
    assert_same(actual, expected)


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 0.5), ("sqrt", 0.5**0.5)])
def test_loss_scaling_multiplies_the_policy_gradient(folder, scaling, factor):
    # 2 of 4 groups kept: k / P = 0.5.
    args = config(folder / "out", rows=16, parts=4, loss_type="grpo")
    actual = gradient(
        SnrGRPOTrainer, folder, Script(REWARDS), args, group_filter=LIVE, loss_scaling=scaling
    )
    assert_same(actual, factor * kept_only(folder, "grpo", "policy"))


def test_logged_token_means_do_not_depend_on_the_split(folder):
    logs = []
    for cls, script, parts, keywords in (
        (GRPOTrainer, Script(REWARDS, groups=KEPT), 1, {}),
        (SnrGRPOTrainer, Script(REWARDS), 16, {"group_filter": LIVE}),
    ):
        args = config(folder / "out", rows=4 * len(script.groups), parts=parts, **TERMS["both"])
        built = trainer(cls, folder, script, model=moved_model(folder), args=args, **keywords)
        built.train()
        logs.append(built.state.log_history[0])
    for name in ("entropy", "kl", "clip_ratio/region_mean"):
        assert logs[1][name] == pytest.approx(logs[0][name], rel=1e-5)
    assert logs[0]["kl"] > 1e-4


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"loss_type": "vespo"}, ["vespo/phi_seq_mean"]),
        (
            {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 1e-4},
            ["clip_ratio/low_mean", "clip_ratio/high_mean"],
        ),
        ({"loss_type": "grpo", "entropy_coef": 0.05, "beta": 0.3}, ["policy_loss"]),
        ({"loss_type": "bnpo", "entropy_coef": 0.05, "beta": 0.3}, ["policy_loss"]),
        ({"loss_type": "dapo", "entropy_coef": 0.05, "beta": 0.3}, ["policy_loss"]),
    ],
)
@pytest.mark.parametrize("parts", [4, 16])
def test_other_logged_means_do_not_depend_on_the_split(folder, settings, names, parts):
    # The second pass over the batch has probability ratios other than 1.
    logs = []
    for cls, script, split, keywords in (
        (GRPOTrainer, Script(REWARDS, groups=KEPT), 1, {}),
        (SnrGRPOTrainer, Script(REWARDS), parts, {"group_filter": LIVE}),
    ):
        args = config(
            folder / "out", rows=4 * len(script.groups), parts=split, num_iterations=2, max_steps=2,
            learning_rate=0.5, optim="sgd", **settings,
        )  # fmt: skip
        built = trainer(cls, folder, script, model=moved_model(folder), args=args, **keywords)
        built.train()
        logs.append(built.state.log_history[1])
    for name in names:
        assert logs[0][name] not in (0.0, 1.0)
        assert logs[1][name] == pytest.approx(logs[0][name], rel=1e-3)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "bnpo"])
def test_the_logged_loss_does_not_depend_on_the_split(folder, loss_type):
    # A large coefficient, so that the bonus is most of the loss: its part must be weighted by
    # tokens in value as well, where TRL weights every micro-batch alike.
    terms = {"loss_type": loss_type, "entropy_coef": 5.0}
    plain = trainer(
        GRPOTrainer,
        folder,
        Script(REWARDS, groups=KEPT),
        model=moved_model(folder),
        args=config(folder / "out", rows=8, **terms),
    )
    plain.train()
    ours = trainer(
        SnrGRPOTrainer,
        folder,
        Script(REWARDS),
        model=moved_model(folder),
        args=config(folder / "out", rows=16, parts=4, **terms),
        group_filter=LIVE,
    )
    ours.train()
    expected, actual = (each.state.log_history[0]["loss"] for each in (plain, ours))
    assert abs(expected) > 1
    assert actual == pytest.approx(expected, abs=2e-4)
