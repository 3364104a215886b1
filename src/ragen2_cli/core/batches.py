"""What every door of the diagnosis computes from one step's rows, model or no model.

A row holds only what the metrics need, so that hundreds of thousands of them fit in memory.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ragen2_cli.core.degeneration import (
    degeneration_metrics,
    tag_state,
    text_metrics,
    ungrounded_facts,
)
from ragen2_cli.core.groups import group_stats
from ragen2_cli.core.surface import PERMUTATIONS, PREFIX_POSITIONS, prefix_metrics, reward_metrics

if TYPE_CHECKING:
    from ragen2_cli.records import Episode

PATTERN_ROWS = 32
"""Degenerate patterns are looked for in at most this many reasonings of a step, the first ones."""

PATTERN_CHARACTERS = 20_000
"""Patterns are counted in at most so many characters of a reasoning."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """One episode, reduced.

    Attributes:
        step: Its optimizer step.
        group: Identity of its group within the step.
        prompt: Identity of its prompt.
        reward: Raw episode return; NaN without a score.
        prefix: The first words of its first reasoning.
        reasoning_words: Words of its first reasoning.
        valid: Whether its first reasoning is well-formed; None where a log cannot tell.
        length: Sampled tokens of the episode or, where ids are unknown, words of the completion.
        patterns: The reasoning itself where degenerate patterns are to be counted in it.
        prefix_ids: The first token ids of its first reasoning, where they are known.
        truncated: Whether it was cut off; None where a log cannot tell.
        tag: State of the think tag in its first turn, where the text as sampled is known.
        ungrounded: Share of the facts in its first reasoning that nothing it read mentions, where
            it states any and degenerate patterns are counted in it.
    """

    step: int
    group: Hashable
    prompt: Hashable
    reward: float
    prefix: tuple[str, ...]
    reasoning_words: int
    valid: bool | None
    length: float
    patterns: str | None = None
    prefix_ids: tuple[int, ...] | None = None
    truncated: bool | None = None
    tag: str | None = None
    ungrounded: float | None = None


def pattern_text(reasoning: str) -> str:
    """Return the part of a reasoning in which patterns are counted: all but absurd lengths."""
    return reasoning[:PATTERN_CHARACTERS]


def first_words(text: str, count: int = PREFIX_POSITIONS) -> tuple[str, ...]:
    """Return the first ``count`` blank-separated words without splitting the rest of the text."""
    return tuple(text.split(None, count)[:count])


def episode_row(
    episode: "Episode",
    *,
    patterns: bool = True,
    prefix_ids: tuple[int, ...] | None = None,
    raw: str | None = None,
    opened_by_prompt: bool = False,
) -> LogRow:
    """Return one of our own episodes as a row: its first turn's reasoning, its return.

    Args:
        episode: The episode.
        patterns: Whether degenerate patterns are to be counted in it.
        prefix_ids: Token ids of the first reasoning, of which the first few are kept.
        raw: Text of the first turn as sampled, where it is known.
        opened_by_prompt: Whether the prompt ends with the opening think tag.
    """
    first = episode.turns[0] if episode.turns else None
    reasoning = first.reasoning if first else ""
    score = episode.episode_return
    return LogRow(
        step=episode.step,
        group=episode.group,
        prompt=episode.prompt,
        reward=math.nan if score is None else float(score),
        prefix=first_words(reasoning),
        reasoning_words=len(reasoning.split()),
        valid=bool(first and first.reasoning and first.answer),
        length=float(sum(episode.loss_mask)),
        patterns=pattern_text(reasoning) if patterns else None,
        prefix_ids=None if prefix_ids is None else tuple(prefix_ids[:PREFIX_POSITIONS]),
        truncated=episode.status == "context_limit",
        tag=None if raw is None else tag_state(raw, opened_by_prompt=opened_by_prompt),
        ungrounded=ungrounded_facts(
            pattern_text(reasoning), [episode.prompt, first.observation, *first.actions]
        )
        if first and patterns
        else None,
    )


def batch_metrics(
    rows: Sequence[LogRow], *, permutations: int = PERMUTATIONS, seed: int = 0
) -> dict[str, float | None]:
    """Return the section of a diagnosis that needs no model, for the rows of one step.

    - ``rows``, ``groups``, ``prompts``, ``rows_without_score``
    - ``reward_mean``; ``reward_std`` (mean over groups of the sample standard deviation);
      ``dead_groups`` and ``dead_ratio``
    - ``reward_f_ratio``, ``reward_f_pvalue``, ``prefix_mi``, ``prefix_mi_zscore``,
      ``prefix_conditional_entropy``, ``unique_prefix_rate`` (see ``core.surface``; the symbols
      are words) and, where token ids are known, ``prefix_mi_token``, ``prefix_mi_zscore_token``
    - ``response_length``, ``reasoning_words``, ``valid_reasoning``, ``invalid``
      (its complement), ``truncated``: means or shares
    - degenerate patterns of the rows that carry their reasoning, and, where they are known,
      faults of the think tag and ``ungrounded_facts`` (see ``core.degeneration``)

    A quantity that is undefined or unknown is None.
    """
    rewards = np.array([row.reward for row in rows], dtype=np.float64)
    index: dict[Hashable, int] = {}
    prompts = np.array([index.setdefault(row.prompt, len(index)) for row in rows], dtype=np.int64)
    result: dict[str, float | None] = {
        "rows": len(rows),
        "groups": len({row.group for row in rows}),
        "prompts": len(index),
        "rows_without_score": int(np.isnan(rewards).sum()),
    }
    result |= _group_metrics(rewards, [row.group for row in rows])
    result |= reward_metrics(rewards, prompts, permutations=permutations, seed=seed)
    result |= prefix_metrics(
        [row.prefix for row in rows], prompts, permutations=permutations, seed=seed
    )
    if rows and all(row.prefix_ids is not None for row in rows):
        tokens = prefix_metrics(
            [row.prefix_ids or () for row in rows], prompts, permutations=permutations, seed=seed
        )
        result["prefix_mi_token"] = tokens["prefix_mi"]
        result["prefix_mi_zscore_token"] = tokens["prefix_mi_zscore"]
    result["response_length"] = _mean(row.length for row in rows)
    result["reasoning_words"] = _mean(float(row.reasoning_words) for row in rows)
    result["valid_reasoning"] = _mean(float(r.valid) for r in rows if r.valid is not None)
    result["invalid"] = None if result["valid_reasoning"] is None else 1 - result["valid_reasoning"]
    result["truncated"] = _mean(float(r.truncated) for r in rows if r.truncated is not None)
    result |= text_metrics([row.tag for row in rows], [row.ungrounded for row in rows])
    return result | degeneration_metrics(r.patterns for r in rows if r.patterns is not None)


def _group_metrics(rewards_N: np.ndarray, groups_N: list[Hashable]) -> dict[str, float | None]:
    """Return mean reward, mean spread and dead groups; None without a scored row."""
    scored = rewards_N[~np.isnan(rewards_N)]
    if not scored.size:
        return dict.fromkeys(("reward_mean", "reward_std", "dead_groups", "dead_ratio"))
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups_N):
        members.setdefault(group, []).append(index)
    matrix_P_G = np.full((len(members), max(map(len, members.values()))), np.nan)
    for row, where in enumerate(members.values()):
        matrix_P_G[row, : len(where)] = rewards_N[where]
    stats = group_stats(matrix_P_G)
    dead = int(stats.dead_P.sum())
    spread = stats.std_P[np.isfinite(stats.std_P)]
    return {
        "reward_mean": float(scored.mean()),
        "reward_std": float(spread.mean()) if spread.size else None,
        "dead_groups": dead,
        "dead_ratio": dead / len(members),
    }


def _mean(values: Iterable[float]) -> float | None:
    items = list(values)
    return math.fsum(items) / len(items) if items else None
