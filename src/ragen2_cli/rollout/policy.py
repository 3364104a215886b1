"""What the engine asks of a policy, whatever runs behind it.

The engine owns the dialogue (sessions, templates, masks); a policy owns generation and decides
in which order and in which batches the episodes advance. They meet in one call, ``converse``:
the policy samples a turn of some episode, hands it to ``reply``, and gets the token ids that
follow (the observation) or None when that episode is over. A policy that never re-encodes, a
server with its own continuous batching and a script fit the same call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One assistant turn as it was sampled.

    Attributes:
        ids: Sampled token ids, at least one, the stop token included.
        logprobs: Natural-log probability of each id at temperature 1.
        sampling_logprobs: The same at the sampling temperature; 0 for greedy decoding.
        entropies: Entropy in nats of the temperature-1 distribution each id was drawn from.
        truncated: True when the token limit ended the turn, not a stop.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    truncated: bool


@dataclass(frozen=True)
class StopRule:
    """When a turn ends: at a stop id, or as soon as its text contains the stop text.

    Attributes:
        ids: Token ids that end a turn.
        text: Text that ends a turn when it is complete; empty for none.
        decode: Token ids to text, special tokens kept.
        suspects: Ids after which ``reached`` can be true; a cheap first test for each token.
    """

    ids: frozenset[int]
    text: str
    decode: Callable[[Sequence[int]], str]
    suspects: frozenset[int]

    def reached(self, turn_ids: Sequence[int]) -> bool:
        """Tell whether the turn ends with its last token (earlier ones were asked before)."""
        if turn_ids[-1] in self.ids:
            return True
        if not self.text or turn_ids[-1] not in self.suspects:
            return False
        return self.text in self.decode(turn_ids[-len(self.text) - 1 :])

    def suspects_V(self, vocabulary: int) -> np.ndarray:
        """Return ``suspects`` as a boolean table over ``vocabulary`` ids."""
        table_V = np.zeros(vocabulary, dtype=bool)
        table_V[[i for i in self.suspects if i < vocabulary]] = True
        return table_V


Following = Sequence[int] | None
"""The ids before an episode's next turn; None when the episode is over."""
Reply = Callable[[int, SampledTurn], Following | Callable[[], Following]]


def settled(answer: Following | Callable[[], Following]) -> Following:
    """Return what follows a turn, waiting for an environment that is still busy with it."""
    return answer() if callable(answer) else answer


class Policy(Protocol):
    """Anything that can hold many conversations at once."""

    def converse(
        self,
        prompts_N: Sequence[Sequence[int]],
        seeds_N: Sequence[int],
        reply: Reply,
        *,
        stop: StopRule,
        max_new_tokens: int,
        temperature: float,
    ) -> None:
        """Run every episode to its end.

        Args:
            prompts_N: Token ids of each episode's prompt, none empty.
            seeds_N: Seed of each episode's own random stream: the same seed and replies give
                the same samples, whatever else is in the batch.
            reply: Called as ``reply(episode, turn)`` once per finished turn, the turns of one
                episode in order; returns the ids that come before the next turn, or None. An
                environment that waits for something else (a sandbox, a server) makes it return
                a function instead, to be called once, when the ids are needed: see ``settled``.
            stop: When a turn ends.
            max_new_tokens: Most sampled tokens of a turn, at least 1.
            temperature: Softmax temperature; 0 takes the most likely token.
        """
        ...
