"""Logged completions as turns for the pattern rates: what came before, the reasoning, its tags."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from ragen2_cli.core.courses import SpokenTurn
from ragen2_cli.core.degeneration import tag_fault
from ragen2_cli.logs.texts import messages_of, turns_of
from ragen2_cli.records import Episode


def of_episode(episode: Episode) -> list[SpokenTurn]:
    """Turns of one of our own episodes; a turn without an answer has broken tags."""
    return [SpokenTurn(turn.observation, turn.reasoning, not turn.answer) for turn in episode.turns]


class TagRule:
    """How a log's completions use the think tag, from some of them."""

    def __init__(self, completions: Iterable[Any], most: int = 256) -> None:
        """Look at the first ``most`` completions."""
        turns = [turn for one in islice(completions, most) for turn in turns_of(one)]
        self.tagged = any("think>" in turn for turn in turns)
        self.opened = any("</think>" in turn and "<think>" not in turn for turn in turns)

    def fault(self, turn: str) -> bool | None:
        """Whether a turn's think tag is unclosed, repeated or missing; None in a log without."""
        if not self.tagged:
            return None
        opened = self.opened and not turn.lstrip().startswith("<think>")
        return tag_fault(turn, opened_by_prompt=opened) is not None


def of_row(prompt: Any, completion: Any, rule: TagRule) -> list[SpokenTurn]:
    """Turns of a logged row; of chat messages, those of tools and users come before a turn."""
    from ragen2_cli.envs.parsing import parse

    found: list[SpokenTurn] = []
    before = _text(messages_of(prompt))
    messages = messages_of(completion)
    for message in messages if isinstance(messages, list) else [messages]:
        if isinstance(message, dict) and message.get("role", "assistant") != "assistant":
            before += "\n" + _text(message.get("content"))
            continue
        for turn in turns_of(message):
            found.append(SpokenTurn(before, parse(turn).reasoning, rule.fault(turn)))
            before = ""
    return found


def _text(value: Any) -> str:
    """Text of a prompt, a message's content or a list of messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _text(value.get("content") or value.get("text") or "")
    return "\n".join(_text(one) for one in value) if isinstance(value, list) else ""
