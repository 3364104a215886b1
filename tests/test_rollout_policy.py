"""The cache across turns: same numbers as one full forward, same samples in any batch."""

import math
import threading

import pytest
import torch

from ragen2_cli.errors import UserError
from ragen2_cli.rollout.engine import EpisodeId, rollout
from ragen2_cli.rollout.policies import TransformersPolicy
from ragen2_cli.rollout.policies.batch import _shared_length
from ragen2_cli.rollout.policies.forward_runner import ForwardRunner
from ragen2_cli.rollout.policies.llama_runner import LlamaRunner, find_llama
from ragen2_cli.rollout.policies.runner import Chunk
from ragen2_cli.rollout.policies.transformers_policy import agreeing_llama
from ragen2_cli.rollout.template import ChatTemplate
from rollout_helpers import CHATML, PLAIN, TalkingSession, byte_tokenizer, tiny_llama

EPISODES = 12


def ragged_template(source=CHATML):
    """Return a template with a dozen stop ids, so that turns of a random model differ in length."""
    return ChatTemplate(byte_tokenizer(source), stop_ids=range(60, 84))


def play(
    model, template=None, *, count=EPISODES, only=None, temperature=1.0, concurrent=(), **options
):
    """Play groups of two with one to four turns; ``only`` picks some of the episodes."""
    template = template or ragged_template()
    chosen = list(range(count)) if only is None else only
    sessions = [
        TalkingSession("x" * (1 + i // 2 % 3), 1 + i % 4, concurrent=i in concurrent)
        for i in chosen
    ]
    return rollout(
        TransformersPolicy(model, **options),
        template,
        sessions,
        ids=[EpisodeId(1, i // 2, i % 2, i // 2) for i in chosen],
        seeds_N=[1000 + i for i in chosen],
        max_new_tokens=24,
        context_limit=2000,
        temperature=temperature,
    )


def full_logprobs(model, episode):
    """Return log p of each completion id from one forward over the whole conversation."""
    ids = torch.tensor([episode.prompt_ids + episode.completion_ids])
    with torch.no_grad():
        scores = model(input_ids=ids).logits[0].double().log_softmax(-1)
    first = len(episode.prompt_ids)
    return [scores[first + i - 1, token].item() for i, token in enumerate(episode.completion_ids)]


def ids_of(played):
    return [one.episode.completion_ids for one in played]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_cached_logprobs_equal_one_full_forward(fused, kv_heads):
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer), kv_heads=kv_heads, spread=0.15)
    played = play(model, template, fused=fused)
    lengths = {end - start for one in played for start, end in one.episode.turn_spans}
    assert len(lengths) > 5  # ragged indeed
    assert len({len(one.episode.turn_spans) for one in played}) == 4
    for one in played:
        expected = full_logprobs(model, one.episode)
        for found, wanted, sampled in zip(
            one.logprobs, expected, one.episode.loss_mask, strict=True
        ):
            assert found == (pytest.approx(wanted, abs=1e-5) if sampled else 0)
        assert one.sampling_logprobs == one.logprobs


@pytest.mark.parametrize(
    "options",
    [
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}},
        {"head_dim": 20},
        {"hidden_act": "gelu"},
    ],
)
def test_kinds_of_llama_give_their_own_numbers(options):
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer), spread=0.15, **options)
    for name, weight in model.named_parameters():
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(weight, mean=0.5, std=0.3)
    model.eval()
    quick = "dynamic" not in str(options) and "hidden_act" not in options
    assert (agreeing_llama(model) is not None) == quick
    for one in play(model, template, count=4):
        expected = full_logprobs(model, one.episode)
        pairs = zip(one.logprobs, expected, one.episode.loss_mask, strict=True)
        assert all(not k or abs(a - b) < 1e-5 for a, b, k in pairs)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "options",
    [{"max_rows": 1}, {"max_rows": 5, "patience": 0.0}, {"patience": math.inf}],
)
def test_batch_and_schedule_do_not_change_samples(fused, options):
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer))
    assert ids_of(play(model, template, fused=fused)) == ids_of(
        play(model, template, fused=fused, **options)
    )


