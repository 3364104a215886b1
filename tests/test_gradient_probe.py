"""Gradient norms by reward spread, against numbers derived by hand and against plain autograd.

Guarantees held here:
1. norms of a two-parameter policy equal those worked out on paper;
2. a bucket of dead groups has a task gradient of exactly 0;
3. buckets add up to the batch; what the filter keeps equals an analysis of the kept groups alone;
4. the policy, its gradients, its mode and the generators are untouched;
5. with LoRA the norms equal plain autograd's on the adapter's parameters.
"""

import hashlib
import math
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from ragen2_cli.config import load_config
from ragen2_cli.core.filters import GroupFilter
from ragen2_cli.errors import UserError
from ragen2_cli.records import Episode
from ragen2_cli.training.gradient_batch import ProbeSettings
from ragen2_cli.training.gradient_probe import probe, report_json
from ragen2_cli.training.gradient_runs import analyze_batch
from ragen2_cli.training.preflight import require_analyzed


class TwoParameters(nn.Module):
    """Says token 0 or 1 with probabilities softmax(theta), whatever came before."""

    def __init__(self, theta) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta, dtype=torch.float64))

    def forward(self, input_ids, attention_mask, logits_to_keep):
        shape = (*input_ids[:, -logits_to_keep:].shape, 2)
        return SimpleNamespace(logits=self.theta.expand(shape))


def episode(tokens, value, prompt=(0,), mask=None) -> Episode:
    return Episode(
        step=1,
        group=0,
        rollout=0,
        seed=0,
        prompt="",
        turns=(),
        episode_return=value,
        outcome=value,
        success=False,
        status="failure",
        prompt_ids=prompt,
        completion_ids=tuple(tokens),
        loss_mask=tuple(mask or [1] * len(tokens)),
    )


@contextmanager
def in_place_of(model, start):
    """The model has the other's parameters for a while."""
    now, model.theta.data = model.theta.data, start.theta.data
    yield
    model.theta.data = now


def groups(*rewards_by_group):
    """One-token completions: the first of each group says 0, the others 1."""
    return [
        episode([0 if index == 0 else 1], value)
        for rewards in rewards_by_group
        for index, value in enumerate(rewards)
    ]


def row(report, bucket, scale="none"):
    return next(row for row in report.tables[scale] if row.bucket == bucket)


def test_task_norm_of_a_two_parameter_policy() -> None:
    # theta (0, 0): p = 1/2, d log p(0) = (1/2, -1/2), d log p(1) = (-1/2, 1/2).
    # Group A: token 0 earns 1, token 1 earns 0; unscaled advantages 1/2 and -1/2. Its gradient is
    # -(1/4) [1/2 (1/2, -1/2) - 1/2 (-1/2, 1/2)] = -(1/8) (1, -1), norm sqrt(2) / 8 = 0.17678.
    # Group B ties: exactly 0. Scaled by its std sqrt(1/2) + 1e-4 A has norm 0.17678 / 0.70721.
    model = TwoParameters([0.0, 0.0])
    report = probe(model, groups([1.0, 0.0], [1.0, 1.0]), 2, ProbeSettings(buckets=2))
    assert row(report, "Q2").norms.task == pytest.approx(math.sqrt(2) / 8)
    assert row(report, "Q1").norms.task == 0.0
    assert row(report, "all").norms.task == pytest.approx(math.sqrt(2) / 8)
    scaled = math.sqrt(2) / 8 / (math.sqrt(0.5) + 1e-4)
    assert row(report, "Q2", "group").norms.task == pytest.approx(scaled)
    # Per row of the bucket: the denominator is its 2 rows, not the batch's 4.
    assert row(report, "Q2").per("row").task == pytest.approx(math.sqrt(2) / 4)


