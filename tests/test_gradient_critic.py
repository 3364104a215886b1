"""The critic's part of a gradient analysis, against numbers derived by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ragen2_cli.records import Episode, Turn
from ragen2_cli.training.credit import CreditRules
from ragen2_cli.training.critic import build_critic
from ragen2_cli.training.critic_learner import CriticSettings
from ragen2_cli.training.gradient_batch import ProbeSettings
from ragen2_cli.training.gradient_critic import CriticProbe, batch_of
from ragen2_cli.training.gradient_probe import probe, report_json
from tiny_trl import tiny_model

ALL = np.arange(4)
PLAIN = CreditRules(settings=CriticSettings(whiten=False))


def episode(
    earned: float | None, ids: tuple[int, ...], prompt: tuple[int, ...] = (3, 4)
) -> Episode:
    """One turn of all tokens but an observation in the third column."""
    spans = ((0, 2), (3, len(ids)))
    first, second = (Turn("", "", "", (), reward, 0.0, True) for reward in (0.0, earned))
    return Episode(
        1, 0, 0, 0, "", (first, second), earned, earned, False, "failure", prompt_ids=prompt,
        completion_ids=ids, loss_mask=tuple(int(k != 2) for k in range(len(ids))),
        turn_spans=spans,
    )  # fmt: skip


def two_groups() -> list[Episode]:
    """The first group is dead, all earn 2; the second earns 1 and 0."""
    return [
        episode(2.0, (5, 6, 7, 8)),
        episode(2.0, (6, 6, 7, 9, 9)),
        episode(1.0, (9, 8, 7, 6), (3, 4, 5)),
        episode(0.0, (8, 8, 7, 5)),
    ]


def critic_of(model, noise=0.0):
    critic = build_critic(model, rank=2)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in critic.trained().values():
            one.add_(noise * torch.randn(one.shape, generator=draw))
    return critic


def test_a_dead_group_has_a_task_gradient_under_gae_and_none_in_its_group():
    model = tiny_model()
    found = CriticProbe(critic_of(model), PLAIN, two_groups())
    # a silent critic: every token's advantage is the return
    assert [set(row[[0, 1, 3]]) for row in found.advantages(ALL)] == [{2.0}, {2.0}, {1.0}, {0.0}]
    settings = ProbeSettings(loss_type="dapo", scales=("none",), buckets=2)
    report = probe(model, two_groups(), 2, settings, critic=found)
    low = {scale: rows[0] for scale, rows in report.tables.items()}
    assert low["none"].dead_groups == 1
    assert low["none"].norms.task == 0.0
    assert low["gae"].norms.task > 0.1
    assert low["gae"].norms.critic == low["none"].norms.critic > 0


def test_the_task_gradient_is_that_of_the_advantages():
    # Plain autograd on -sum(A log p) / tokens, with the same advantages.
    model, episodes = tiny_model(), two_groups()
    found = CriticProbe(critic_of(model, 0.3), PLAIN, episodes)
    settings = ProbeSettings(loss_type="dapo", scales=("none",), buckets=2)
    report = probe(model, episodes, 2, settings, critic=found)
    loss = torch.zeros(())
    for one, advantage in zip(episodes, found.advantages(ALL), strict=True):
        ids = torch.tensor([[*one.prompt_ids, *one.completion_ids]])
        logs = torch.log_softmax(model(input_ids=ids).logits, -1)
        logps = logs[:, :-1].gather(-1, ids[:, 1:, None])[0, len(one.prompt_ids) - 1 :, 0]
        loss = loss - (logps * torch.tensor(advantage, dtype=torch.float32)).sum()
    own = sum(sum(one.loss_mask) for one in episodes)
    gradients = torch.autograd.grad(loss / own, list(model.parameters()), allow_unused=True)
    norm = torch.sqrt(sum((one**2).sum() for one in gradients if one is not None))
    assert report.tables["gae"][-1].norms.task == pytest.approx(float(norm), rel=1e-4)


def test_with_credit_per_turn_the_task_gradient_is_that_of_the_turns():
    # Live group: turns earn -1, 2 and 0, 0. To go 1, 0 in the first turn and 2, 0 in the second, so
    # 1/2, -1/2 for two tokens and 1, -1 for one; a row is a mean over its three tokens, the batch
    # one over four rows. Dead group: returns tie at 2, so 0 though the second turns differ.
    model = tiny_model()
    earned = [(1.0, 1.0), (0.0, 2.0), (-1.0, 2.0), (0.0, 0.0)]
    rows = [
        replace(
            one, episode_return=sum(both), outcome=sum(both),
            turns=tuple(replace(turn, reward=r) for turn, r in zip(one.turns, both, strict=True)),
        )
        for one, both in zip(two_groups(), earned, strict=True)
    ]  # fmt: skip
    settings = ProbeSettings(scales=("none",), credit="turn", buckets=2)
    low, _, whole = probe(model, rows, 2, settings).tables["none"]
    loss = torch.zeros(())
    for one, sign in zip(rows[2:], (1, -1), strict=True):
        ids = torch.tensor([[*one.prompt_ids, *one.completion_ids]])
        logs = torch.log_softmax(model(input_ids=ids).logits, -1)
        logps = logs[:, :-1].gather(-1, ids[:, 1:, None])[0, len(one.prompt_ids) - 1 :, 0]
        loss = loss - sign * (logps * torch.tensor([0.5, 0.5, 0, 1.0])).sum() / 3 / 4
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    norm = torch.sqrt(sum((one**2).sum() for one in gradients if one is not None))
    assert whole.norms.task == pytest.approx(float(norm), rel=1e-4)
    assert low.norms.task == 0.0


def gradient(found, *rows):
    """The flat gradient of some rows."""
    parts = [torch.cat([one.flatten() for one in part]) for part in found(np.array(rows))]
    return torch.stack(parts).sum(0).numpy()


def test_the_gradient_of_the_heads_bias_by_hand():
    # Values 0, so d/db of 0.5 (0 + b - R)^2 over tokens is -R each: tokens 3, 4, 3, 3 of R 2, 2,
    # 1, 0 over 13: -(6 + 8 + 3) / 13
    critic = critic_of(tiny_model())
    found = CriticProbe(critic, PLAIN, two_groups())
    flat = gradient(found, 0, 1, 2, 3)
    names = list(critic.trained())
    sizes = [one.numel() for one in critic.trained().values()]
    at = sum(sizes[: names.index("head.bias")])
    assert flat[at] == pytest.approx(-17 / 13)


@pytest.mark.parametrize("tokens", [1, 4096])
def test_rows_add_up_and_nothing_is_touched(tokens):
    critic = critic_of(tiny_model(), 0.3)
    before = {name: one.detach().clone() for name, one in critic.trained().items()}
    found = CriticProbe(critic, PLAIN, two_groups(), tokens)
    parts = gradient(found, 0, 3) + gradient(found, 1, 2)
    np.testing.assert_allclose(parts, gradient(found, 0, 1, 2, 3), atol=1e-6)
    assert not list(found(np.array([], dtype=np.int64)))
    for name, one in critic.trained().items():
        assert one.grad is None
        assert torch.equal(one, before[name])


def test_unscored_rows_and_observations_do_not_count():
    episodes = two_groups()
    lost = [*episodes[:3], episode(None, (8, 8, 7, 5))]
    found = CriticProbe(critic_of(tiny_model(), 0.3), PLAIN, lost)
    assert not found.advantages(ALL)[3].any()
    assert not gradient(found, 3).any()
    assert all(row[2] == 0 for row in found.advantages(ALL))


def test_whitening_is_over_the_rows_that_are_trained_on():
    rules = CreditRules(settings=CriticSettings(whiten=True))
    found = CriticProbe(critic_of(tiny_model()), rules, two_groups())
    own = np.concatenate([np.delete(row, 2) for row in found.advantages(ALL)])
    none = np.concatenate([np.delete(row, 2) for row in found.advantages(ALL[:0])])
    assert none.tolist() == own.tolist()
    assert own.mean() == pytest.approx(0, abs=1e-12)
    assert own.std(ddof=1) == pytest.approx(1)
    # Rows 2 and 3 have three tokens each, of 1 and 0: mean 1/2, variance 6/4/5 = 0.3. Row 0 has 2.
    kept = found.advantages(ALL[2:])
    assert [row[0] for row in kept] == pytest.approx(np.array([1.5, 1.5, 0.5, -0.5]) / 0.3**0.5)
    assert not np.concatenate(found.advantages(ALL[:2])[:2]).any()  # both earned 2 throughout


def test_the_json_names_both_ways_and_the_critics_norm():
    model = tiny_model()
    found = CriticProbe(critic_of(model), PLAIN, two_groups())
    settings = ProbeSettings(loss_type="grpo", scales=("group",), entropy=0.1, buckets=2)
    content = report_json(probe(model, two_groups(), 2, settings, critic=found), {"step": 1})
    assert [t["scale_rewards"] for t in content["tables"]] == ["gae", "group"] * 2
    norms = content["tables"][0]["rows"][0]["norms"]["batch"]
    assert norms["critic"] > 0
    assert norms["entropy"] > 0
    plain = report_json(probe(model, two_groups(), 2, settings), {"step": 1})
    assert plain["tables"][0]["rows"][0]["norms"]["batch"]["critic"] is None


def test_batches_are_padded_on_their_own_sides():
    batch = batch_of([episode(1.0, (5, 6, 7, 8), (3,)), episode(1.0, (5, 6, 7, 8, 9))])
    assert batch["prompt_mask"].tolist() == [[0, 1], [1, 1]]
    assert batch["completion_mask"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert batch["prompt_ids"].tolist() == [[0, 3], [3, 4]]
