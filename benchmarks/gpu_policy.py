"""A policy in the shape of Qwen2.5-0.5B that nobody trained, for checks of a GPU without a network.

Weights are random but for the embedding and the head, which form a chain of tokens: after the
opening think tag a few words, then an answer with one action. So its episodes parse, groups of
rollouts differ in reward, and there is something to filter and to train on. The tokenizer is the
embedded policy's; ids beyond it are never sampled. The head is not tied to the embedding.
"""

import shutil
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SIZES = {
    "full": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
    },
}
SURE = 16.0
"""The logit of a token that may follow; all others together stay a few percent."""
WORDS = 12
ACTIONS = ("Left", "Down", "Right", "Up")


def build(folder: Path, size: str) -> Path:
    """Write model and tokenizer; the same weights on every call.

    Args:
        folder: Where to; made new.
        size: A key of ``SIZES``.
    """
    from ragen2_cli.training.models import STYLE_KEY, embedded_folder

    torch.manual_seed(0)
    config = Qwen2Config(
        **SIZES[size],
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        **{STYLE_KEY: "compact"},
    )
    model = Qwen2ForCausalLM(config)
    source = embedded_folder()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    _chain(model, tokenizer)
    model.to(torch.bfloat16 if size == "full" else torch.float32)
    model.save_pretrained(folder, safe_serialization=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    return folder


def _chain(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Set embedding and head so that the current token decides which ones may follow."""
    opening, closing, answer, end = (
        tokenizer.convert_tokens_to_ids(tag)
        for tag in ("<think>", "</think>", "<answer>", "</answer>")
    )
    actions = [tokenizer.convert_tokens_to_ids(action) for action in ACTIONS]
    words = list(range(opening - WORDS, opening))
    after = {
        **{token: [*words, closing, closing] for token in (opening, *words)},
        closing: [answer],
        answer: actions,
        **{action: [end] for action in actions},
    }
    embedding = model.get_input_embeddings().weight.data
    head = model.get_output_embeddings().weight.data
    embedding.normal_()
    # The last normalization makes every state as long as the root of the width.
    width = embedding.shape[1] ** 0.5
    head.zero_()
    for token, followers in after.items():
        direction = embedding[token] / embedding[token].norm()
        head -= 0.3 * SURE / width * direction
        for follower in set(followers):
            head[follower] += 1.3 * SURE / width * direction
