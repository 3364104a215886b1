"""A small Llama without the overhead: fused weights, in-place cache, no module calls.

With a few hundred thousand parameters a decoding step is bound by the number of operations, not
by arithmetic. This runner does the same mathematics as ``LlamaForCausalLM`` in about 15 calls a
layer: query, key and value in one product, gate and up in one, norm weights and adapters folded
in, rotary embedding and cache written in place. Chunks of different lengths are packed without
padding, and only their last tokens pass through the last layer's feed-forward part.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional
from transformers import LlamaForCausalLM

from ragen2_cli.rollout.policies.runner import Chunk, grown

LARGEST = 20_000_000
_ROPE_TYPES = ("default", "linear", "llama3")


class _Layer(NamedTuple):
    """Fused weights of one layer, inputs first: (in, out), and biases (out,)."""

    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor
    down: torch.Tensor
    down_bias: torch.Tensor


def find_llama(model: torch.nn.Module) -> LlamaForCausalLM | None:
    """Return the Llama inside a model or adapter wrapper when this runner can stand in for it.

    It can for single-precision Llamas of at most ``LARGEST`` parameters with a position encoding
    that does not change with length; otherwise None.
    """
    base = next((part for part in model.modules() if isinstance(part, LlamaForCausalLM)), None)
    if base is None or type(base) is not LlamaForCausalLM:
        return None
    rope = base.config.rope_parameters or {}
    small = base.num_parameters() <= LARGEST and base.dtype in (torch.float32, torch.float64)
    whole_heads = rope.get("partial_rotary_factor") in (None, 1.0)
    static = str(rope.get("rope_type")) in _ROPE_TYPES and whole_heads
    plain = static and base.config.hidden_act == "silu"
    return base if small and plain else None


class LlamaRunner:
    """Runs a small Llama; see the module docstring and :class:`Runner`.

    Args:
        base: The Llama, adapters in place. Its modules are asked for their effective matrices
            (the answer to the identity), so any adapter that is linear is included.
    """

    def __init__(self, base: LlamaForCausalLM) -> None:
        config = base.config
        self._base = base
        self.vocabulary = config.vocab_size
        self.device = base.device
        self._dtype = base.dtype
        attention = base.model.layers[0].self_attn
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = self._heads // attention.num_key_value_groups
        self._size: int = attention.head_dim
        self._eps = config.rms_norm_eps
        self._rows = self._columns = 0
        self._cache = self._bias = torch.empty(0)
        self.refresh()

    def refresh(self) -> None:
        """Read and fuse the model's weights."""
        model, width = self._base.model, self._base.config.hidden_size
        self._layers = []
        for layer in model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
            self._layers.append(
                _Layer(
                    *self._fuse(qkv, width, layer.input_layernorm.weight),
                    *self._fuse((attention.o_proj,), self._heads * self._size),
                    *self._fuse(
                        (mlp.gate_proj, mlp.up_proj), width, layer.post_attention_layernorm.weight
                    ),
                    *self._fuse((mlp.down_proj,), self._base.config.intermediate_size),
                )
            )
        self._embedding = model.embed_tokens(torch.arange(self.vocabulary, device=self.device))
        self._head, self._head_bias = self._fuse((self._base.lm_head,), width, model.norm.weight)

    def reserve(self, rows: int, columns: int) -> None:
        """Make room; what is cached stays."""
        if rows <= self._rows and columns <= self._columns:
            return
        old, kept_rows, kept = self._cache, self._rows, self._columns
        self._rows, self._columns = max(rows, self._rows), grown(columns, self._columns)
        shape = (len(self._layers), self._rows, 2, self._kv_heads, self._columns, self._size)
        self._cache = torch.zeros(shape, dtype=self._dtype, device=self.device)
        bias = torch.full((self._rows, self._columns), -torch.inf, dtype=self._dtype)
        bias = bias.to(self.device)
        if kept_rows:
            self._cache[:, :kept_rows, :, :, :kept] = old
            bias[:kept_rows, :kept] = self._bias
        self._bias = bias
        self._row_index = torch.arange(self._rows, device=self.device)
        positions = torch.arange(self._columns, device=self.device)[None]
        cos, sin = self._base.model.rotary_emb(self._embedding[:1], position_ids=positions)
        half = self._size // 2
        self._cos_C_1_D = cos[0, :, None]
        self._sin_C_1_D = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)[:, None]
        self._causal = torch.ones(
            self._columns, self._columns, dtype=torch.bool, device=self.device
        ).tril_()

    def encode(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Append chunks, packed into one sequence without padding."""
        self.reserve(self._rows, max(chunk.start + len(chunk.ids) for chunk in chunks))
        lengths = [len(chunk.ids) for chunk in chunks]
        ends = np.cumsum(lengths)
        ids = np.concatenate([np.asarray(chunk.ids, dtype=np.int64) for chunk in chunks])
        rows = np.repeat([chunk.row for chunk in chunks], lengths)
        columns = np.concatenate([np.arange(c.start, c.start + len(c.ids)) for c in chunks])
        ids_T, rows_T, columns_T, last_C = (
            torch.from_numpy(array).to(self.device) for array in (ids, rows, columns, ends - 1)
        )
        for chunk in chunks:
            end = chunk.start + len(chunk.ids)
            self._bias[chunk.row, :end] = 0
            self._bias[chunk.row, end:] = -torch.inf
        cos, sin = self._cos_C_1_D[columns_T], self._sin_C_1_D[columns_T]
        x = self._embedding[ids_T]
        for index, layer in enumerate(self._layers):
            qkv = self._qkv(layer, x, cos, sin)
            cache = self._cache[index]
            cache[rows_T, :, :, columns_T] = qkv[:, self._heads :].unflatten(1, (2, -1))
            queries = qkv[:, : self._heads]
            if index == len(self._layers) - 1:
                x, queries = x[last_C], queries[last_C]
                parts = self._attend(cache, chunks, queries.split(1), only_last=True)
            else:
                parts = self._attend(cache, chunks, queries.split(lengths), only_last=False)
            x = self._finish(layer, x, torch.cat(parts))
        return self._logits(x)

    def decode(self, columns_R: np.ndarray, ids_R: torch.Tensor) -> torch.Tensor:
        """Append one token to each of the first R rows."""
        count, span = len(columns_R), int(columns_R.max()) + 1
        self.reserve(self._rows, span)
        rows_R = self._row_index[:count]
        columns = torch.from_numpy(columns_R).to(self.device)
        self._bias[rows_R, columns] = 0
        bias = self._bias[:count, None, None, :span]
        cos, sin = self._cos_C_1_D[columns], self._sin_C_1_D[columns]
        x = self._embedding[ids_R]
        grouped = (count, self._kv_heads, self._heads // self._kv_heads, self._size)
        for index, layer in enumerate(self._layers):
            qkv = self._qkv(layer, x, cos, sin)
            cache = self._cache[index]
            cache[rows_R, :, :, columns] = qkv[:, self._heads :].unflatten(1, (2, -1))
            keys, values = cache[:count, 0, :, :span], cache[:count, 1, :, :span]
            queries = qkv[:, : self._heads].reshape(grouped)
            mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
            x = self._finish(layer, x, mixed.reshape(count, -1))
        return self._logits(x)

    def copy(self, source: int, target: int, columns: int) -> None:
        """Copy a row's first columns to another row."""
        self._cache[:, target, :, :, :columns] = self._cache[:, source, :, :, :columns]
        self._bias[target, :columns] = 0
        self._bias[target, columns:] = -torch.inf

    def _fuse(
        self,
        modules: Sequence[torch.nn.Module],
        width: int,
        norm_weight: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the matrix (in, out) and bias of modules side by side, behind a norm's weight."""
        eye = torch.eye(width, dtype=self._dtype, device=self.device)
        biases = [module(eye.new_zeros(1, width)) for module in modules]
        matrices = [module(eye) - bias for module, bias in zip(modules, biases, strict=True)]
        matrix, bias = torch.cat(matrices, 1), torch.cat(biases, 1)[0]
        return (matrix if norm_weight is None else norm_weight[:, None] * matrix), bias

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True).add_(self._eps))

    def _qkv(
        self, layer: _Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Return queries, keys and values (T, heads, size), the first two rotated in place."""
        qkv = torch.addmm(layer.qkv_bias, self._norm(x), layer.qkv).unflatten(1, (-1, self._size))
        rotated = qkv[:, : self._heads + self._kv_heads]
        swapped = rotated.roll(self._size // 2, -1)
        rotated.mul_(cos).addcmul_(swapped, sin)
        return qkv

    def _attend(
        self,
        cache: torch.Tensor,
        chunks: Sequence[Chunk],
        queries: Sequence[torch.Tensor],
        *,
        only_last: bool,
    ) -> list[torch.Tensor]:
        """Attend chunk by chunk; each result is (tokens, heads * size)."""
        results = []
        for chunk, part in zip(chunks, queries, strict=True):
            end = chunk.start + len(chunk.ids)
            mixed = functional.scaled_dot_product_attention(
                part.transpose(0, 1)[None],
                cache[chunk.row, None, 0, :, :end],
                cache[chunk.row, None, 1, :, :end],
                attn_mask=None if only_last else self._causal[chunk.start : end, :end],
                enable_gqa=self._kv_heads != self._heads,
            )
            results.append(mixed[0].transpose(0, 1).flatten(1))
        return results

    def _finish(self, layer: _Layer, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Return the layer's output after attention: projection, residuals, feed-forward."""
        x = torch.addmm(x + layer.out_bias, mixed, layer.out)
        gate, up = torch.addmm(layer.gate_up_bias, self._norm(x), layer.gate_up).chunk(2, -1)
        return torch.addmm(x + layer.down_bias, functional.silu(gate).mul_(up), layer.down)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self._head_bias, self._norm(x), self._head)
