import math
import tracemalloc

import numpy as np
import pytest

from ragen2_cli.core.surface import prefix_metrics, reward_metrics

PROMPTS = np.repeat(np.arange(8), 8)


def dependent(seed: int, share: float = 0.7) -> list[list[str]]:
    """64 rows, 8 prompts: each word is the prompt's own with probability ``share``."""
    rng = np.random.default_rng(seed)
    own = rng.integers(0, 50, (8, 12))
    return [
        [f"w{own[prompt, t] if rng.random() < share else rng.integers(50)}" for t in range(12)]
        for prompt in PROMPTS
    ]


def test_f_ratio_by_hand():
    # Prompts [0, 2] and [4, 6]: means 1 and 5, std of means = sqrt(8) = 2.828;
    # within variance 2 each, standard error sqrt(2 / 2) = 1; ratio 2.828.
    metrics = reward_metrics([0, 2, 4, 6], [7, 7, 3, 3])
    assert metrics["reward_f_ratio"] == pytest.approx(math.sqrt(8))
    # Of the 6 equally likely splits into pairs, {0,2}|{4,6} and its mirror reach it: p near 1/3.
    assert metrics["reward_f_pvalue"] == pytest.approx(1 / 3, abs=0.08)


def test_f_ratio_is_about_one_without_dependence_and_its_p_value_is_honest():
    values = [
        reward_metrics(np.random.default_rng(seed).random(64), PROMPTS, seed=seed)
        for seed in range(200)
    ]
    squares = [value["reward_f_ratio"] ** 2 for value in values]
    assert np.mean(squares) == pytest.approx(56 / 54, abs=0.1)  # mean of F(7, 56)
    small = sum(value["reward_f_pvalue"] <= 0.05 for value in values)
    assert 2 <= small <= 20  # 5 % of 200 is 10; four standard deviations are 12
    rewards = PROMPTS + np.random.default_rng(0).random(64)
    assert reward_metrics(rewards, PROMPTS)["reward_f_pvalue"] == pytest.approx(1 / 201)


def test_f_ratio_ignores_order_shift_scale_and_rows_without_score():
    rng = np.random.default_rng(1)
    rewards, order = rng.random(64) + PROMPTS * 0.1, rng.permutation(64)
    value = reward_metrics(rewards, PROMPTS)["reward_f_ratio"]
    assert reward_metrics(rewards[order], PROMPTS[order])["reward_f_ratio"] == pytest.approx(value)
    assert reward_metrics(rewards * 10 - 3, PROMPTS)["reward_f_ratio"] == pytest.approx(value)
    padded = reward_metrics(np.append(rewards, [np.nan] * 3), np.append(PROMPTS, [0, 0, 9]))
    assert padded["reward_f_ratio"] == pytest.approx(value)


@pytest.mark.parametrize(
    ("rewards", "prompts"),
    [([], []), ([1, 2], [0, 0]), ([1, 2], [0, 1]), ([0.1] * 4, [0, 0, 1, 1]), ([np.nan], [0])],
)
def test_f_ratio_is_undefined_rather_than_zero(rewards, prompts):
    assert reward_metrics(rewards, prompts) == {"reward_f_ratio": None, "reward_f_pvalue": None}


def test_f_ratio_without_variance_inside_prompts():
    metrics = reward_metrics(np.repeat([0.1, 0.7, 0.3, 0.2], 8), np.repeat(np.arange(4), 8))
    assert metrics["reward_f_ratio"] is None
    assert metrics["reward_f_pvalue"] == pytest.approx(1 / 201)


def test_prefix_information_by_hand():
    # Two prompts, one word each, two rows: plug-in MI = log 2;
    # correction (2 prompts + 2 words - 2 pairs - 1) / (2 * 4) = 1/8; H(word | prompt) = 0.
    metrics = prefix_metrics([["a"], ["a"], ["b"], ["b"]], [0, 0, 1, 1])
    assert metrics["prefix_mi"] == pytest.approx(math.log(2) + 0.125)
    assert metrics["prefix_conditional_entropy"] == pytest.approx(0)
    assert metrics["unique_prefix_rate"] == 0.5
    # Independent: every pair once. MI 0; correction (2 + 2 - 4 - 1) / 8 = -1/8; H = log 2.
    free = prefix_metrics([["a"], ["b"], ["a"], ["b"]], [0, 0, 1, 1])
    assert free["prefix_mi"] == pytest.approx(-0.125)
    assert free["prefix_conditional_entropy"] == pytest.approx(math.log(2))


