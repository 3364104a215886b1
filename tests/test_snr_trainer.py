"""What the trainer does around the filter: empty batches, missing scores, logs, refusals."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import LlamaForCausalLM
from trl import GRPOTrainer

from ragen2_cli import GroupFilter, SnrGRPOTrainer
from ragen2_cli.errors import UserError
from tiny_trl import Script, config, saved_model, tiny_model, tiny_tokenizer, trainer

LIVE = [[1, 0, 0, 0], [0, 0, 0, 0]]
DEAD = [[1, 1, 1, 1], [0, 0, 0, 0]]
TOP_P = GroupFilter("top-p", 0.9)


class Recorded(SnrGRPOTrainer):
    """Keeps every selection that it is told about."""

    def __init__(self, *args, **kwargs):
        self.seen = []
        super().__init__(*args, **kwargs)

    def on_selection(self, selection, advantages_N, rewards_N, inputs):
        self.seen.append((selection, advantages_N, rewards_N, inputs))


class Batches(Script):
    """A script whose rewards change from batch to batch; the last ones stay."""

    def __init__(self, *batches):
        super().__init__(batches[0])
        self.batches = list(batches)

    def __call__(self, prompts, trainer):
        self.rewards = self.batches.pop(0) if len(self.batches) > 1 else self.batches[0]
        return super().__call__(prompts, trainer)


def snapshot(built):
    """Weights and optimizer state, as independent copies."""
    weights = {name: weight.detach().clone() for name, weight in built.model.named_parameters()}
    optimizer = built.optimizer.state_dict()["state"]
    return weights, {
        (index, name): value.clone()
        for index, entries in optimizer.items()
        for name, value in entries.items()
    }


def assert_identical(before, after):
    for old, new in zip(before, after, strict=True):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[key], new[key]) for key in old)


# --- nothing to train on ---------------------------------------------------------------------


def test_an_empty_selection_changes_nothing_bit_for_bit(tmp_path):
    # Case 5. One live step fills Adam's moments; then every group ties, with KL, entropy bonus and
    # weight decay on, which all would move the weights.
    folder = saved_model(tmp_path / "model")
    args = config(
        tmp_path / "out", rows=8, parts=2, max_steps=3, learning_rate=1e-2, weight_decay=0.5,
        beta=0.1, entropy_coef=0.1, max_grad_norm=1.0,
    )  # fmt: skip
    model = LlamaForCausalLM.from_pretrained(folder)
    script = Batches(LIVE, DEAD)
    built = trainer(SnrGRPOTrainer, tmp_path, script, model=model, args=args, group_filter=TOP_P)
    taken = []
    built.add_callback(_after_each_step(lambda: taken.append(snapshot(built))))
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    built.train()
    assert any(not torch.equal(start[name], taken[0][0][name]) for name in start)
    assert len(taken[0][1]) > 0
    assert_identical(taken[0], taken[1])
    assert_identical(taken[0], taken[2])
    assert built.empty_steps == 2
    assert [row["empty_steps"] for row in built.state.log_history[:3]] == [0, 1, 2]
    assert [row["kept_groups"] for row in built.state.log_history[:3]] == [1, 0, 0]


def _after_each_step(action):
    from transformers import TrainerCallback

    class AfterStep(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            action()

    return AfterStep()


@pytest.mark.parametrize(("limit", "steps"), [(None, 5), (2, 2)])
def test_empty_batches_in_a_row_stop_the_run_with_a_reason(tmp_path, limit, steps):
    keywords = {} if limit is None else {"max_empty_batches": limit}
    args = config(tmp_path, rows=8, parts=4, max_steps=9, learning_rate=1e-3)
    built = trainer(
        SnrGRPOTrainer, tmp_path, Script(DEAD), args=args, group_filter=TOP_P, **keywords
    )
    built.train()
    assert built.state.global_step == steps
    assert f"{steps} batches in a row" in built.stop_reason
    assert "every group is dead" in built.stop_reason


def test_a_live_batch_in_between_starts_the_count_again(tmp_path):
    args = config(tmp_path, rows=8, max_steps=4, learning_rate=1e-3)
    script = Batches(DEAD, LIVE, DEAD, LIVE)
    built = trainer(
        SnrGRPOTrainer, tmp_path, script, args=args, group_filter=TOP_P, max_empty_batches=2
    )
    built.train()
    assert built.state.global_step == 4
    assert built.stop_reason == ""
    assert built.empty_steps == 2


def test_windows_left_empty_by_few_rows_do_not_count_as_empty_batches(tmp_path):
    # 4 kept rows over 8 optimizer steps of one generation: 4 of them have nothing to train on.
    args = config(
        tmp_path, rows=8, parts=8, steps_per_generation=8, gradient_accumulation_steps=1,
        max_steps=8, learning_rate=1e-3,
    )  # fmt: skip
    built = trainer(
        SnrGRPOTrainer, tmp_path, Script(LIVE), args=args, group_filter=TOP_P, max_empty_batches=1
    )
    built.train()
    assert built.state.global_step == 8
    assert built.empty_steps == 4
    assert built.stop_reason == ""


def test_all_completions_truncated_is_loss_zero_with_a_warning(tmp_path):
    # Case 18: no completion ends, and truncated ones are masked out.
    args = config(
        tmp_path, rows=8, parts=2, mask_truncated_completions=True, learning_rate=1e-2,
        entropy_coef=0.1,
    )  # fmt: skip
    model = tiny_model()
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    script = Script(LIVE, ends=False)
    built = trainer(SnrGRPOTrainer, tmp_path, script, model=model, args=args)
    with pytest.warns(UserWarning, match="100% hit the length limit"):
        built.train()
    row = built.state.log_history[0]
    assert row["loss"] == 0.0
    assert not any(isinstance(value, float) and math.isnan(value) for value in row.values())
    assert all(torch.equal(start[name], weight) for name, weight in model.named_parameters())


def test_some_completions_truncated_is_finite_and_trains(tmp_path):
    class Half(Script):
        def row(self, group, member):
            ids = super().row(group, member)
            return [*ids[:-1], 5] if member % 2 else ids

    args = config(tmp_path, rows=8, parts=4, mask_truncated_completions=True, loss_type="bnpo")
    built = trainer(SnrGRPOTrainer, tmp_path, Half(LIVE), args=args, group_filter=TOP_P)
    built.train()
    gradient = torch.cat([grad.flatten() for grad in built.gradients[0].values()])
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


# --- scores and advantages -------------------------------------------------------------------


def test_advantages_equal_trl_logged_values(tmp_path):
    # Case 14: mean 0.25, std 0.5 (ddof 1): 0.75 / 0.5001 = 1.4997, -0.25 / 0.5001 = -0.4999.
    logged = []
    for cls in (GRPOTrainer, Recorded):
        built = trainer(cls, tmp_path, Script(LIVE), args=config(tmp_path, rows=8))
        built.train()
        logged.append(list(built._logs["advantages"]))
    assert logged[0] == pytest.approx([1.4997, -0.4999, -0.4999, -0.4999, 0, 0, 0, 0], abs=5e-5)
    assert logged[1] == pytest.approx(logged[0], abs=1e-7)
    assert list(built.seen[0][1]) == pytest.approx(logged[0], abs=1e-7)


def test_rounding_noise_is_no_advantage(tmp_path):
    # Case 7: seven float32 rewards of 0.1 have a std of 8e-9, which TRL divides by.
    rewards = [[0.1] * 7, [0.1] * 6 + [0.101]]
    args = config(tmp_path, rows=14, num_generations=7, reward_weights=[0.3])
    built = trainer(Recorded, tmp_path, Script(rewards), args=args, group_filter=TOP_P)
    built.train()
    selection, advantages, _, _ = built.seen[0]
    assert list(selection.kept) == [1]
    assert (advantages[:7] == 0.0).all()
    assert (np.abs(advantages[7:]) > 0.1).all()
    assert list(built._logs["advantages"])[:7] == [0.0] * 7


def test_a_row_without_a_score_trains_nothing(tmp_path):
    # Case 13: [1, null, 0, 0] has mean 1/3 and std 0.5774 over its scored rows. Whatever the null
    # row says must not matter, not even through KL or entropy.
    rewards = [[1, None, 0, 0], [0, 0, 0, 0]]

    class Other(Script):
        def row(self, group, member):
            return [7] * 12 + [1] if member == 1 else super().row(group, member)

    folder = saved_model(tmp_path / "model")
    args = {"rows": 8, "parts": 2, "beta": 0.1, "entropy_coef": 0.1, "loss_type": "grpo"}
    gradients = []
    for script in (Script(rewards), Other(rewards)):
        model = LlamaForCausalLM.from_pretrained(folder)
        model.lm_head.weight.data += 0.1
        built = trainer(
            Recorded, tmp_path, script, model=model, args=config(tmp_path / "out", **args),
            group_filter=TOP_P,
        )  # fmt: skip
        built.train()
        gradients.append(torch.cat([grad.flatten() for grad in built.gradients[0].values()]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-6)
    _, advantages, rewards_N, _ = built.seen[0]
    assert np.isnan(rewards_N[1])
    # (1 - 1/3) / (0.57735 + 1e-4) = 1.1545; -1/3 / 0.57745 = -0.5773
    assert advantages[:4] == pytest.approx([1.1545, 0, -0.5773, -0.5773], abs=1e-4)


def test_rows_without_a_score_are_said_in_one_line(tmp_path, caplog):
    script = Script([[None] * 4, [1, 0, 0, 0]])
    args = config(tmp_path / "out", rows=8, parts=2)
    built = trainer(Recorded, tmp_path, script, args=args, group_filter=TOP_P)
    with caplog.at_level("WARNING"):
        built.train()
    (said,) = [text for text in caplog.messages if "returned None" in text]
    assert said.startswith("a completion of this batch has no score")
    assert "\n" not in said


def test_dead_among_the_scored_rows(tmp_path):
    # Case 8: the one differing row of group 0 has no score.
    rewards = [[1, 1, 1, None], [1, 0, 0, 0]]
    built = trainer(
        Recorded, tmp_path, Script(rewards), args=config(tmp_path, rows=8), group_filter=TOP_P
    )
    built.train()
    assert list(built.last_selection.kept) == [1]
    assert list(built.last_selection.dead_P) == [True, False]


def test_a_single_scored_row_has_no_advantage_and_no_nan(tmp_path):
    # Case 12 within a trainer: one scored row is a group of one.
    rewards = [[1, None, None, None], [1, 0, 0, 0]]
    built = trainer(Recorded, tmp_path, Script(rewards), args=config(tmp_path, rows=8))
    built.train()
    assert (built.seen[0][1][:4] == 0).all()
    assert all(torch.isfinite(grad).all() for grad in built.gradients[0].values())


def test_two_prompts_times_two_rollouts_are_four_episodes(tmp_path):
    # Case 24.
    rewards = [[1, 0], [0, 1]]
    args = config(tmp_path, rows=4, parts=2, num_generations=2)
    built = trainer(Recorded, tmp_path, Script(rewards), args=args, group_filter=TOP_P)
    built.train()
    assert len(built.seen) == 1
    assert len(built.seen[0][2]) == len(built.seen[0][3]) == 4


def test_soft_weighting_multiplies_by_spread_over_the_largest(tmp_path):
    # Variances (ddof 1): [1,1,0,0] -> 1/3, [1,0,0,0] -> 1/4; weights 1 and 0.75.
    rewards = [[1, 1, 0, 0], [1, 0, 0, 0]]
    seen = []
    for soft in (False, True):
        built = trainer(
            Recorded, tmp_path, Script(rewards), args=config(tmp_path, rows=8), soft_weighting=soft
        )
        built.train()
        seen.append(built.seen[0][1])
    assert seen[1] == pytest.approx(seen[0] * np.repeat([1, 0.75], 4), abs=1e-6)


def test_the_spread_can_be_taken_of_the_outcome_alone(tmp_path):
    # Group 0 differs only by a format penalty, which the outcome does not contain.
    rewards = [[0, -0.1, 0, 0], [1, 0, 0, 0]]

    def outcome(inputs, rewards_N):
        assert len(inputs) == len(rewards_N) == 8
        return [max(0.0, reward) for reward in rewards_N]

    args = config(tmp_path, rows=8)
    built = trainer(
        Recorded, tmp_path, Script(rewards), args=args, group_filter=GroupFilter("top-p", 1.0),
        spread_rewards=outcome,
    )  # fmt: skip
    built.train()
    assert list(built.last_selection.kept) == [1]
    assert built.seen[0][1][1] != 0  # judged dropped, but its advantage is not rewritten
    built = trainer(
        Recorded, tmp_path, Script(rewards), args=args, group_filter=GroupFilter("top-p", 1.0)
    )
    built.train()
    assert list(built.last_selection.kept) == [0, 1]


def test_a_given_spread_is_not_rounded(tmp_path):
    # Both groups spread by 1/3: the first stays. In float32 1 - 2/3 is less than 1/3.
    rewards = [[1, 2 / 3, 2 / 3, 2 / 3], [1 / 3, 0, 0, 0]]
    built = trainer(
        Recorded, tmp_path, Script(rewards), args=config(tmp_path, rows=8, max_steps=1),
        group_filter=GroupFilter("top-k-abs", 1), spread_rewards=lambda *_: np.ravel(rewards),
    )  # fmt: skip
    built.train()
    assert list(built.last_selection.kept) == [0]


class Column:
    """A reward function that gives one number per row of the batch."""

    def __init__(self, name, values):
        self.__name__, self.values = name, values

    def __call__(self, completions, **_):
        return self.values


def test_objectives_that_are_normalized_one_by_one_are_judged_so(tmp_path):
    # Weights 1 and 2. Group 0: every raw sum is 2, but the z-scores of the first function count 1
    # and those of the second 2: alive. Group 1: twice 1, so 1 * z - 2 * z = -z: alive too. Group
    # 2: both functions give everyone the same: dead.
    first = Column("first", [2, 0, 2, 0] + [1, 0, 0, 0] + [1] * 4)
    second = Column("second", [0, 1, 0, 1] + [0, 1, 1, 1] + [0.1] * 4)
    logged = []
    for cls in (GRPOTrainer, SnrGRPOTrainer):
        args = config(
            tmp_path, rows=12, multi_objective_aggregation="normalize_then_sum",
            reward_weights=[1.0, 2.0],
        )  # fmt: skip
        keywords = {"group_filter": GroupFilter("top-p", 1.0)} if cls is SnrGRPOTrainer else {}
        built = cls(
            model=tiny_model(), reward_funcs=[first, second], args=args,
            train_dataset=Dataset.from_dict({"prompt": ["w0", "w1", "w2"]}),
            processing_class=tiny_tokenizer(), rollout_func=Script([[0] * 4] * 3), **keywords,
        )  # fmt: skip
        built.train()
        logged.append(list(built._logs["advantages"]))
    assert list(built.last_selection.kept) == [0, 1]
    row = built.state.log_history[0]
    assert (row["groups"], row["kept_groups"], row["dead_groups"]) == (3, 2, 1)
    # z of [2, 0, 2, 0] is 0.866 (std 1.1547), and 0.866 - 2 * 0.866 = -0.866: the second wins.
    assert logged[0][0] < -0.5
    assert logged[1] == pytest.approx(logged[0], abs=1e-4)
    assert logged[1][8:] == [0.0] * 4


def test_groups_can_be_ranked_by_length_and_entropy(tmp_path):
    script = Script([[1, 0, 0, 0], [1, 0, 0, 0]])
    lengths = [[len(script.row(group, member)) for member in range(4)] for group in range(2)]
    for score in ("length", "entropy", "entropy_var"):
        built = trainer(
            SnrGRPOTrainer, tmp_path, script, args=config(tmp_path, rows=8),
            group_filter=GroupFilter("top-k-abs", 1, score=score),
        )  # fmt: skip
        built.train()
        scores = built.last_selection.score_P
        assert list(built.last_selection.kept) == [int(np.argmax(scores))]
        if score == "length":
            assert list(scores) == pytest.approx([np.mean(row) for row in lengths])
        else:
            assert (scores > 0).all()
            assert scores[0] != scores[1]


# --- logs, evaluation, reference pass --------------------------------------------------------


def test_metrics_and_the_completions_table_say_what_was_kept(tmp_path):
    built = trainer(
        SnrGRPOTrainer, tmp_path, Script(LIVE), args=config(tmp_path, rows=8), group_filter=TOP_P
    )
    built.train()
    row = built.state.log_history[0]
    assert (row["groups"], row["kept_groups"], row["dead_groups"]) == (2, 1, 1)
    assert row["kept_ratio"] == 0.5
    # Var 0.25 and 0: mean 0.125; std 0.5 and 0: mean 0.25; target 0.9 * 0.25 = 0.225.
    assert row["group_reward_var"] == pytest.approx(0.125)
    assert row["group_reward_std"] == pytest.approx(0.25)
    assert row["filter_target"] == pytest.approx(0.225)
    script = Script(LIVE)
    tokens = [sum(len(script.row(group, member)) for member in range(4)) for group in range(2)]
    assert row["kept_tokens_ratio"] == pytest.approx(tokens[0] / sum(tokens))
    assert list(built._logs["extra"]["kept"]) == [True] * 4 + [False] * 4


def test_a_reward_function_may_log_under_our_names(tmp_path):
    # 7 is the reward function's own value; without a KL term and an entropy bonus TRL logs neither.
    class Chatty(SnrGRPOTrainer):
        def _calculate_rewards(self, *args):
            for name in ("kl", "policy_loss", "clip_ratio/low_mean"):
                self._log_metric(name, 7.0)
            return super()._calculate_rewards(*args)

    quiet, chatty = (
        trainer(cls, tmp_path, Script(LIVE), args=config(tmp_path, rows=8, parts=2))
        for cls in (SnrGRPOTrainer, Chatty)
    )
    quiet.train()
    chatty.train()
    expected, row = quiet.state.log_history[0], chatty.state.log_history[0]
    assert (row["kl"], row["policy_loss"]) == (7, 7)
    assert row["clip_ratio/low_mean"] == (7 + expected["clip_ratio/low_mean"]) / 2  # as TRL mixes
    assert row["entropy"] == expected["entropy"]
    assert row["loss"] == expected["loss"]


def test_evaluation_is_not_filtered(tmp_path):
    args = config(tmp_path, rows=8, per_device_eval_batch_size=8)
    built = trainer(SnrGRPOTrainer, tmp_path, Script(DEAD), args=args, group_filter=TOP_P)
    metrics = built.evaluate(Dataset.from_dict({"prompt": ["w0", "w1"]}))
    assert metrics["eval_reward"] == pytest.approx(0.5)
    assert metrics["eval_entropy"] > 0
    assert built.last_selection is None


def test_the_reference_pass_sees_only_kept_rows(tmp_path):
    folder = saved_model(tmp_path / "model")
    model = LlamaForCausalLM.from_pretrained(folder)
    args = config(tmp_path / "out", rows=8, beta=0.1)
    built = trainer(
        SnrGRPOTrainer, tmp_path, Script(LIVE), model=model, args=args, group_filter=TOP_P
    )
    rows = []
    built.ref_model.model.register_forward_pre_hook(
        lambda _module, _args, inputs: rows.append(len(inputs["input_ids"])), with_kwargs=True
    )
    built.train()
    assert sum(rows) == 4
    assert built.beta == 0.1
    assert built.state.log_history[0]["kl"] == pytest.approx(0, abs=1e-6)


def test_the_adaptive_entropy_coefficient_moves_as_in_trl(tmp_path):
    settings = {
        "use_adaptive_entropy": True, "entropy_target": 9.0, "entropy_coef": 0.01,
        "entropy_coef_delta": 0.005, "max_steps": 3,
    }  # fmt: skip
    coefficients = []
    for cls, groups, parts in ((GRPOTrainer, [0], 1), (SnrGRPOTrainer, None, 8)):
        rows = 4 if groups else 8
        args = config(tmp_path, rows=rows, parts=parts, **settings)
        keywords = {} if groups else {"group_filter": TOP_P}
        built = trainer(cls, tmp_path, Script(LIVE, groups=groups), args=args, **keywords)
        built.train()
        coefficients.append((built.entropy_coef, pytest.approx(built._last_world_entropy)))
    assert coefficients[0] == coefficients[1]
    assert coefficients[0][0] == pytest.approx(0.025)


# --- refusals --------------------------------------------------------------------------------


def test_nothing_to_train_is_refused_at_the_start(tmp_path):
    # Case 21.
    model = tiny_model().requires_grad_(False)
    with pytest.raises(UserError, match="no parameter requires a gradient"):
        trainer(SnrGRPOTrainer, tmp_path, Script(LIVE), model=model, args=config(tmp_path, 8))


def test_a_kl_reference_that_cannot_be_loaded_is_refused(tmp_path):
    with pytest.raises(UserError, match="exists only in memory"):
        trainer(SnrGRPOTrainer, tmp_path, Script(LIVE), args=config(tmp_path, 8, beta=0.1))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"loss_scaling": "lineal"}, "did you mean 'linear'"),
        ({"max_empty_batches": 0}, "must be 1 or more"),
        ({"tokens_per_forward": 0}, "must be 1 or more"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, keywords, message):
    with pytest.raises(UserError, match=message):
        trainer(SnrGRPOTrainer, tmp_path, Script(LIVE), args=config(tmp_path, 8), **keywords)


def test_images_are_refused_by_name(tmp_path, monkeypatch):
    built = trainer(SnrGRPOTrainer, tmp_path, Script(LIVE), args=config(tmp_path, rows=8))
    monkeypatch.setattr(
        GRPOTrainer, "_generate_and_score_completions", lambda self, inputs: {"pixel_values": 0}
    )
    with pytest.raises(UserError, match="images are not supported"):
        built.train()


def test_the_ordinary_tokenizer_and_dataset_arguments_pass_through(tmp_path):
    built = SnrGRPOTrainer(
        tiny_model(),
        [lambda completions, **_: [float(len(text)) for text in completions]],
        config(Path(tmp_path), rows=8, max_completion_length=6),
        Dataset.from_dict({"prompt": ["w1 w2", "w3"]}),
        processing_class=tiny_tokenizer(),
        group_filter=TOP_P,
    )
    built.train()  # positional arguments, generation by the model itself
    assert built.state.global_step == 1
    assert built.last_selection is not None
