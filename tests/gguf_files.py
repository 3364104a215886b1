"""A GGUF file of a random one-layer Llama with 64 tokens, complete or lacking something."""

from pathlib import Path

import numpy as np

VOCABULARY, WIDTH, INNER = 64, 16, 32
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write(path: Path, *, template: bool = True, pad: bool = True, end: bool = True) -> Path:
    """Write the file; leave out the chat template, the pad or the end-of-text token on request."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    letters = [chr(ord("a") + index) for index in range(26)]
    signs = [chr(ord("!") + index) for index in range(VOCABULARY - 30)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<pad>", "<eos>", "<bos>", *letters, "ab", *signs])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(2)
    if end:
        writer.add_eos_token_id(1)
    if pad:
        writer.add_pad_token_id(0)
    if template:
        writer.add_chat_template(TEMPLATE)
    generator = np.random.default_rng(0)
    shapes = {
        "token_embd": (VOCABULARY, WIDTH),
        "output": (VOCABULARY, WIDTH),
        "output_norm": (WIDTH,),
        **{f"blk.0.attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{name}": (INNER, WIDTH) for name in ("gate", "up")},
        "blk.0.ffn_down": (WIDTH, INNER),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.ffn_norm": (WIDTH,),
    }
    for name, shape in shapes.items():
        values = generator.normal(scale=0.1, size=shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