def test_regularizer_norms_of_a_two_parameter_policy() -> None:
    # theta (ln 3, 0): p = (3/4, 1/4). H = ln 4 - (3/4) ln 3 = 0.56234.
    # dH/dtheta_k = -p_k (ln p_k + H): k = 0: -0.75 (-0.28768 + 0.56234) = -0.20600, and +0.20600.
    # 4 rows of one token: the mean over tokens is the same, so the whole has coefficient times it.
    # KL to (1/2, 1/2) as TRL's loss has it (k3 times the ratio), slope l - r:
    # token 0: ln((3/4)/(1/2)) = 0.405465; token 1: ln((1/4)/(1/2)) = -0.693147.
    # d log p(0) = (1/4, -1/4), d log p(1) = (-3/4, 3/4): two rows of each, mean
    # (1/4) [2 (0.405465) (1/4) + 2 (0.693147) (3/4)] = 0.310613 along (1, -1).
    model, start = TwoParameters([math.log(3), 0.0]), TwoParameters([0.0, 0.0])

    settings = ProbeSettings(entropy=0.1, kl=0.01, buckets=1)
    report = probe(
        model,
        groups([1.0, 0.0], [1.0, 1.0]),
        2,
        settings,
        reference=lambda: in_place_of(model, start),
    )
    whole = row(report, "all").norms
    assert whole.entropy == pytest.approx(0.1 * 0.20600 * math.sqrt(2), rel=1e-4)
    assert whole.kl == pytest.approx(0.01 * 0.310613 * math.sqrt(2), rel=1e-5)
    # Both push toward equal probabilities, -(1, -1) in the loss's gradient +: they add up.
    assert whole.regularizer == pytest.approx(whole.entropy + whole.kl)


def test_what_is_off_is_absent() -> None:
    report = probe(TwoParameters([0.0, 0.0]), groups([1.0, 0.0]), 2, ProbeSettings())
    norms = row(report, "all").norms
    assert (norms.entropy, norms.kl, norms.regularizer, norms.snr) == (None, None, None, None)


def test_observations_and_unscored_rows_do_not_count() -> None:
    model = TwoParameters([0.3, 0.0])
    plain = probe(model, groups([1.0, 0.0]), 2, ProbeSettings(entropy=0.1))
    with_observation = [
        episode([0, 1, 1], 1.0, mask=[1, 0, 0]),
        episode([1, 0], 0.0, mask=[1, 0]),
    ]
    masked = probe(model, with_observation, 2, ProbeSettings(entropy=0.1))
    assert row(masked, "all").norms == row(plain, "all").norms


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_rows_without_a_score_are_not_there(loss_type) -> None:
    # As in training: [1, None, 0] has the gradients of [1, 0], for every term and every table.
    model, start = TwoParameters([0.3, 0.0]), TwoParameters([0.0, 0.0])

    def found(*lost):
        rows = [episode([0, 0], 1.0), *lost, episode([1], 0.0)]
        rows += [episode([0], 3.0), *lost, episode([1], 0.0)]
        settings = ProbeSettings(entropy=0.1, kl=0.1, loss_type=loss_type, max_completion_length=3)
        return probe(
            model, rows, len(rows) // 2, settings, reference=lambda: in_place_of(model, start),
            group_filter=GroupFilter(strategy="top-k-abs", value=1),
        )  # fmt: skip

    two, three = found(), found(episode([1, 0, 0], None))
    assert [r.norms for r in three.tables["none"]] == [r.norms for r in two.tables["none"]]
    assert [vars(r) for r in three.filtered["none"]] == [vars(r) for r in two.filtered["none"]]
    assert (row(three, "all").rows, row(three, "all").tokens) == (4, 5)


