"""A policy without a model: a function writes each turn. For tests, demonstrations, baselines."""

from collections.abc import Callable, Sequence

from ragen2_cli.rollout.policy import Reply, SampledTurn, StopRule, settled
from ragen2_cli.rollout.template import ChatTemplate


class ScriptedPolicy:
    """Writes turns with a function, through the same ids as any other policy.

    Args:
        template: Turns ids into text and back.
        write: ``write(episode, turn, shown)`` returns the completion of the episode's turn
            (both counted from 0); ``shown`` is the text of the ids since the last sampled one.
        close: Whether to end a turn with the template's end-of-turn marker, where it has one.
    """

    def __init__(
        self, template: ChatTemplate, write: Callable[[int, int, str], str], *, close: bool = False
    ) -> None:
        self._template = template
        self._write = write
        self._close = close

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
        """Run the episodes one after another; every log-probability and entropy is 0.

        A text longer than ``max_new_tokens`` is cut there and counts as truncated. Text after
        the stop is kept: a script says what it says.
        """
        for episode, prompt in enumerate(prompts_N):
            shown: Sequence[int] | None = prompt
            turn = 0
            while shown is not None:
                text = self._write(episode, turn, self._template.text(shown))
                ids = self._template.turn_ids(text, close=self._close)
                kept = tuple(ids[:max_new_tokens])
                zeros = (0.0,) * len(kept)
                cut = len(kept) < len(ids)
                sampled = SampledTurn(kept, zeros, zeros, zeros, truncated=cut)
                shown = settled(reply(episode, sampled))
                turn += 1
