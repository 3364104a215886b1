"""The cross log-probability matrix: every reasoning after every prompt, without the waste.

The obvious way runs N x P full sequences and keeps the logits of each. Here a prompt is encoded
once and its key-value cache is read (never copied as a whole) by all reasonings; reasonings and
prompts that repeat are scored once; batches are sorted by length and sized by a byte budget; a
batch's logits are reduced to one number per token before the next batch starts.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ragen2_cli.errors import UserError
from ragen2_cli.training.models import context_length

CPU_BUDGET = 4 * 2**20
CPU_ROWS = 4
ACCELERATOR_BUDGET = 2 * 2**30
_LOGIT_COPIES = 3
"""Logits, their float32 form and the exponentials inside logsumexp live at the same time."""

Ids = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class CrossScores:
    """What scoring N reasonings under P prompts gave and cost.

    Attributes:
        sum_logprobs_N_P: Summed token log-probabilities, float64; 0 for an empty reasoning.
        lengths_N: Tokens of each reasoning.
        temperature: By which the logits were divided.
        distinct_reasonings: Reasonings that were really scored.
        distinct_prompts: Prompts that were really encoded.
        forward_tokens: Tokens that went through the model, padding included.
        reused_prompts: False where the model's cache cannot be shared (sliding windows, linear
            attention), so that full sequences were scored.
    """

    sum_logprobs_N_P: NDArray[np.float64]
    lengths_N: NDArray[np.int64]
    temperature: float
    distinct_reasonings: int
    distinct_prompts: int
    forward_tokens: int
    reused_prompts: bool


class _SharedPrefix(DynamicLayer):
    """A cache layer that lends one encoded prompt to any batch and stores nothing new."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return prompt and new states joined; the layer itself keeps the prompt only."""
        rows = key_states.shape[0]
        return (
            torch.cat([self.keys.expand(rows, -1, -1, -1), key_states], dim=-2),
            torch.cat([self.values.expand(rows, -1, -1, -1), value_states], dim=-2),
        )


def cross_logprobs(
    model: Any,
    prompts_P: Sequence[Sequence[int]],
    reasonings_N: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    byte_budget: int | None = None,
) -> CrossScores:
    """Return ``L[i, j] = log p(reasoning i | prompt j)``, teacher-forced, summed over tokens.

    The model is a causal language model, with or without PEFT adapters; it is put into evaluation
    mode for the call and back into its own afterwards; no gradient, no random number.

    Args:
        model: The policy.
        prompts_P: Token ids of everything before the reasoning.
        reasonings_N: Token ids of each reasoning; may be empty.
        temperature: Divides the logits; the softmax is over the whole vocabulary.
        byte_budget: Bound on one batch's logits and attention states, in bytes; a single row may
            exceed it. None: 2 GiB on an accelerator; on a CPU, where larger batches are not faster,
            4 MiB or four rows, whichever is more.

    Raises:
        UserError: An empty prompt, or a sequence longer than the model's context.
        ValueError: A temperature or a budget that is not positive.
    """
    if temperature <= 0 or (byte_budget is not None and byte_budget <= 0):
        raise ValueError("temperature and byte_budget must be positive")
    prompts = [tuple(prompt) for prompt in prompts_P]
    reasonings = [tuple(reasoning) for reasoning in reasonings_N]
    rows = {r: i for i, r in enumerate(sorted({r for r in reasonings if r}, key=_by_length))}
    columns = {prompt: j for j, prompt in enumerate(dict.fromkeys(prompts))}
    _check_lengths(model, list(columns), list(rows))
    scores = np.zeros((len(rows) + 1, len(columns)))
    scorer = _Scorer(model, temperature, byte_budget)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for prompt, column in columns.items():
                scores[: len(rows), column] = scorer.column(prompt, list(rows))
    finally:
        model.train(was_training)
    row_N = [rows[reasoning] if reasoning else len(rows) for reasoning in reasonings]
    column_P = [columns[prompt] for prompt in prompts]
    return CrossScores(
        sum_logprobs_N_P=scores[np.ix_(row_N, column_P)],
        lengths_N=np.array([len(reasoning) for reasoning in reasonings], dtype=np.int64),
        temperature=temperature,
        distinct_reasonings=len(rows),
        distinct_prompts=len(columns),
        forward_tokens=scorer.forward_tokens,
        reused_prompts=scorer.reused_prompts,
    )


def _by_length(ids: Ids) -> tuple[int, Ids]:
    return len(ids), ids