def test_norms_per_row_and_token_of_a_mean_over_tokens() -> None:
    # Uniform policy. Group A: 0 three times earns 1, 1 once earns 0: advantages 1/2 and -1/2, sum
    # of token gradients -(3 (1/2) (1/2, -1/2) - (1/2) (-1/2, 1/2)) = -(1, -1), norm sqrt(2). Group
    # B ties, with 3 tokens: 7 in all.
    rows = [episode([0, 0, 0], 1.0), episode([1], 0.0), episode([0, 1], 1.0), episode([1], 1.0)]
    settings = ProbeSettings(loss_type="dapo", buckets=2)
    live = row(probe(TwoParameters([0.0, 0.0]), rows, 2, settings), "Q2")
    assert live.norms.task == pytest.approx(math.sqrt(2) / 7)
    assert (live.denominator, live.denominator_of) == (7, "tokens")
    assert live.per("token").task * 4 == pytest.approx(math.sqrt(2))
    assert live.per("row").task * 2 == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_the_kept_part_equals_an_analysis_of_the_kept_groups(loss_type) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for spread in (0.0, 0.0, 0.1, 0.5, 1.0, 2.0, 3.0):
        for _ in range(4):
            length = int(rng.integers(1, 6))
            value = float(spread * rng.normal()) if spread else 1.0
            rows.append(episode(rng.integers(0, 2, length).tolist(), value))
    settings = ProbeSettings(entropy=0.05, loss_type=loss_type, max_completion_length=9)
    model = TwoParameters([0.4, -0.2])
    top = GroupFilter(strategy="top-k-abs", value=3)
    report = probe(model, rows, 4, settings, group_filter=top)
    assert report.kept == 3
    chosen = top.select(np.array([r.episode_return for r in rows]).reshape(-1, 4)).kept
    alone = probe(model, [rows[4 * g + k] for g in chosen for k in range(4)], 4, settings)
    kept = next(r for r in report.filtered["none"] if r.bucket == "all")
    assert kept.norms.task == pytest.approx(row(alone, "all").norms.task)
    assert kept.norms.entropy == pytest.approx(row(alone, "all").norms.entropy)
    assert kept.rows == 12
    assert kept.denominator == (kept.tokens if loss_type == "dapo" else 12)


def test_loss_scaling_and_soft_weights_are_those_of_training() -> None:
    # Eight groups of rewards (k, 0), k = 0..7, of which the last two are kept: linear loss scaling
    # multiplies advantages by 2/8, its root by 1/2, and leaves the regularizer alone.
    model, rows = TwoParameters([0.0, 0.3]), groups(*([float(k), 0.0] for k in range(8)))
    top = GroupFilter(strategy="top-k-abs", value=2)
    plain = ProbeSettings(entropy=0.1, buckets=2)

    def kept(**changes):
        found = probe(model, rows, 2, replace(plain, **changes), group_filter=top)
        return {one.bucket: one.norms for one in found.filtered["none"]}, found

    before, whole = kept()
    for mode, factor in (("linear", 2 / 8), ("sqrt", 1 / 2)):
        scaled, report = kept(loss_scaling=mode)
        for bucket in ("Q2", "all"):
            assert scaled[bucket].task == pytest.approx(before[bucket].task * factor)
            assert scaled[bucket].entropy == before[bucket].entropy
        assert row(report, "all") == row(whole, "all")
    # Soft weights are variances over the largest, k^2 / 49. Unscaled advantages are k / 2, and all
    # groups say the same tokens: the gradient of a sum of groups goes as the sum of k * k^2 / 49.
    soft, report = kept(soft=True)
    assert soft["all"].task == pytest.approx(before["all"].task * (6**3 + 7**3) / 49 / 13)
    cubes = sum(k**3 for k in range(8)) / 49
    assert row(report, "all").norms.task == pytest.approx(
        row(whole, "all").norms.task * cubes / sum(range(8))
    )


def test_a_run_is_analyzed_under_its_own_scaling() -> None:
    # As above: 2 of 8 groups kept, their soft weights 36/49 and 49/49.
    rows = groups(*([float(k), 0.0] for k in range(8)))

    def kept(**changes):
        flags = {"rollout.group_size": 2, "filter.strategy": "top-k-abs", "filter.value": 2}
        content = analyze_batch(
            TwoParameters([0.0, 0.3]),
            load_config(flags={**flags, **changes}),
            rows,
            step=1,
            source="training batch",
            max_completion_length=1,
        )
        table = next(
            one for one in content["tables"] if one["filtered"] and one["scale_rewards"] == "none"
        )
        return table["rows"][-1]["norms"]["batch"]["task"], content["filter"]

    task, said = kept()
    assert said == "top-k-abs 2"
    scaled, said = kept(**{"filter.loss_scaling": "linear", "filter.soft": True})
    assert said == "top-k-abs 2, soft, linear loss scaling"
    assert scaled == pytest.approx(task * 2 / 8 * (6**3 + 7**3) / 49 / 13)


