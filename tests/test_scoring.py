import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from ragen2_cli.core.collapse import cross_scoring_metrics
from ragen2_cli.errors import UserError
from ragen2_cli.training.scoring import cross_logprobs

torch.set_num_threads(1)
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL))


def obvious(model, prompts, reasonings, temperature=1.0):
    """One full sequence per pair, one row at a time."""
    scores = np.zeros((len(reasonings), len(prompts)))
    with torch.no_grad():
        for i, reasoning in enumerate(reasonings):
            for j, prompt in enumerate(prompts):
                ids = torch.tensor([[*prompt, *reasoning]])
                logprobs = torch.log_softmax(model(ids).logits[0].double() / temperature, dim=-1)
                for position in range(len(prompt), ids.shape[1]):
                    scores[i, j] += logprobs[position - 1, ids[0, position]].item()
    return scores


def random_ids(seed, lengths):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50, length).tolist() for length in lengths]


@pytest.mark.parametrize("byte_budget", [1, 30_000, 1 << 26])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_the_obvious_way_for_any_batching(model, byte_budget, temperature):
    prompts, reasonings = random_ids(1, [5, 9, 1, 20]), random_ids(2, [7, 1, 0, 12, 7, 3])
    model.eval()
    result = cross_logprobs(
        model, prompts, reasonings, temperature=temperature, byte_budget=byte_budget
    )
    expected = obvious(model, prompts, reasonings, temperature)
    np.testing.assert_allclose(result.sum_logprobs_N_P, expected, atol=1e-4)
    assert result.lengths_N.tolist() == [7, 1, 0, 12, 7, 3]
    assert result.reused_prompts
    assert result.temperature == temperature


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_other_attention_and_adapters_agree_too(attention):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    base = LlamaForCausalLM._from_config(LlamaConfig(**SMALL), attn_implementation=attention)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.eval()
    prompts, reasonings = random_ids(3, [6, 8]), random_ids(4, [5, 9])
    with_adapter = cross_logprobs(adapted, prompts, reasonings).sum_logprobs_N_P
    np.testing.assert_allclose(with_adapter, obvious(adapted, prompts, reasonings), atol=1e-4)
    with adapted.disable_adapter():
        without = cross_logprobs(adapted, prompts, reasonings).sum_logprobs_N_P
    assert np.abs(with_adapter - without).max() > 0.1  # the adapter really took part


def test_a_model_whose_cache_cannot_be_shared_is_scored_in_full_and_says_so():
    torch.manual_seed(2)
    sliding = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=6)).eval()
    prompts, reasonings = random_ids(5, [10, 4]), random_ids(6, [5, 8, 8])
    result = cross_logprobs(sliding, prompts, reasonings)
    assert not result.reused_prompts
    np.testing.assert_allclose(
        result.sum_logprobs_N_P, obvious(sliding, prompts, reasonings), atol=1e-4
    )


def test_padding_changes_nothing_and_entropy_is_never_negative(model):  # case 20
    prompts, short, long = random_ids(11, [6, 7]), random_ids(12, [10] * 6), random_ids(13, [100])
    own = [0, 1] * 3
    alone = cross_logprobs(model, prompts, short)
    beside = cross_logprobs(model, prompts, short + long, byte_budget=1 << 30)
    np.testing.assert_allclose(
        beside.sum_logprobs_N_P[:6], alone.sum_logprobs_N_P, atol=1e-4, rtol=0
    )
    first, second = (
        cross_scoring_metrics(s.sum_logprobs_N_P[:6], s.lengths_N[:6], own, prompts)
        for s in (alone, beside)
    )
    assert first["conditional_entropy"] == pytest.approx(second["conditional_entropy"], abs=1e-5)
    assert first["conditional_entropy"] >= 0
    assert first["reasoning_entropy"] >= 0


def test_repeated_rows_and_prompts_are_scored_once(model):
    prompts, reasonings = random_ids(7, [6, 6]), random_ids(8, [5, 5])
    plain = cross_logprobs(model, prompts, reasonings)
    repeated = cross_logprobs(model, prompts + prompts, reasonings * 3)
    assert repeated.forward_tokens == plain.forward_tokens
    assert (repeated.distinct_prompts, repeated.distinct_reasonings) == (2, 2)
    np.testing.assert_array_equal(
        repeated.sum_logprobs_N_P, np.tile(plain.sum_logprobs_N_P, (3, 2))
    )


def test_a_prompt_is_encoded_once(model):
    # 2 prompts of 40 tokens, 5 reasonings of 6: 2 x 40 + 2 x 5 x (6 - 1) tokens, not 10 x 46.
    result = cross_logprobs(model, random_ids(9, [40, 40]), random_ids(10, [6] * 5))
    assert result.forward_tokens == 2 * 40 + 2 * 5 * 5


def test_leaves_mode_gradients_and_random_state_alone(model):
    model.train()
    before = torch.get_rng_state()
    cross_logprobs(model, random_ids(1, [4, 4]), random_ids(2, [3]))
    assert model.training
    assert torch.equal(before, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_impossible_tokens_stay_minus_infinity_without_nan(model):
    # A model that never says token 3: rows with it are -inf, padding next to it is not NaN.
    class Silenced(LlamaForCausalLM):
        def forward(self, **kwargs):
            output = super().forward(**kwargs)
            output.logits[..., 3] = -torch.inf
            return output

    silenced = Silenced(LlamaConfig(**SMALL))
    scores = cross_logprobs(silenced, [[1, 2], [4]], [[5], [5, 3, 5, 6], [3]]).sum_logprobs_N_P
    assert np.isfinite(scores[0]).all()
    assert np.isneginf(scores[1:]).all()


def test_refusals(model):
    with pytest.raises(UserError, match="empty prompt"):
        cross_logprobs(model, [[1], []], [[1]])
    with pytest.raises(UserError, match="130 tokens together, the model's context is 128"):
        cross_logprobs(model, [[1] * 100], [[1] * 30])
    with pytest.raises(ValueError, match="positive"):
        cross_logprobs(model, [[1]], [[1]], temperature=0)
