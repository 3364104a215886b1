"""Cross-scoring of logged text: token ids are made again, so they may differ from the sampled ones.

A prompt is rendered with the tokenizer's chat template (messages) or taken as it is (text). An
opening think tag at the start of the completion moves to the context; the reasoning is then cut
as ``training.diagnostics`` cuts sampled ids.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ragen2_cli.core.batches import LogRow, batch_metrics
from ragen2_cli.core.collapse import Marginal
from ragen2_cli.logs import RawText
from ragen2_cli.training.diagnostics import ReasoningCut, Sample, score_samples, spread_evenly

OPENING = "<think>"


def text_sample(tokenizer: Any, cut: ReasoningCut, text: RawText) -> Sample:
    """Return the first turn of a logged row as token ids."""
    first = text.turns[0]
    chat = not isinstance(text.prompt, str)
    context = (
        tokenizer.apply_chat_template(text.prompt, tokenize=False, add_generation_prompt=True)
        if chat
        else text.prompt
    )
    body = first.lstrip()
    if body.startswith(OPENING):
        opening, first = first[: len(first) - len(body)] + OPENING, body[len(OPENING) :]
        context += "" if context.endswith(OPENING) else opening
    context_ids = tokenizer.encode(context, add_special_tokens=not chat)
    reasoning, closed = cut(tokenizer.encode(first, add_special_tokens=False))
    return Sample(tuple(context_ids), reasoning, closed)


def measure_texts(
    model: Any,
    tokenizer: Any,
    rows: Sequence[LogRow],
    texts: Sequence[RawText],
    *,
    step: int,
    samples: int = 64,
    marginal: Marginal = "token-mean",
    seed: int = 0,
    temperature: float = 1.0,
) -> dict[str, Any]:
    """Measure one logged step with a model; the row has the names of ``diagnostics.measure``.

    Args:
        model: The policy, as near as possible to the one that wrote the log.
        tokenizer: Its tokenizer.
        rows: The step's rows.
        texts: Prompt and turns of the same rows, in the same order.
        step: Its number.
        samples: Reasonings that are cross-scored, taken evenly from the prompts.
        marginal: See ``core.collapse``.
        seed: With ``step`` it decides which rows are taken.
        temperature: Divides the logits.
    """
    start = time.perf_counter()
    rng = np.random.Generator(np.random.Philox(key=[seed, step]))
    cut = ReasoningCut(tokenizer)
    chosen = spread_evenly([row.prompt for row in rows], samples, rng)
    taken = [text_sample(tokenizer, cut, texts[index]) for index in chosen]
    result: dict[str, Any] = {"step": step, "sampling": "first-turn", "samples": samples}
    result |= batch_metrics(rows, seed=seed)
    result |= score_samples(
        model, taken, marginal=marginal, temperature=temperature, merge_columns=True
    )
    result["seconds"] = time.perf_counter() - start
    return result