def lora_model():
    from peft import LoraConfig, get_peft_model

    from tiny_trl import tiny_model

    torch.manual_seed(1)
    wrapped = get_peft_model(
        tiny_model(), LoraConfig(r=4, lora_dropout=0.5, target_modules="all-linear")
    )
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    return wrapped


def lora_rows(spreads=(0.0, 0.0, 0.3, 1.0, 2.0, 0.0)):
    rng = np.random.default_rng(3)
    rows = []
    for number, spread in enumerate(spreads):
        prompt = tuple(rng.integers(3, 40, 2 + number % 3).tolist())
        for _ in range(3):
            length = int(rng.integers(2, 9))
            mask = [int(position % 4 != 2) for position in range(length)]
            value = float(spread * rng.normal())
            rows.append(episode(rng.integers(3, 40, length).tolist(), value, prompt, mask))
    return rows


def test_lora_norms_equal_plain_autograd() -> None:
    model, rows = lora_model().eval(), lora_rows()
    settings = ProbeSettings(entropy=0.02, kl=0.05, buckets=3, tokens_per_forward=30)
    report = probe(model, rows, 3, settings, reference=model.disable_adapter)
    from ragen2_cli.core.groups import advantages

    advantage_N = advantages(
        np.array([r.episode_return for r in rows]).reshape(-1, 3), "group"
    ).ravel()
    parameters = [p for p in model.parameters() if p.requires_grad]

    def logps(one):
        ids = torch.tensor([[*one.prompt_ids, *one.completion_ids]])
        logs = model(input_ids=ids).logits.log_softmax(-1)[0, len(one.prompt_ids) - 1 : -1]
        return logs.gather(-1, torch.tensor(one.completion_ids)[:, None])[:, 0], logs

    total = sum(sum(one.loss_mask) for one in rows)
    task = entropy = kl = torch.zeros(())
    for one, advantage in zip(rows, advantage_N, strict=True):
        mask = torch.tensor(one.loss_mask)
        with model.disable_adapter(), torch.no_grad():
            before = logps(one)[0]
        logp, logs = logps(one)
        task = task - (torch.exp(logp - logp.detach()) * mask).sum() / mask.sum() * advantage
        entropy = entropy + ((logs.exp() * logs).sum(-1) * mask).sum() * 0.02 / total
        k3 = torch.exp(before - logp) - (before - logp) - 1
        k3 = k3 * torch.exp(logp - logp.detach())  # TRL's bias correction
        kl = kl + 0.05 * (k3 * mask).sum() / mask.sum()
    for loss, name in ((task / len(rows), "task"), (entropy, "entropy"), (kl / len(rows), "kl")):
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        norm = torch.cat([g.flatten() for g in gradients]).norm().item()
        found = vars(row(report, "all", "group").norms)[name]
        assert found == pytest.approx(norm, rel=1e-4), name
    # Three of the six groups tie: the lower buckets are dead, to the last bit.
    assert row(report, "Q1", "group").norms.task == 0.0
    assert row(report, "Q1", "group").dead_groups == 2
    assert row(report, "Q1", "group").norms.entropy > 0


def test_nothing_is_touched() -> None:
    model = lora_model().train()
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    optimizer.step()

    def digest():
        content = hashlib.sha256()
        for name, tensor in model.state_dict().items():
            content.update(name.encode() + tensor.numpy().tobytes())
        for weight in model.parameters():
            if weight.grad is not None:
                content.update(weight.grad.numpy().tobytes())
        for state in optimizer.state_dict()["state"].values():
            for value in state.values():
                content.update(value.numpy().tobytes())
        content.update(torch.get_rng_state().numpy().tobytes())
        content.update(repr(np.random.get_state()[2]).encode())  # noqa: NPY002
        trainable = [p.requires_grad for p in model.parameters()]
        return content.hexdigest(), trainable, model.training

    before = digest()
    settings = ProbeSettings(entropy=0.02, kl=0.05)
    probe(model, lora_rows(), 3, settings, reference=model.disable_adapter)
    assert digest() == before


def test_the_chunks_do_not_matter() -> None:
    model, rows = lora_model(), lora_rows()
    small, large = (
        probe(model, rows, 3, ProbeSettings(entropy=0.02, tokens_per_forward=size))
        for size in (1, 4096)
    )
    for one, other in zip(small.tables["group"], large.tables["group"], strict=True):
        assert one.norms.task == pytest.approx(other.norms.task, rel=1e-4, abs=1e-9)
        assert one.norms.entropy == pytest.approx(other.norms.entropy, rel=1e-4)


