"""Small tokenizers, models and a talking game for the rollout tests; nothing is downloaded."""

from dataclasses import dataclass, field

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
# Drops what stands before </think> in earlier assistant turns, as reasoning models' templates do.
FORGETFUL = CHATML.replace("{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}")
SPECIALS = {
    CHATML: ("<|im_end|>", ["<|im_start|>", "<|im_end|>"]),
    FORGETFUL: ("<|im_end|>", ["<|im_start|>", "<|im_end|>"]),
    LLAMA3: ("<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
    PLAIN: ("<eos>", ["<eos>"]),
}
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]


def byte_tokenizer(template=CHATML, *, tags=True, specials=None):
    """Return a tokenizer with one token per byte, the template's markers, and the four tags."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    eos, markers = specials or SPECIALS[template]
    core.add_special_tokens([AddedToken(m, special=True) for m in ["<pad>", "<s>", *markers]])
    if tags:
        core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=eos,
        pad_token="<pad>",
        bos_token="<s>",
        chat_template=template,
    )


def tiny_llama(vocabulary, *, dtype="float32", kv_heads=2, seed=0, spread=0.3, **options):
    """Return a random Llama of width 32 with two layers whose samples are far from uniform."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2048,
        initializer_range=spread,
        **{"tie_word_embeddings": True, **options},
    )
    return LlamaForCausalLM(config).to(getattr(torch, dtype))


@dataclass
class TalkingSession:
    """Answers with text of changing length and ends after a fixed number of turns."""

    name: str
    last_turn: int
    silent: bool = False
    concurrent: bool = False
    done: bool = False
    status: str = ""
    turns: tuple = ()
    submitted: list = field(default_factory=list)
    success: bool = False
    episode_return: float | None = 0.0
    outcome: float | None = 0.0

    @property
    def messages(self):
        return [{"role": "user", "content": f"Board {self.name}: " + "ab" * len(self.name)}]

    def submit(self, completion):
        assert not self.done
        self.submitted.append(completion)
        if len(self.submitted) == self.last_turn:
            self.abort("turn_cap")
            return None
        return f"{self.name} saw {len(completion)} √" + "." * (len(completion) % 7)

    def abort(self, status):
        assert not self.done
        self.done, self.status = True, status
