"""Policies of known mutual information, and episodes they sampled, for tests of the diagnosis.

Vocabulary: 8 prompt words, 64 reasoning words, tags. The *dependent* policy says, after prompt p,
words 8p .. 8p+7 with equal probability; the *template* policy says words 0 .. 7 after any prompt.
Both have a token entropy of log 8; their mutual information per token is close to log 8 (the own
column alone gives the words any probability) and 0.
"""

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import CausalLMOutputWithPast

from ragen2_cli.records import Episode, Turn

PROMPTS, WORDS_EACH = 8, 8
SPECIAL = ["<pad>", "<eos>", "<think>", "</think>", "<answer>", "</answer>"]
TOKENS = (
    SPECIAL
    + [f"p{i}" for i in range(PROMPTS)]
    + [f"w{i}" for i in range(PROMPTS * WORDS_EACH)]
    + ["Up", "Down"]
)
IDS = {token: i for i, token in enumerate(TOKENS)}
FIRST_WORD = IDS["w0"]


def tokenizer() -> PreTrainedTokenizerFast:
    """One id a word; tags are added tokens, as in the embedded policy."""
    core = Tokenizer(models.WordLevel(dict(IDS), unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    fast.add_tokens(SPECIAL[2:])
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}<think>"
    return fast


class PlantedConfig(PreTrainedConfig):
    model_type = "planted"
    vocab_size = len(TOKENS)
    max_position_embeddings = 4096
    num_hidden_layers = 1


class Planted(PreTrainedModel):
    """Logits depend on the first token of the context (dependent) or on nothing (template)."""

    config_class = PlantedConfig

    def __init__(self, dependent: bool):
        super().__init__(PlantedConfig())
        table = torch.full((len(TOKENS), len(TOKENS)), -9.0)
        for prompt in range(PROMPTS):
            start = FIRST_WORD + WORDS_EACH * (prompt if dependent else 0)
            table[IDS[f"p{prompt}"], start : start + WORDS_EACH] = 5.0
        self.table = torch.nn.Parameter(table)

    def forward(
        self,
        input_ids,
        attention_mask=None,
        use_cache=None,
        cache=None,
        logits_to_keep=0,
        **kwargs,
    ):
        keys = input_ids[:, None, :, None].float()
        if cache is not None:
            keys, _ = cache.update(keys, keys, 0)
        first = keys[:, 0, 0, 0].long()
        logits = self.table[first][:, None, :].repeat(1, input_ids.shape[1], 1)
        return CausalLMOutputWithPast(logits=logits[:, -logits_to_keep:])


def sample(dependent: bool, step: int = 1, group_size: int = 8, length: int = 10, seed: int = 0):
    """Episodes that the policy would sample: 8 prompts x ``group_size``, one turn each."""
    rng = np.random.default_rng([seed, step])
    episodes = []
    for prompt in range(PROMPTS):
        for rollout in range(group_size):
            start = WORDS_EACH * (prompt if dependent else 0)
            words = [f"w{start + i}" for i in rng.integers(0, WORDS_EACH, length)]
            answer = ["Up", "Down"][rng.integers(2)]
            reward = float(rng.random() < 0.3)
            completion = [*words, "</think>", "<answer>", answer, "</answer>"]
            episodes.append(episode(step, prompt, rollout, words, answer, completion, reward))
    return episodes


def episode(step, prompt, rollout, words, answer, completion, reward) -> Episode:
    turn = Turn(f"p{prompt}", " ".join(words), answer, (answer,), reward, 0.0, True)
    return Episode(
        step=step,
        group=prompt,
        rollout=rollout,
        seed=prompt,
        prompt=f"p{prompt}",
        turns=(turn,),
        episode_return=reward,
        outcome=reward,
        success=reward > 0,
        status="success" if reward > 0 else "failure",
        prompt_ids=(IDS[f"p{prompt}"], IDS["<think>"]),
        completion_ids=tuple(IDS[token] for token in completion),
        loss_mask=(1,) * len(completion),
        turn_spans=((0, len(completion)),),
        advantage=0.0,
        kept=True,
    )


def trl_rows(episodes: list[Episode]) -> dict[str, list]:
    """The same episodes as the columns of a TRL completions table."""
    return {
        "step": [e.step for e in episodes],
        "prompt": [e.prompt for e in episodes],
        "completion": [" ".join(TOKENS[i] for i in e.completion_ids) for e in episodes],
        "success_reward": [e.episode_return for e in episodes],
        "advantage": [0.0 for _ in episodes],
    }