def test_a_large_vocabulary_makes_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = lora_model(), lora_rows()
    vocabulary = model.config.vocab_size
    monkeypatch.setattr("ragen2_cli.training.gradient_probe.MOST_SCORES", 30 * vocabulary)
    seen = []
    handle = model.register_forward_pre_hook(
        lambda _module, _args, given: seen.append(given["input_ids"].shape), with_kwargs=True
    )
    probe(model, rows, 3, ProbeSettings())
    handle.remove()
    assert len(seen) > 1
    assert all(shape[0] == 1 or shape.numel() <= 30 for shape in seen)
    assert any(shape[0] > 1 for shape in seen)


def test_five_groups_are_five_buckets() -> None:
    # case 10
    rewards = [[0.0, float(k)] for k in range(5)]
    report = probe(TwoParameters([0.0, 0.0]), groups(*rewards), 2, ProbeSettings())
    assert [r.bucket for r in report.tables["none"]] == ["Q1", "Q2", "Q3", "Q4", "Q5", "all"]
    eleven = [[0.0, float(k)] for k in range(11)]
    spread = probe(TwoParameters([0.0, 0.0]), groups(*eleven), 2, ProbeSettings())
    assert [r.groups for r in spread.tables["none"]] == [2, 2, 2, 2, 2, 1, 11]
    last = probe(TwoParameters([0.0, 0.0]), groups(*eleven), 2, ProbeSettings(remainder="last"))
    assert [r.groups for r in last.tables["none"]] == [1, 1, 1, 1, 1, 6, 11]


def test_wrong_input_is_one_line() -> None:
    model = TwoParameters([0.0, 0.0])
    with pytest.raises(UserError, match="into groups of 2"):
        probe(model, groups([1.0, 0.0, 1.0]), 2, ProbeSettings())
    with pytest.raises(UserError, match="reference"):
        probe(model, groups([1.0, 0.0]), 2, ProbeSettings(kl=0.1))
    with pytest.raises(UserError, match="cispo"):
        probe(model, groups([1.0, 0.0]), 2, ProbeSettings(loss_type="cispo"))
    frozen = TwoParameters([0.0, 0.0]).requires_grad_(False)
    with pytest.raises(UserError, match="no trainable"):
        probe(frozen, groups([1.0, 0.0]), 2, ProbeSettings())


@pytest.mark.parametrize(
    ("key", "value", "also"),
    [
        ("top_entropy_quantile", 0.5, {}),
        ("multi_objective_aggregation", "normalize_then_sum", {}),
        ("mask_truncated_completions", True, {}),
        ("use_bias_correction_kl", False, {"algorithm.kl": 0.1}),
        ("importance_sampling_level", "sequence", {"algorithm.credit": "turn"}),
    ],
)
def test_keys_of_trl_that_change_the_gradient_are_refused(key, value, also) -> None:
    require_analyzed(load_config(flags=also), "x")
    with pytest.raises(UserError, match=f"x: no analysis .* trl.{key} {value}, only"):
        require_analyzed(load_config(flags={f"trl.{key}": value, **also}), "x")
    if also:  # at probability ratios of 1 these two do nothing to a plain run
        require_analyzed(load_config(flags={f"trl.{key}": value}), "x")


def test_the_json_holds_every_table() -> None:
    top = GroupFilter(strategy="top-k-abs", value=1)
    report = probe(
        TwoParameters([0.0, 0.0]),
        groups([1.0, 0.0], [1.0, 1.0]),
        2,
        ProbeSettings(entropy=0.1),
        group_filter=top,
    )
    content = report_json(report, {"step": 5})
    kinds = [(table["scale_rewards"], table["filtered"]) for table in content["tables"]]
    assert kinds == [("group", False), ("none", False), ("group", True), ("none", True)]
    kept = content["tables"][3]["rows"]
    assert [each["bucket"] for each in kept] == ["Q2", "all"]
    assert set(kept[0]["norms"]) == {"batch", "row", "token"}