@pytest.mark.parametrize("fused", [True, False])
def test_an_episode_alone_is_the_episode_in_a_batch(fused):
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer))
    together = ids_of(play(model, template, fused=fused))
    assert ids_of(play(model, template, fused=fused)) == together
    for index in (0, 3, 11):
        assert ids_of(play(model, template, fused=fused, only=[index])) == [together[index]]
    backwards = ids_of(play(model, template, fused=fused, only=list(reversed(range(EPISODES)))))
    assert backwards == together[::-1]


@pytest.mark.parametrize("options", [{}, {"max_rows": 5}, {"patience": math.inf}])
def test_environments_that_are_waited_for_change_nothing(options):
    model = tiny_llama(len(ragged_template().tokenizer))
    expected = ids_of(play(model))
    assert ids_of(play(model, concurrent=range(EPISODES), **options)) == expected
    assert ids_of(play(model, concurrent=range(0, EPISODES, 2), **options)) == expected


def test_environments_are_waited_for_together():
    template = ragged_template()
    both = threading.Barrier(2, timeout=30)

    class Meeting(TalkingSession):
        def submit(self, completion):
            both.wait()  # breaks unless the other one is submitted before this one is answered
            return super().submit(completion)

    rollout(
        TransformersPolicy(tiny_llama(len(template.tokenizer))),
        template,
        [Meeting("x", 3, concurrent=True) for _ in range(2)],
        ids=[EpisodeId(1, 0, i, 0) for i in range(2)],
        seeds_N=[7, 7],  # equal samples: both turns end with the same token
        max_new_tokens=24,
        context_limit=2000,
    )
    assert not both.broken


def test_what_breaks_in_a_waited_for_environment_is_raised():
    class Broken(TalkingSession):
        def submit(self, completion):
            raise UserError("environment: no")

    template = ragged_template()
    with pytest.raises(UserError, match="environment: no"):
        rollout(
            TransformersPolicy(tiny_llama(len(template.tokenizer))),
            template,
            [Broken("x", 3, concurrent=True)],
            ids=[EpisodeId(1, 0, 0, 0)],
            seeds_N=[7],
            max_new_tokens=24,
            context_limit=2000,
        )


def test_both_runners_agree_in_double_precision():
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer), dtype="float64")
    quick, plain = (play(model, template, fused=fused) for fused in (True, False))
    assert ids_of(quick) == ids_of(plain)


def test_shared_system_text_is_encoded_once():
    # 40 equal bytes at the start of all prompts: the runner sees them in one chunk only.
    model = tiny_llama(len(byte_tokenizer()))
    template = ragged_template(PLAIN)
    encoded = []

    class Counting(ForwardRunner):
        def encode(self, chunks):
            encoded.extend(chunks)
            return super().encode(chunks)

    policy = TransformersPolicy(model, fused=False)
    policy._ready_runner = lambda: Counting(model)
    same = "s" * 40
    prompts = [template.turn_ids(same + tail) for tail in ("ab", "ab", "cde", "f")]
    alone = []
    for store, use in ((alone, TransformersPolicy(model, fused=False)), (None, policy)):
        for batch in [[p] for p in prompts] if store is not None else [prompts]:
            got = {}
            use.converse(
                batch,
                [4] * len(batch),
                lambda episode, turn, got=got: got.update({episode: turn.ids}),
                stop=template.stop,
                max_new_tokens=6,
                temperature=1.0,
            )
            if store is not None:
                store.append(got[0])
        together = got
    assert [together[i] for i in range(4)] == alone
    assert [len(chunk.ids) for chunk in encoded] == [40, 2, 3, 1]


