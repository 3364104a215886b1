"""Sampling with vLLM through TRL's own client, server or colocated; never imports vLLM."""

import math
from collections.abc import Sequence
from typing import Any

from ragen2_cli.rollout.policy import Reply, SampledTurn, StopRule, settled


class VllmPolicy:
    """TRL's ``VLLMGeneration`` as a policy: all live conversations take a turn together.

    vLLM batches by itself and keeps the cache of a conversation's earlier turns (prefix caching).
    Its random stream is its own, so the episodes' seeds decide nothing here: the same seed does
    not repeat the same samples.

    Args:
        generation: ``trainer.vllm_generation``; whoever owns it keeps its weights in sync.
    """

    def __init__(self, generation: Any) -> None:
        self._generation = generation

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
        """Run every episode to its end; see :class:`ragen2_cli.rollout.policy.Policy`."""
        generation = self._generation
        before = generation.temperature, generation.max_completion_length
        generation.temperature, generation.max_completion_length = temperature, max_new_tokens
        contexts = {number: list(prompt) for number, prompt in enumerate(prompts_N)}
        try:
            while contexts:
                _, sampled, logprobs, _ = generation.generate(
                    prompts=list(contexts.values()), images=None, num_generations=1
                )
                turns = [_turn(ids, row, stop) for ids, row in zip(sampled, logprobs, strict=True)]
                # All turns are submitted before the first answer is waited for.
                asked = [
                    (number, turn, reply(number, turn))
                    for number, turn in zip(contexts, turns, strict=True)
                ]
                for number, turn, answer in asked:
                    following = settled(answer)
                    if following is None:
                        del contexts[number]
                    else:
                        contexts[number] += [*turn.ids, *following]
        finally:
            generation.temperature, generation.max_completion_length = before


def _turn(
    ids: Sequence[int], scores: Sequence[Sequence[float | None]], stop: StopRule
) -> SampledTurn:
    """Cut a sampled turn at its first stop.

    vLLM tells the log-probability of what it drew and nothing else: what is not known is NaN.
    """
    end = next((i for i in range(1, len(ids) + 1) if stop.reached(ids[:i])), None)
    kept = tuple(ids[:end])
    drawn = tuple(math.nan if one[0] is None else float(one[0]) for one in scores[: len(kept)])
    unknown = (math.nan,) * len(kept)
    return SampledTurn(kept, unknown, drawn, unknown, truncated=end is None)