@pytest.mark.parametrize("seed", range(5))
def test_text_that_depends_on_its_prompt_scores_high(seed):
    assert prefix_metrics(dependent(seed), PROMPTS)["prefix_mi_zscore"] > 10


def test_shuffled_text_stays_within_two_deviations():
    inside = 0
    for seed in range(100):
        texts = dependent(seed)
        order = np.random.default_rng(seed + 1000).permutation(64)
        z = prefix_metrics([texts[i] for i in order], PROMPTS, seed=seed)["prefix_mi_zscore"]
        inside += abs(z) <= 2
    assert 88 <= inside <= 100


@pytest.mark.parametrize("seed", range(5))
def test_a_template_with_a_free_tail_scores_low(seed):
    rng = np.random.default_rng(seed)
    texts = [
        ["I", "will", "go", "now"] + [f"t{w}" for w in rng.integers(0, 40, 8)] for _ in PROMPTS
    ]
    metrics = prefix_metrics(texts, PROMPTS)
    assert metrics["prefix_conditional_entropy"] > 0.7  # plenty of entropy
    assert metrics["prefix_mi_zscore"] < 3  # and no information
    assert metrics["prefix_mi"] < prefix_metrics(dependent(seed), PROMPTS)["prefix_mi"]


def test_no_permutation_spread_is_undefined():
    same = prefix_metrics([["go", "up"]] * 64, PROMPTS)
    assert same["prefix_mi_zscore"] is None
    assert same["prefix_mi"] == pytest.approx(0)
    unique = prefix_metrics([[f"{i}", f"x{i}"] for i in range(64)], PROMPTS)
    assert unique["prefix_mi_zscore"] is None


def test_order_of_rows_and_names_of_prompts_do_not_change_the_value():
    texts, order = dependent(3), np.random.default_rng(5).permutation(64)
    plain = prefix_metrics(texts, PROMPTS)
    moved = prefix_metrics([texts[i] for i in order], [f"p{7 - PROMPTS[i]}" for i in order])
    for name in ("prefix_mi", "prefix_conditional_entropy", "unique_prefix_rate"):
        assert moved[name] == pytest.approx(plain[name])
    assert prefix_metrics(texts, PROMPTS) == plain  # same seed, same value


def test_empty_texts_and_too_few_prompts():
    assert set(prefix_metrics([], []).values()) == {None}
    one = prefix_metrics([["a"], ["b"]], [0, 0])
    assert (one["prefix_mi"], one["unique_prefix_rate"]) == (None, 1.0)
    silent = prefix_metrics([[], [], [], []], [0, 0, 1, 1])
    assert silent["prefix_mi"] == pytest.approx(0)
    # An ended text is a symbol: whether a reply is empty tells its prompt.
    ended = prefix_metrics([[], [], ["a"], ["a"]], [0, 0, 1, 1])
    assert ended["prefix_mi"] == pytest.approx(math.log(2) + 0.125)


def test_many_kinds_of_words_give_the_same_as_few_kinds_coding():
    # 300 words x 120 prompts needs wide keys; a relabelling must not change the value.
    rng = np.random.default_rng(0)
    words, prompts = rng.integers(0, 300, (600, 2)), rng.integers(0, 120, 600)
    plain = prefix_metrics(words.tolist(), prompts, permutations=3)
    renamed = prefix_metrics((words + 10_000).tolist(), prompts + 5, permutations=3)
    assert renamed == pytest.approx(plain)


def test_the_f_ratio_of_many_prompts_needs_no_table_of_rows_by_prompts():
    # Rewards 0, 1 of one prompt and 2, 3 of the next: between 2 P x 1 / (P - 1), within 0.5 P / P,
    # so the root of 4 P / (P - 1). A table of 20,000 rows by 10,000 prompts would be 1.6 GB.
    prompts = np.repeat(np.arange(10_000), 2)
    rewards = np.tile([0.0, 1.0, 2.0, 3.0], 5_000)
    tracemalloc.start()
    found = reward_metrics(rewards, prompts, permutations=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["reward_f_ratio"] == pytest.approx(2 * (10_000 / 9_999) ** 0.5, rel=1e-12)
    assert found["reward_f_pvalue"] == pytest.approx(1 / 6)
    assert peak < 20e6