def test_shared_length_by_hand():
    shared = tuple(range(20))
    assert _shared_length({(*shared, 1), (*shared, 2, 3)}) == 20
    # Three tokens are not worth a copy; one prompt shares nothing; a prefix keeps its last token.
    assert _shared_length({(1, 2, 3, 4), (1, 2, 3, 5)}) == 0
    assert _shared_length({(*shared, 1)}) == 0
    assert _shared_length({shared, (*shared, 9)}) == 19


def test_finished_rows_leave_the_batch():
    # Turn caps 1 to 4: the decoded batch shrinks from 8 rows to the two episodes of four turns.
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer))
    sizes = []

    class Watching(ForwardRunner):
        def decode(self, columns_R, ids_R):
            sizes.append(len(columns_R))
            return super().decode(columns_R, ids_R)

    policy = TransformersPolicy(model)
    policy._ready_runner = lambda: Watching(model)
    sessions = [TalkingSession("x", 1 + i % 4) for i in range(8)]
    ids = [EpisodeId(1, i, 0, i) for i in range(8)]
    rollout(
        policy, template, sessions, ids=ids, seeds_N=range(8), max_new_tokens=24, context_limit=999
    )
    assert sizes[0] == 8
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 2


def test_context_is_never_encoded_twice():
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer))
    seen = []

    class Counting(ForwardRunner):
        def encode(self, chunks):
            seen.append(sum(len(chunk.ids) for chunk in chunks))
            return super().encode(chunks)

        def decode(self, columns_R, ids_R):
            seen.append(len(columns_R))
            return super().decode(columns_R, ids_R)

    policy = TransformersPolicy(model)
    policy._ready_runner = lambda: Counting(model)
    (one,) = rollout(
        policy,
        template,
        [TalkingSession("x", 4)],
        ids=[EpisodeId(1, 0, 0, 0)],
        seeds_N=[3],
        max_new_tokens=24,
        context_limit=999,
    )
    # Every token once, but the very last, which nothing follows.
    assert sum(seen) == len(one.episode.prompt_ids) + len(one.episode.completion_ids) - 1


def test_greedy_is_the_argmax_of_the_full_forward():
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer))
    for one in play(model, template, count=4, temperature=0.0):
        ids = torch.tensor([one.episode.prompt_ids + one.episode.completion_ids])
        with torch.no_grad():
            best = model(input_ids=ids).logits[0].argmax(-1)[len(one.episode.prompt_ids) - 1 : -1]
        for at, (token, sampled) in enumerate(
            zip(one.episode.completion_ids, one.episode.loss_mask, strict=True)
        ):
            assert not sampled or best[at] == token
        assert set(one.sampling_logprobs) == {0.0}


def test_temperature_changes_the_samples_but_not_the_reported_policy():
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer))
    cold = play(model, template, count=4, temperature=0.5)
    assert ids_of(cold) != ids_of(play(model, template, count=4))
    for one in cold:
        expected = full_logprobs(model, one.episode)
        pairs = zip(one.logprobs, expected, one.episode.loss_mask, strict=True)
        assert all(not k or abs(a - b) < 1e-4 for a, b, k in pairs)
        assert one.sampling_logprobs != one.logprobs


@pytest.mark.parametrize("training", [True, False])
def test_training_mode_comes_back_even_after_an_error(training):
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer)).train(training)
    play(model, template, count=2)
    assert model.training is training

    class Broken(TalkingSession):
        def submit(self, completion):
            raise UserError("the environment broke")

    with pytest.raises(UserError, match="the environment broke"):
        rollout(
            TransformersPolicy(model),
            template,
            [Broken("x", 2)],
            ids=[EpisodeId(1, 0, 0, 0)],
            seeds_N=[0],
            max_new_tokens=4,
            context_limit=999,
        )
    assert model.training is training


def test_logits_that_are_not_numbers_end_the_run():
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer))
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(UserError, match="logits are not numbers"):
        play(model, template, fused=False, count=2)


