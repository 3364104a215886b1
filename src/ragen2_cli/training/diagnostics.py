"""One diagnosis of a batch of episodes: cross-scoring with the policy, and what needs no model.

X is all token ids before a turn's sampled ids (they end with the prompt's opening think tag), Z is
the turn's reasoning: its sampled ids up to the closing think tag, the tag left out.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ragen2_cli.core.batches import PATTERN_ROWS, LogRow, batch_metrics, episode_row
from ragen2_cli.core.collapse import Marginal, cross_scoring_metrics
from ragen2_cli.errors import UserError
from ragen2_cli.records import Episode
from ragen2_cli.training.models import context_length
from ragen2_cli.training.scoring import Ids, cross_logprobs

Sampling = Literal["first-turn", "trajectory"]
OPENING, CLOSING = "<think>", "</think>"
OPENING_TOKENS = 8
"""The opening tag, if the prompt ends with it, is among so many last tokens."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reasoning with its own context, as token ids; ``closed`` tells whether its tag ended."""

    context: Ids
    reasoning: Ids
    closed: bool


class ReasoningCut:
    """Finds where the reasoning ends in sampled ids.

    Where the closing tag is one token of the tokenizer, that token ends the reasoning. Otherwise
    the ids are decoded, and the reasoning is the longest run of leading ids that lies wholly
    before the tag's text: a token that holds a piece of the tag is not part of it. Without a
    closing tag all ids are reasoning, except special tokens (end of text, padding) at the end.
    """

    def __init__(self, tokenizer: Any, closing: str = CLOSING) -> None:
        """Take a transformers tokenizer and the closing tag."""
        ids = tokenizer.encode(closing, add_special_tokens=False)
        self._single = ids[0] if len(ids) == 1 else None
        self._tokenizer = tokenizer
        self._closing = closing
        self._special = frozenset(tokenizer.all_special_ids) - set(ids)

    def __call__(self, ids: Sequence[int]) -> tuple[Ids, bool]:
        """Return the reasoning's ids and whether a closing tag was found."""
        ids = tuple(ids)
        if self._single is not None and self._single in ids:
            return ids[: ids.index(self._single)], True
        where = -1 if self._single is not None else self.decode(ids).find(self._closing)
        if where >= 0:
            return ids[: self._tokens_before(ids, where)], True
        end = len(ids)
        while end and ids[end - 1] in self._special:
            end -= 1
        return ids[:end], False

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def _tokens_before(self, ids: Ids, characters: int) -> int:
        """Return how many leading ids decode to at most that many characters."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high + 1) // 2
            if len(self.decode(ids[:middle])) <= characters:
                low = middle
            else:
                high = middle - 1
        return low


def episode_sample(episode: Episode, turn: int, cut: ReasoningCut) -> Sample:
    """Return the reasoning of one turn and everything before it."""
    start, end = episode.turn_spans[turn]
    reasoning, closed = cut(episode.completion_ids[start:end])
    return Sample(episode.prompt_ids + episode.completion_ids[:start], reasoning, closed)


def measure(
    model: Any,
    tokenizer: Any,
    episodes: Sequence[Episode],
    *,
    step: int,
    sampling: Sampling = "first-turn",
    samples: int = 64,
    marginal: Marginal = "token-mean",
    seed: int = 0,
    temperature: float = 1.0,
    byte_budget: int | None = None,
) -> dict[str, Any]:
    """Measure one step's episodes with the policy that sampled them; one row of diagnostics.jsonl.

    Args:
        model: The policy, before the update that these episodes cause.
        tokenizer: Its tokenizer (for the closing think tag).
        episodes: The whole batch, before filtering.
        step: The optimizer step the row belongs to.
        sampling: ``first-turn`` takes first reasonings evenly from all prompts, one column per
            different prompt; ``trajectory`` draws an episode, then one of its turns, uniformly and
            with replacement, each draw its own column.
        samples: Reasonings that are cross-scored, at most.
        marginal: See ``core.collapse``.
        seed: With ``step`` it decides which rows are taken and how prompts are shuffled.
        temperature: Divides the logits.
        byte_budget: See ``training.scoring``.

    Returns:
        Every metric of ``core.collapse`` and ``core.batches`` by name, with ``step``, ``sampling``,
        ``samples``, ``marginal``, ``temperature``, coverage (``reasonings``, ``unclosed``,
        ``too_long``, ``columns_merged``, ``forward_tokens``), ``cross_scoring`` (``done`` or why
        it was not possible) and ``seconds``.
    """
    start = time.perf_counter()
    cut = ReasoningCut(tokenizer)
    first = [episode_sample(e, 0, cut).reasoning if e.turn_spans else () for e in episodes]
    rows = [
        _row(episode, cut, ids, patterns=number < PATTERN_ROWS)
        for number, (episode, ids) in enumerate(zip(episodes, first, strict=True))
    ]
    taken = draw(episodes, cut, sampling, samples, seed=seed, step=step)
    result: dict[str, Any] = {"step": step, "sampling": sampling, "samples": samples}
    result |= batch_metrics(rows, seed=seed)
    result |= score_samples(
        model,
        taken,
        marginal=marginal,
        temperature=temperature,
        byte_budget=byte_budget,
        merge_columns=sampling == "first-turn",
    )
    result["seconds"] = time.perf_counter() - start
    return result


def _row(episode: Episode, cut: ReasoningCut, ids: Ids, *, patterns: bool) -> LogRow:
    """Return an episode as a row; the text of its first turn is decoded for its patterns."""
    raw, opened = None, False
    if patterns and episode.turn_spans:
        start, end = episode.turn_spans[0]
        raw = cut.decode(episode.completion_ids[start:end])
        before = episode.prompt_ids[-OPENING_TOKENS:] + episode.completion_ids[:start]
        opened = cut.decode(before).rstrip().endswith(OPENING)
    return episode_row(episode, patterns=patterns, prefix_ids=ids, raw=raw, opened_by_prompt=opened)


def draw(
    episodes: Sequence[Episode],
    cut: ReasoningCut,
    sampling: Sampling,
    samples: int,
    *,
    seed: int,
    step: int,
) -> list[Sample]:
    """Return the reasonings to be scored; the same for the same episodes, seed and step."""
    rng = np.random.Generator(np.random.Philox(key=[seed, step]))
    usable = [episode for episode in episodes if episode.turn_spans]
    if sampling == "trajectory":
        picks = [usable[rng.integers(len(usable))] for _ in range(samples if usable else 0)]
        return [episode_sample(e, int(rng.integers(len(e.turn_spans))), cut) for e in picks]
    if sampling != "first-turn":
        raise UserError(f"unknown sampling '{sampling}': choose first-turn or trajectory")
    chosen = spread_evenly([episode.prompt_ids for episode in usable], samples, rng)
    return [episode_sample(usable[index], 0, cut) for index in chosen]


def spread_evenly(keys: Sequence[Any], count: int, rng: np.random.Generator) -> list[int]:
    """Return up to ``count`` row numbers, in order, taken in turn from the rows of each key."""
    rows: dict[Any, list[int]] = {}
    for index in rng.permutation(len(keys)).tolist():
        rows.setdefault(keys[index], []).append(index)
    rounds = [
        queue[turn]
        for turn in range(max(map(len, rows.values()), default=0))
        for queue in rows.values()
        if turn < len(queue)
    ]
    return sorted(rounds[:count])


def score_samples(
    model: Any,
    samples: Sequence[Sample],
    *,
    marginal: Marginal,
    temperature: float,
    byte_budget: int | None = None,
    merge_columns: bool,
) -> dict[str, Any]:
    """Return the cross-scoring metrics of reasonings, and what they cover.

    Args:
        model: The policy.
        samples: Reasonings with their contexts; empty ones, and those whose context leaves no room
            in the model for the longest reasoning, are left out and counted.
        marginal: See ``core.collapse``.
        temperature: Divides the logits.
        byte_budget: See ``training.scoring``.
        merge_columns: One column for equal contexts; otherwise each sample is its own column.

    Returns:
        The metrics and coverage; without two different contexts only coverage, and
        ``cross_scoring`` says why.
    """
    said = [sample for sample in samples if sample.reasoning]
    filled = _that_fit(model, said)
    contexts = [sample.context for sample in filled]
    columns = list(dict.fromkeys(contexts)) if merge_columns else contexts
    result: dict[str, Any] = {
        "marginal": marginal,
        "temperature": temperature,
        "reasonings": len(filled),
        "empty_reasonings": len(samples) - len(said),
        "too_long": len(said) - len(filled),
        "unclosed": sum(not sample.closed for sample in samples),
        "columns_merged": len(contexts) - len(columns),
    }
    if len(set(contexts)) < 2:
        return result | {
            "cross_scoring": f"needs two different prompts, there are {len(set(contexts))}"
        }
    scores = cross_logprobs(
        model,
        columns,
        [sample.reasoning for sample in filled],
        temperature=temperature,
        byte_budget=byte_budget,
    )
    where = {context: column for column, context in enumerate(columns)}
    own = [where[c] for c in contexts] if merge_columns else list(range(len(filled)))
    # The batch's own "rows" and "prompts" keep their meaning beside the sample's.
    try:
        metrics = cross_scoring_metrics(
            scores.sum_logprobs_N_P, scores.lengths_N, own, columns, marginal
        )
    except UserError as error:  # a broken policy must not end a training run by its diagnosis
        return result | {"cross_scoring": str(error)}
    renamed = {"rows": "scored_rows", "prompts": "columns", "distinct_prompts": "scored_prompts"}
    result |= {renamed.get(name, name): value for name, value in metrics.items()}
    return result | {"forward_tokens": scores.forward_tokens, "cross_scoring": "done"}


def _that_fit(model: Any, samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples whose context leaves room for the longest reasoning.

    Every reasoning is scored under every context, so both together must fit the model.
    """
    limit = context_length(model) or math.inf
    longest = max((len(sample.reasoning) for sample in samples), default=0)
    return [sample for sample in samples if len(sample.context) + longest <= limit]
