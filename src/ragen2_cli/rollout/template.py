"""Conversations as token ids, without ever rendering what the policy has said.

A chat template is asked once, with made-up words, what stands around an assistant turn and a
user turn. From then on a conversation only grows: prompt ids, sampled ids, the ids between two
turns, sampled ids, ... So a template that would drop or reword earlier assistant turns (many
reasoning models drop the thoughts) cannot change what is in the context.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ragen2_cli.errors import UserError
from ragen2_cli.rollout.policy import StopRule

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPENING = "<think>"
STOP_TEXT = "</answer>"
# Words that no template writes by itself.
_SYSTEM, _USER, _ASSISTANT = "Zsystem7q", "Zuser7q", "Zassistant7q"

Message = dict[str, str]


class ChatTemplate:
    """Turns messages into ids around sampled turns.

    Args:
        tokenizer: A transformers tokenizer with a chat template and a pad token.
        stop_ids: More ids that end a turn (a model's ``generation_config.eos_token_id``).
        stop_text: Text that ends a turn when complete, so a model that does not know the
            end-of-turn marker stops after its answer; empty for none.

    Attributes:
        tokenizer: The tokenizer.
        stop: When a sampled turn ends.
        rewrites_thoughts: True when the template itself would not show earlier turns as they
            were sampled; contexts here still hold them, other software may not.

    Raises:
        UserError: No chat template, no pad token, or a template that is not a plain sequence
            of turns.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        stop_ids: Iterable[int] = (),
        stop_text: str = STOP_TEXT,
    ) -> None:
        self.tokenizer = tokenizer
        self._name = tokenizer.name_or_path or "the tokenizer"
        if tokenizer.chat_template is None:
            raise UserError(
                f"{self._name} has no chat template: use an instruction-tuned model or set "
                "tokenizer.chat_template"
            )
        if tokenizer.pad_token_id is None:
            raise UserError(
                f"{self._name} has no pad token: set one in its tokenizer_config.json "
                "(the end-of-text token will do)"
            )
        self._system_alone = self._takes_system()
        self._opened, self._lead, self._before, self._after, self._strips = self._turn_boundary()
        self._check_growth()
        self.rewrites_thoughts = not self._keeps_thoughts()
        marker_ids = self._encode(self._before)[:1]
        special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
        self._marker = marker_ids[0] if marker_ids and marker_ids[0] in special else None
        self.stop = self._stop_rule(stop_ids, stop_text)
        self._next_ids = lru_cache(maxsize=8192)(self._encode_next)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a sampled turn."""
        return self.stop.ids

    def first_prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids before the first sampled token; they end with an opening ``<think>``.

        Args:
            messages: The conversation so far: an optional system message and a user message.
        """
        return self._encode(self._render(messages) + self._opening)

    def next_turn_ids(self, user_message: str, *, sampled_ids: Sequence[int] = ()) -> list[int]:
        """Return the ids between a sampled turn and the next one; none of them was sampled.

        They are the end-of-turn marker (unless the sampled turn ends with it), the user
        message, the generation prompt and the opening ``<think>``.

        Args:
            user_message: What the environment says.
            sampled_ids: The turn that was sampled; empty reads as a turn without its marker.
        """
        ids = self._next_ids(user_message)
        closed = self._marker is not None and sampled_ids and sampled_ids[-1] == self._marker
        return list(ids[1:] if closed else ids)

    def turn_ids(self, text: str, *, close: bool = False) -> list[int]:
        """Return the ids of a turn that was written, not sampled (demonstrations, scripts).

        Args:
            text: What stands after the opening ``<think>``.
            close: Whether to end with the template's end-of-turn marker, where it has one.
        """
        marker = [self._marker] if close and self._marker is not None else []
        return self._encode(text) + marker

    def completion_text(self, sampled_ids: Sequence[int]) -> str:
        """Return the text of a sampled turn, special tokens kept, without its final stop id."""
        ids = sampled_ids[:-1] if sampled_ids[-1] in self.stop_ids else sampled_ids
        return self.text(ids)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of any ids, special tokens kept."""
        decoded = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return str(decoded)

    @property
    def _opening(self) -> str:
        """What the generation prompt lacks before the first sampled token."""
        return "" if self._opened else self._lead + OPENING

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _encode_next(self, user_message: str) -> tuple[int, ...]:
        user = user_message.strip() if self._strips else user_message
        return tuple(self._encode(self._before + user + self._after + self._opening))

    def _render(self, messages: Sequence[Message], prompt: bool = True) -> str:
        if not self._system_alone and messages[0]["role"] == "system":
            system, first, *rest = messages
            joined = f"{system['content']}\n\n{first['content']}"
            messages = [{"role": first["role"], "content": joined}, *rest]
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompt
            )
        )

    def _takes_system(self) -> bool:
        """Tell whether the template shows a system message; if not, the first user turn does."""
        from jinja2.exceptions import TemplateError

        self._system_alone = True
        try:
            rendered = self._render(_talk(_SYSTEM, _USER))
        except TemplateError:
            return False
        return _SYSTEM in rendered

    def _turn_boundary(self) -> tuple[bool, str, str, str, bool]:
        """Learn what stands around a turn.

        Returns:
            Whether the generation prompt opens ``<think>`` itself; the white space between that
            prompt and an assistant's words; the text from the end of an assistant turn to the
            user's words; the text from there to the next assistant turn; whether the template
            strips the user's words.
        """
        first = self._render(_talk(None, _USER))
        opened = first.rstrip().endswith(OPENING)
        base = first.rstrip().removesuffix(OPENING) if opened else first
        follow = "\n " + _USER + "2 \n"
        whole = self._render(_talk(None, _USER, _ASSISTANT, follow))
        lead, said, rest = whole.removeprefix(base).partition(_ASSISTANT)
        strips = follow not in rest
        parts = rest.split(follow.strip() if strips else follow)
        if not whole.startswith(base) or lead.strip() or not said or len(parts) != 2:
            raise self._refusal()
        return opened, lead, parts[0], parts[1], strips

    def _check_growth(self) -> None:
        """Compare three turns grown step by step with the template's own rendering."""
        words = [_USER, _ASSISTANT, _USER + "2", _ASSISTANT + "2", _USER + "3"]
        grown = self._render(_talk(None, words[0]))
        for said, asked in ((words[1], words[2]), (words[3], words[4])):
            base = grown.rstrip().removesuffix(OPENING) if self._opened else grown
            grown = base + self._lead + said + self._before + asked + self._after
        if grown != self._render(_talk(None, *words)):
            raise self._refusal()

    def _keeps_thoughts(self) -> bool:
        thought = f"{OPENING}{_ASSISTANT}</think><answer>{_ASSISTANT}2</answer>"
        return thought in self._render(_talk(None, _USER, thought, _USER + "2"))

    def _stop_rule(self, more_ids: Iterable[int], text: str) -> StopRule:
        ids = set(more_ids) | ({self._marker} if self._marker is not None else set())
        if self.tokenizer.eos_token_id is not None:
            ids.add(self.tokenizer.eos_token_id)
        suspects = set(ids)
        if text:
            ends = tuple(text[at:] for at in range(len(text)))
            vocabulary = self.tokenizer.get_vocab().items()
            suspects |= {i for token, i in vocabulary if token.startswith(ends) or text in token}
        return StopRule(frozenset(ids), text, self.text, frozenset(suspects))

    def _refusal(self) -> UserError:
        return UserError(
            f"{self._name}: its chat template strips or rewrites earlier turns, so what was "
            "sampled would not stay in the context; set another tokenizer.chat_template"
        )


def _talk(system: str | None, *turns: str) -> list[Message]:
    """Return a conversation whose turns alternate, the user first."""
    head = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return head + [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
