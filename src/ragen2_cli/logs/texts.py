"""Prompts and completions in all their shapes: text, chat messages, messages as text in CSV."""

import ast
import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

_LITERAL_LIMIT = 1_000_000
_ASSISTANT = ("<|im_start|>assistant\n", "\nassistant\n")


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The first reasoning of a completion.

    Attributes:
        text: The reasoning; the whole first turn where there are no tags.
        paired: A think and an answer pair, both filled.
        closed: The think tag is closed and not empty.
    """

    text: str
    paired: bool
    closed: bool


def prompt_key(value: Any) -> bytes:
    """Return a short identity of a prompt, the same for equal text or equal messages."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def turns_of(completion: Any) -> list[str]:
    """Return what the policy wrote, turn by turn; an empty list when that cannot be told.

    Text is one turn. Of chat messages the assistant's count, ``reasoning_content`` put into think
    tags; content given as parts is joined. Text that looks like a list of messages (as a CSV
    export writes them) is read as one.
    """
    value = _unquoted(completion)
    if isinstance(value, str):
        return [value]
    messages = [value] if isinstance(value, dict) else value
    if not isinstance(messages, list):
        return []
    return [
        _message_text(message)
        for message in messages
        if isinstance(message, dict) and message.get("role", "assistant") == "assistant"
    ]


def messages_of(prompt: Any) -> Any:
    """Return a prompt as text or as a list of messages, whichever it is."""
    return _unquoted(prompt)


def plain_text(prompt: Any) -> str:
    """Return what a prompt says: the text itself, or its messages' contents, line by line."""
    value = messages_of(prompt)
    messages = value if isinstance(value, list) else [value]
    return "\n".join(
        _message_text(message) if isinstance(message, dict) else str(message)
        for message in messages
    )


def think_tag(turn: str) -> str:
    """Return the state of the think tag; one that only closes was opened by the prompt."""
    from ragen2_cli.core.degeneration import tag_state

    return tag_state(turn, opened_by_prompt="<think>" not in turn and "</think>" in turn)


def split_prompt(prompt: Any, completion: Any) -> tuple[Any, Any]:
    """Return prompt and completion, parted where a log keeps both in the completion.

    RAGEN leaves the input of multi-turn rollouts empty and writes the whole conversation as the
    output: what comes before the first assistant turn is then the prompt.
    """
    if prompt == "" and isinstance(completion, str):
        for marker in _ASSISTANT:
            before, found, after = completion.partition(marker)
            if found:
                return before + found, after
    return prompt, completion


def _unquoted(value: Any) -> Any:
    """Return the messages that a text spells out, else the value itself."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[{", "{'", '{"')):
        return value
    if len(value) > _LITERAL_LIMIT:
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        first = found[0] if isinstance(found, list) and found else found
        if isinstance(first, dict) and "role" in first:
            return found
    return value


def _message_text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(
            str(part.get("text") or "") if isinstance(part, dict) else str(part) for part in content
        )
    text = "" if content is None else str(content)
    thought = message.get("reasoning_content")
    return f"<think>{thought}</think>{text}" if thought else text


def reasoning_of(turns: list[str]) -> Reasoning:
    """Return the reasoning of the first turn, read as our environments read completions."""
    from ragen2_cli.envs.parsing import parse

    first = turns[0] if turns else ""
    parsed = parse(first)
    closed = first.count("</think>") == 1 and first.count("<think>") <= 1
    return Reasoning(
        text=parsed.reasoning,
        paired=bool(parsed.reasoning and parsed.answer),
        closed=closed and bool(parsed.reasoning),
    )
