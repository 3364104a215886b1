"""Any transformers language model with softmax attention, through its own ``forward``.

The cache is one preallocated buffer a layer in which every conversation is a contiguous row;
a step writes its tokens in place and attends to a view of the filled columns.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from ragen2_cli.errors import UserError
from ragen2_cli.rollout.policies.runner import Chunk, grown

TOKENS_PER_FORWARD = 8192
_ATTENTION = ("sdpa", "eager")
_LAYER_TYPES = {"full_attention", "sliding_attention"}


class _Address:
    """Size of the buffers, and which rows and columns the next forward reads and writes.

    ``leading`` says that the rows are the first ones, which can be read without a copy.
    """

    def __init__(self) -> None:
        self.rows = self.columns = self.span = 0
        self.rows_C = self.columns_C_L = torch.empty(0)
        self.leading = False


class _RowLayer(CacheLayerMixin):
    """One layer's keys and values, each (rows, heads, columns, size), allocated at first use."""

    def __init__(self, address: _Address) -> None:
        super().__init__()
        self._address = address
        self.buffers: tuple[torch.Tensor, ...] = ()

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate zeros: columns that were never written are masked, but must be finite."""
        where = self._address
        self.buffers = tuple(
            states.new_zeros(where.rows, states.shape[1], where.columns, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def grow(self) -> None:
        """Follow the address to larger buffers."""
        if self.is_initialized:
            old = self.buffers
            self.lazy_initialization(old[0], old[1])
            for buffer, kept in zip(self.buffers, old, strict=True):
                buffer[: kept.shape[0], :, : kept.shape[2]] = kept

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new states in place and return the rows' filled columns."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        where, count = self._address, key_states.shape[0]
        filled = []
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[where.rows_C[:, None], :, where.columns_C_L] = states.transpose(1, 2)
            rows = buffer[:count] if where.leading else buffer[where.rows_C]
            filled.append(rows[:, :, : where.span])
        return filled[0], filled[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the key columns of the next forward and their offset."""
        return self._address.span, 0

    def get_seq_length(self) -> int:
        """Return the filled columns; positions are always given, so nothing depends on it."""
        return self._address.span

    def get_max_length(self) -> int:
        """Return -1: no maximum."""
        return -1

    get_max_cache_shape = get_max_length


class ForwardRunner:
    """Runs a model through its own ``forward``; see :class:`Runner`.

    Args:
        model: The model, adapter wrapper included.

    Raises:
        UserError: An attention implementation that takes no explicit mask, layers that are no
            softmax attention, or (later) an episode longer than a sliding window.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        base = next(part for part in model.modules() if isinstance(part, PreTrainedModel))
        config = base.config.get_text_config()
        if config._attn_implementation not in _ATTENTION:
            raise UserError(
                f"attn_implementation '{config._attn_implementation}' cannot decode ragged "
                f"batches: load the model with one of {', '.join(_ATTENTION)}"
            )
        self._window = _window(config)
        accepted = inspect.signature(base.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        self._keep = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._additive = config._attn_implementation == "eager"
        self._model = model
        self._dtype = base.dtype
        self.vocabulary = base.get_output_embeddings().weight.shape[0]
        self.device = base.device
        self._address = _Address()
        self._layers = [_RowLayer(self._address) for _ in range(config.num_hidden_layers)]
        self._cache = Cache(layers=list(self._layers))

    def reserve(self, rows: int, columns: int) -> None:
        """Make room, one column more than asked: padding is written to the last one."""
        where = self._address
        if self._window is not None and columns > self._window:
            raise UserError(
                f"an episode outgrew the model's attention window of {self._window} tokens: "
                "lower max_new_tokens or set context_limit to the window"
            )
        if rows <= where.rows and columns < where.columns:
            return
        where.rows, where.columns = max(rows, where.rows), grown(columns + 1, where.columns)
        for layer in self._layers:
            layer.grow()

    def encode(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Append chunks, padded on the left, in parts of a bounded number of tokens."""
        longest = max(len(chunk.ids) for chunk in chunks)
        size = max(1, TOKENS_PER_FORWARD // longest)
        parts = [chunks[at : at + size] for at in range(0, len(chunks), size)]
        return torch.cat([self._encode_part(part) for part in parts])

    def decode(self, columns_R: np.ndarray, ids_R: torch.Tensor) -> torch.Tensor:
        """Append one token to each of the first R rows."""
        self.reserve(0, int(columns_R.max()) + 1)
        where = self._address
        where.leading = True
        where.rows_C = torch.arange(len(columns_R), device=self.device)
        where.columns_C_L = torch.from_numpy(columns_R).to(self.device)[:, None]
        where.span = int(columns_R.max()) + 1
        return self._forward(ids_R[:, None], where.columns_C_L)

    def copy(self, source: int, target: int, columns: int) -> None:
        """Copy a row's first columns to another row."""
        for layer in self._layers:
            for buffer in layer.buffers:
                buffer[target, :, :columns] = buffer[source, :, :columns]

    def _encode_part(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        longest = max(len(chunk.ids) for chunk in chunks)
        span = max(chunk.start + len(chunk.ids) for chunk in chunks)
        self.reserve(0, span)
        where = self._address
        ids = np.zeros((len(chunks), longest), dtype=np.int64)
        positions = np.zeros_like(ids)
        columns = np.full_like(ids, where.columns - 1)
        for at, chunk in enumerate(chunks):
            length = len(chunk.ids)
            ids[at, -length:] = chunk.ids
            filled = np.arange(chunk.start, chunk.start + length)
            positions[at, -length:] = columns[at, -length:] = filled
        where.leading, where.span = False, span
        where.rows_C = torch.tensor([chunk.row for chunk in chunks], device=self.device)
        where.columns_C_L = torch.from_numpy(columns).to(self.device)
        ids_C_L = torch.from_numpy(ids).to(self.device)
        return self._forward(ids_C_L, torch.from_numpy(positions).to(self.device))

    def _forward(self, ids_C_L: torch.Tensor, positions_C_L: torch.Tensor) -> torch.Tensor:
        """Return the logits after the last token of each row; a token sees what is before it."""
        keys = torch.arange(self._address.span, device=self.device)
        mask = (keys <= positions_C_L[:, :, None])[:, None]
        if self._additive:
            hidden = torch.zeros(mask.shape, dtype=self._dtype, device=self.device)
            mask = hidden.masked_fill_(~mask, torch.finfo(self._dtype).min)
        output = self._model(
            input_ids=ids_C_L,
            attention_mask=mask,
            position_ids=positions_C_L,
            use_cache=True,
            **{self._cache_argument: self._cache},
            **self._keep,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits


def _window(config: PreTrainedConfig) -> int | None:
    """Return the length up to which every layer sees the whole context; None for any length."""
    settings = config.to_dict()
    types = set(settings.get("layer_types") or ())
    if types - _LAYER_TYPES:
        raise UserError(
            f"{config.model_type}: rollouts need softmax attention in every layer, not "
            f"{', '.join(sorted(types - _LAYER_TYPES))}; choose another model"
        )
    if settings.get("layer_types") is not None and "sliding_attention" not in types:
        return None
    window: int | None = settings.get("sliding_window")
    return window
