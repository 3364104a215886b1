"""What a completion says: the first well-formed pair of reasoning and answer.

Generation starts after an opening ``<think>`` that ends the prompt, so the text that is read is
that tag plus this completion and nothing else: no answer tag of the prompt or of an observation
earns credit. One left-to-right pass over the tags, linear in the length of the text.
"""

import re
from dataclasses import dataclass

SEPARATOR = "||"
_TAG = re.compile(r"</?(?:think|answer)>")


@dataclass(frozen=True, slots=True)
class Parsed:
    """One completion, taken apart.

    Attributes:
        reasoning: Stripped text of the reasoning. Where no pair is well-formed: what stands
            before the first ``</think>`` or ``<answer>`` (all of it when neither occurs), so that
            a cut-off completion can still be read.
        answer: Stripped text between the answer tags; empty when no pair is well-formed.
        well_formed: True when a pair was found (its answer may still be empty).
    """

    reasoning: str
    answer: str
    well_formed: bool


def parse(completion: str) -> Parsed:
    """Find the first ``<think>R</think><answer>A</answer>`` with only white space between.

    R ends at the first closing tag; A holds none of the four tags. A completion that repeats the
    opening tag at its start reads the same as one that does not. Never raises for any string.

    Args:
        completion: The sampled text that follows the prompt's opening ``<think>``.
    """
    body = completion.lstrip()
    text = body if body.startswith("<think>") else "<think>" + completion
    tags = [(tag.group(), tag.start(), tag.end()) for tag in _TAG.finditer(text)]
    opened: int | None = None
    for at, (name, start, end) in enumerate(tags):
        if name == "<think>" and opened is None:
            opened = end
        elif name == "</think>" and opened is not None:
            answer = _answer_after(text, tags[at + 1 : at + 3], end)
            if answer is not None:
                return Parsed(text[opened:start].strip(), answer, well_formed=True)
            opened = None
    first = tags[0][2]
    stops = (start for name, start, _ in tags if name in ("</think>", "<answer>"))
    return Parsed(text[first : next(stops, len(text))].strip(), "", well_formed=False)


def _answer_after(text: str, tags: list[tuple[str, int, int]], end: int) -> str | None:
    """Return the stripped answer when the next two tags open and close one right after ``end``."""
    if [name for name, _, _ in tags] != ["<answer>", "</answer>"]:
        return None
    (_, open_start, open_end), (_, close_start, _) = tags
    return text[open_end:close_start].strip() if not text[end:open_start].strip() else None


def split_actions(answer: str, limit: int) -> list[str]:
    """Split an answer on ``||``, trim, drop empty parts and keep the first ``limit``."""
    parts = (part.strip() for part in answer.split(SEPARATOR))
    return [part for part in parts if part][:limit]


def match_actions(words: list[str], actions: tuple[str, ...] | None) -> tuple[list[str], list[str]]:
    """Match names without regard to case; return (known canonical names, unknown words).

    Args:
        words: What the policy wrote, in order.
        actions: The environment's action list; None means free text, where all words are known.
    """
    if actions is None:
        return list(words), []
    canonical = {name.casefold(): name for name in actions}
    known = [canonical[word.casefold()] for word in words if word.casefold() in canonical]
    return known, [word for word in words if word.casefold() not in canonical]
