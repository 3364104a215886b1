"""The embedded policy's tokenizer: a small byte-complete BPE.

Words are pieces with their leading space, digits and grid symbols stand alone, so that a cell of
a board is one token at a fixed place. All 256 bytes are in the vocabulary: any text round-trips.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
PAD, EOS = "<pad>", "<eos>"
# Every text as it is: a user's ends with a line break, an assistant's with the end marker.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{{ eos_token if message['role'] == 'assistant' else '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<think>{% endif %}"
)
_PIECES = r" ?\|\|| ?[A-Z]?[a-z]+| ?[0-9A-Z]\n?|[^\n]\n?|\n"


def build_tokenizer(texts: Iterable[str], size: int = 512) -> "PreTrainedTokenizerFast":
    """Train the tokenizer on texts.

    Args:
        texts: What the pieces are learned from; the same texts give the same tokenizer.
        size: Upper bound of the vocabulary, added tokens not counted; at least 258.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, trainers
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = Sequence(
        [Split(Regex(_PIECES), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            special_tokens=[PAD, EOS],
            initial_alphabet=sorted(ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    bpe.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=EOS,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        padding_side="left",
    )
