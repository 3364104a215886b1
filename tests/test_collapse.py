import json
import math
from pathlib import Path

import numpy as np
import pytest

from ragen2_cli.core.collapse import add_ema, cross_scoring_metrics, ema
from ragen2_cli.errors import UserError

GOLDENS = Path(__file__).parent / "goldens"


def matrix(seed: int, rows: int = 24, prompts: int = 6, copies: tuple[int, ...] = ()):
    """A random matrix whose own column is a little better; ``copies`` repeats those columns."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 30, rows)
    own = rng.integers(0, prompts, rows)
    logprobs = -rng.uniform(1, 3, (rows, prompts)) * lengths[:, None]
    logprobs[np.arange(rows), own] *= 0.7
    ids = list(range(prompts))
    for column in copies:
        logprobs = np.concatenate([logprobs, logprobs[:, column : column + 1]], axis=1)
        ids.append(column)
    return logprobs, lengths, own, ids


@pytest.mark.parametrize("marginal", ["token-mean", "sequence"])
def test_every_golden_matrix(marginal):
    cases = json.loads((GOLDENS / "mi_metrics.json").read_text())["cases"]
    assert len(cases) == 40
    key = "expected" if marginal == "token-mean" else "expected_sequence_marginal"
    for case in cases:
        metrics = cross_scoring_metrics(
            case["logp_sum"],
            case["lengths"],
            case["true_prompt"],
            case["prompt_ids"],
            marginal,
            case["std_eps"],
        )
        for name, value in case[key].items():
            assert metrics[name] == pytest.approx(value, abs=1e-6), (case["id"], name)


def test_every_golden_ema_series():
    cases = json.loads((GOLDENS / "ema.json").read_text())["cases"]
    assert len(cases) == 8
    for case in cases:
        assert ema(case["values"], case["decay"]) == pytest.approx(case["expected"], abs=1e-12)
    assert ema([]) == []


def test_two_by_two_by_hand():
    # Reasonings of 2 and 1 tokens; per token row 0 is (-1, -2), row 1 is (-3, -1); own = 0, 1.
    # marginal 0 = log((e^-1 + e^-2)/2) = -1.37989, marginal 1 = log((e^-3 + e^-1)/2) = -1.56622
    # mi = ((-1 + 1.37989) + (-1 + 1.56622)) / 2 = 0.473055
    # std of the marginals = 0.18633 / 2 = 0.093166; zscore = 0.473055 / 0.094166 = 5.0236
    metrics = cross_scoring_metrics([[-2, -4], [-3, -1]], [2, 1], [0, 1], ["a", "b"])
    assert metrics["mi_estimate"] == pytest.approx(0.473055, abs=1e-5)
    assert metrics["mi_zscore"] == pytest.approx(5.0236, abs=1e-3)
    assert metrics["conditional_entropy"] == pytest.approx(1.0)
    assert (metrics["retrieval_accuracy"], metrics["retrieval_chance"]) == (1.0, 0.5)
    # Sequence marginal of row 0: (log((e^-2 + e^-4)/2)) / 2 = (-2 + log(0.567668)) / 2 = -1.28311
    sequence = cross_scoring_metrics([[-2, -4], [-3, -1]], [2, 1], [0, 1], ["a", "b"], "sequence")
    assert sequence["mi_estimate"] == pytest.approx((0.28311 + 0.56622) / 2, abs=1e-5)


@pytest.mark.parametrize("marginal", ["token-mean", "sequence"])
def test_identical_columns_have_no_information_and_retrieve_at_chance(marginal):
    rng = np.random.default_rng(0)
    column = -rng.uniform(1, 40, (30, 1))
    metrics = cross_scoring_metrics(
        np.repeat(column, 5, axis=1), np.full(30, 7), np.arange(30) % 5, list("abcde"), marginal
    )
    for name in ("mi_estimate", "mi_seq_estimate", "mi_zscore", "mi_zscore_seq"):
        assert metrics[name] == pytest.approx(0, abs=1e-12)
    for k, chance in (("", 0.2), ("@2", 0.4), ("@4", 0.8), ("@8", 1.0)):
        assert metrics[f"retrieval_accuracy{k}"] == pytest.approx(chance)
        assert metrics[f"retrieval_chance{k}"] == pytest.approx(chance)


@pytest.mark.parametrize("marginal", ["token-mean", "sequence"])
def test_disjoint_reasonings_reach_log_p(marginal):
    logprobs = np.full((6, 6), -np.inf)
    np.fill_diagonal(logprobs, -3.0)
    metrics = cross_scoring_metrics(logprobs, np.ones(6), range(6), range(6), marginal)
    assert metrics["mi_estimate"] == pytest.approx(math.log(6))
    assert metrics["mi_seq_estimate"] == pytest.approx(metrics["mi_upper_bound"])
    assert metrics["retrieval_accuracy"] == 1.0


@pytest.mark.parametrize("marginal", ["token-mean", "sequence"])
@pytest.mark.parametrize("seed", range(5))
def test_entropies_differ_by_the_mutual_information(marginal, seed):
    metrics = cross_scoring_metrics(*matrix(seed), marginal)
    for suffix, estimate in (("", "mi_estimate"), ("_seq", "mi_seq_estimate")):
        difference = metrics[f"reasoning_entropy{suffix}"] - metrics[f"conditional_entropy{suffix}"]
        assert difference == pytest.approx(metrics[estimate], abs=1e-12)
    assert metrics["mi_seq_estimate"] <= metrics["mi_upper_bound"] + 1e-12


def test_copies_of_a_prompt_are_one_prompt_for_retrieval():
    # Row 0 belongs to column 0 and scores best in its copy, column 2: still its own prompt.
    metrics = cross_scoring_metrics(
        [[-1, -5, -1], [-5, -1, -5]], [1, 1], [0, 1], [(1, 2), (3,), (1, 2)]
    )
    assert metrics["retrieval_accuracy"] == 1.0
    # chance = mean over rows of copies / columns = (2/3 + 1/3) / 2
    assert metrics["retrieval_chance"] == pytest.approx(0.5)
    assert metrics["distinct_prompts"] == 2
    plain, copied = (cross_scoring_metrics(*matrix(3, copies=c)) for c in ((), (0, 1, 2, 3, 4, 5)))
    for name in ("mi_estimate", "mi_zscore", "retrieval_accuracy", "retrieval_chance"):
        assert copied[name] == pytest.approx(plain[name], abs=1e-12)


def test_order_of_rows_and_prompts_does_not_matter():
    logprobs, lengths, own, ids = matrix(1)
    rng = np.random.default_rng(9)
    rows, columns = rng.permutation(24), rng.permutation(6)
    shuffled = cross_scoring_metrics(
        logprobs[rows][:, columns],
        lengths[rows],
        np.argsort(columns)[own[rows]],
        [ids[column] for column in columns],
    )
    assert shuffled == pytest.approx(cross_scoring_metrics(logprobs, lengths, own, ids), abs=1e-12)


def test_rows_that_cannot_be_scored_are_counted_and_change_nothing():
    logprobs, lengths, own, ids = matrix(2)
    clean = cross_scoring_metrics(logprobs, lengths, own, ids)
    bad = np.repeat(logprobs[:1], 4, axis=0)
    bad[0, 3], bad[1, own[0]], bad[2, 0] = np.nan, -np.inf, np.inf
    metrics = cross_scoring_metrics(
        np.concatenate([logprobs, bad]),
        np.concatenate([lengths, [5, 5, 5, 0]]),
        np.concatenate([own, np.repeat(own[:1], 4)]),
        ids,
    )
    assert metrics.pop("rows_left_out") == 4
    assert clean.pop("rows_left_out") == 0
    assert metrics == pytest.approx(clean)


def test_refusals_name_what_is_missing():
    with pytest.raises(UserError, match="at least two different prompts, but there is 1"):
        cross_scoring_metrics([[-1, -1]], [1], [0], ["same", "same"])
    with pytest.raises(UserError, match="none of the 1 reasonings"):
        cross_scoring_metrics([[np.nan, -1]], [1], [0], ["a", "b"])
    with pytest.raises(ValueError, match="shapes"):
        cross_scoring_metrics([[-1, -1]], [1, 2], [0], ["a", "b"])
    with pytest.raises(ValueError, match="own columns"):
        cross_scoring_metrics([[-1, -1]], [1], [2], ["a", "b"])
    with pytest.raises(ValueError, match="unknown marginal"):
        cross_scoring_metrics([[-1, -1]], [1], [0], ["a", "b"], "mean")


def test_ema_z_scores_fold_over_measurements():
    # stds 1 then 3: smoothed 1, then 0.9 + 0.3 = 1.2; mi 0.6 -> 0.6 / 1.201
    first = {"mi_estimate": 1.0, "mi_seq_estimate": 2.0, "marginal_std": 1, "marginal_std_seq": 4}
    second = first | {"mi_estimate": 0.6, "marginal_std": 3}
    one = add_ema(first, None)
    two = add_ema(second, one)
    assert one["mi_zscore_ema"] == pytest.approx(1 / 1.001)
    assert two["mi_zscore_ema"] == pytest.approx(0.6 / 1.201)
    assert two["mi_zscore_ema_seq"] == pytest.approx(2 / 4.001)