def _check_lengths(model: Any, prompts: list[Ids], reasonings: list[Ids]) -> None:
    if any(not prompt for prompt in prompts):
        raise UserError("cannot score after an empty prompt: every prompt needs one token or more")
    limit = context_length(model) or math.inf
    longest = max(map(len, prompts), default=0) + max(map(len, reasonings), default=0)
    if longest > limit:
        raise UserError(
            f"a prompt and a reasoning have {longest} tokens together, the model's context is "
            f"{limit}: leave out the longest rows or take a model with a longer context"
        )


class _Scorer:
    """Scores all reasonings after one prompt at a time."""

    def __init__(self, model: Any, temperature: float, byte_budget: int | None) -> None:
        self._model = model
        self._temperature = temperature
        self._budget = byte_budget
        base = next(part for part in model.modules() if isinstance(part, PreTrainedModel))
        accepted = inspect.signature(base.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        self._config, self._dtype, self._device = base.config, base.dtype, base.device
        self._takes_mask = self._config.get_text_config()._attn_implementation in ("sdpa", "eager")
        self.forward_tokens = 0
        self.reused_prompts = True

    def column(self, prompt: Ids, rows: list[Ids]) -> NDArray[np.float64]:
        """Return the log-probability of each row (sorted by length) after the prompt."""
        ids = torch.tensor([prompt], device=self._device)
        self.forward_tokens += len(prompt)
        cache = DynamicCache(config=self._config)
        output = self._model(
            input_ids=ids, use_cache=True, logits_to_keep=1, **{self._cache_argument: cache}
        )
        first = self._log_softmax_denominator(output.logits)
        first_logits = output.logits[0, -1].float() / self._temperature
        layers = cache.layers
        self.reused_prompts = all(type(layer) is DynamicLayer for layer in layers)
        result = np.empty(len(rows))
        for batch in self._batches(rows, len(prompt), layers[0]):
            targets, mask = _padded([rows[i] for i in batch], self._device)
            totals = (first_logits[targets[:, 0]] - first[0, -1]).double()
            if targets.shape[1] > 1:
                logits = self._continue(ids, layers, targets)
                chosen = logits.gather(-1, targets[:, 1:, None])[..., 0].float()
                chosen = chosen / self._temperature - self._log_softmax_denominator(logits)
                # Padding is set to zero rather than multiplied: 0 x -inf would be NaN.
                totals += torch.where(mask[:, 1:], chosen, 0.0).double().sum(dim=1)
            result[batch] = totals.cpu().numpy()
        return result

    def _continue(self, ids: torch.Tensor, layers: Any, targets: torch.Tensor) -> torch.Tensor:
        """Return the logits that predict ``targets[:, 1:]``."""
        count, width = targets.shape[0], targets.shape[1] - 1
        if not self.reused_prompts:
            full = torch.cat([ids.expand(count, -1), targets[:, :-1]], dim=1)
            self.forward_tokens += full.numel()
            output = self._model(input_ids=full, use_cache=False, logits_to_keep=width)
        else:
            cache = DynamicCache()
            cache.layers = [_SharedPrefix(layer.keys, layer.values) for layer in layers]
            self.forward_tokens += count * width
            output = self._model(
                input_ids=targets[:, :-1],
                attention_mask=self._mask(ids.shape[1], width),
                use_cache=True,
                **{self._cache_argument: cache},
            )
        return output.logits

    def _bound(self, row_size: int) -> int:
        if self._budget is not None:
            return self._budget
        on_cpu = self._device.type == "cpu"
        return max(CPU_BUDGET, CPU_ROWS * row_size) if on_cpu else ACCELERATOR_BUDGET

    def _mask(self, prompt_length: int, width: int) -> torch.Tensor | None:
        """Return one additive mask for all rows of a batch; None lets the model build its own."""
        if not self._takes_mask:
            return None
        hidden = torch.full(
            (width, prompt_length + width),
            torch.finfo(self._dtype).min,
            dtype=self._dtype,
            device=self._device,
        )
        return hidden.triu_(prompt_length + 1)[None, None]

    def _log_softmax_denominator(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(logits.float() / self._temperature, dim=-1)

    def _batches(self, rows: list[Ids], prompt_length: int, layer: Any) -> Iterator[list[int]]:
        """Yield consecutive indices whose logits and attention states fit the budget."""
        states = layer.keys.shape[1] * layer.keys.shape[-1] * 2 * layer.keys.element_size()
        per_token = self._config.get_text_config().vocab_size * 4 * _LOGIT_COPIES
        batch: list[int] = []
        for index, row in enumerate(rows):
            size = len(row) * per_token + (prompt_length + len(row)) * states
            if batch and (len(batch) + 1) * size > self._bound(size):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch


def _padded(rows: list[Ids], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids padded on the right (causal attention never looks there) and which are real."""
    width = max(map(len, rows))
    ids = torch.tensor([row + (0,) * (width - len(row)) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return ids, torch.arange(width, device=device)[None, :] < lengths[:, None]