def test_weights_are_read_anew_for_every_rollout():
    template = ragged_template()
    model = tiny_llama(len(template.tokenizer))
    policy = TransformersPolicy(model)

    def once():
        return rollout(
            policy,
            template,
            [TalkingSession("x", 2)],
            ids=[EpisodeId(1, 0, 0, 0)],
            seeds_N=[0],
            max_new_tokens=24,
            context_limit=999,
        )

    before = once()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(-1)
    (after,) = once()
    assert ids_of(before) != [after.episode.completion_ids]
    expected = full_logprobs(model, after.episode)
    pairs = zip(after.logprobs, expected, after.episode.loss_mask, strict=True)
    assert all(not k or abs(a - b) < 1e-4 for a, b, k in pairs)


def test_adapters_are_part_of_the_policy():
    from peft import LoraConfig, get_peft_model

    template = ragged_template()
    model = tiny_llama(len(template.tokenizer), spread=0.15)
    lora = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.5, target_modules="all-linear")
    )
    torch.manual_seed(1)
    for name, weight in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    assert find_llama(lora) is not None
    quick, plain = (play(lora.train(), template, count=4, fused=fused) for fused in (True, False))
    assert ids_of(quick) == ids_of(plain)
    for one in quick:
        expected = full_logprobs(lora.eval(), one.episode)
        pairs = zip(one.logprobs, expected, one.episode.loss_mask, strict=True)
        assert all(not k or abs(a - b) < 1e-5 for a, b, k in pairs)
    with lora.disable_adapter():
        assert ids_of(play(lora, template, count=4)) != ids_of(quick)


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        ("gpt2", "sdpa"),
        ("gpt2", "eager"),
        ("qwen2", "sdpa"),
        ("qwen3", "eager"),
        ("mistral", "sdpa"),
        ("gemma2", "eager"),
    ],
)
def test_other_architectures_go_through_their_own_forward(kind, attention):
    import transformers

    template = ragged_template()
    size = {"vocab_size": len(template.tokenizer), "initializer_range": 0.1}
    if kind == "gpt2":
        size |= {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 512}
    else:
        size |= {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
        size |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = transformers.AutoConfig.for_model(kind, **size)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    assert find_llama(model) is None
    for one in play(model.eval(), template):
        expected = full_logprobs(model, one.episode)
        pairs = zip(one.logprobs, expected, one.episode.loss_mask, strict=True)
        assert all(not k or abs(a - b) < 1e-5 for a, b, k in pairs)


def test_attention_without_an_explicit_mask_is_refused():
    model = tiny_llama(50)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UserError, match="attn_implementation 'flash_attention_2'"):
        ForwardRunner(model)


def test_sliding_windows_shorter_than_the_episode_are_refused():
    import transformers

    config = transformers.Gemma2Config(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=40,
    )
    with pytest.raises(UserError, match="window of 40 tokens"):
        play(transformers.Gemma2ForCausalLM(config), count=2)


def test_buffers_grow_without_losing_what_they_hold():
    model = tiny_llama(97).eval()
    prompt = [(5 * i) % 97 for i in range(30)]
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([prompt])).logits[0, -1]
        for runner in (ForwardRunner(model), LlamaRunner(model)):
            runner.reserve(1, 3)
            runner.encode([Chunk(0, 0, prompt[:3])])
            runner.reserve(3, 10)
            runner.encode([Chunk(0, 3, prompt[3:12]), Chunk(2, 0, [1, 2])])
            runner.reserve(3, 400)
            runner.copy(0, 1, 12)
            found = runner.encode([Chunk(1, 12, prompt[12:])])[0]
            assert torch.allclose(found, expected, atol=1e-4)


def test_large_prefill_is_cut_into_parts_with_equal_results(monkeypatch):
    from ragen2_cli.rollout.policies import forward_runner

    template = ragged_template()
    model = tiny_llama(len(template.tokenizer))
    whole = ids_of(play(model, template, fused=False))
    monkeypatch.setattr(forward_runner, "TOKENS_PER_FORWARD", 60)
    assert ids_of(play(model, template, fused=False)) == whole
