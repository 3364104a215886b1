"""Degenerate patterns in reasoning text: repetition, broken tags, facts from nowhere."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache

DUPLICATION_FLAG = 0.25
SENTENCE_CHARACTERS = 20
TAG_FAULTS = ("missing", "unclosed", "repeated")
SOUND = "sound"
_SENTENCE_END = re.compile(r"[.!?。！？]+[\s]+|[。！？]+|\n+")
_FACT = re.compile(r"\d+(?:\.\d+)?|\b[A-Z][a-z]+\b")
Fact = str | int | Decimal


def sentence_duplication(text: str) -> float | None:
    """Return the share of sentences that occur at least twice.

    Sentences of at least 20 characters count, lower-cased and with white space normalized; they
    end at ``. ! ?`` before a space, at their full-width forms, or at a line break. A share of
    ``DUPLICATION_FLAG`` (0.25) or more is a sign of degeneration. None without such a sentence.
    """
    sentences = [
        sentence
        for part in _SENTENCE_END.split(text.lower())
        if len(part) >= SENTENCE_CHARACTERS
        and len(sentence := " ".join(part.split()).rstrip(".!?")) >= SENTENCE_CHARACTERS
    ]
    if not sentences:
        return None
    return sum(count for count in Counter(sentences).values() if count >= 2) / len(sentences)


def repeated_ngram_mass(words: Sequence[str], n: int) -> float | None:
    """Return the share of n-grams that occur at least twice; None with fewer than n words."""
    total = len(words) - n + 1
    if total < 1:
        return None
    grams = list(zip(*(words[offset:] for offset in range(n)), strict=False))
    if len(set(grams)) == total:
        return 0.0
    return (total - sum(count == 1 for count in Counter(grams).values())) / total


def unique_token_ratio(words: Sequence[str]) -> float | None:
    """Return different words divided by words; None for an empty text."""
    return len(set(words)) / len(words) if words else None


def tag_fault(text: str, tag: str = "think", *, opened_by_prompt: bool = False) -> str | None:
    """Return ``unclosed``, ``repeated``, ``missing`` or None for a tag that is used once, properly.

    Args:
        text: The completion as sampled.
        tag: Name of the tag.
        opened_by_prompt: True when the prompt ends with the opening tag.
    """
    opened = text.count(f"<{tag}>") + opened_by_prompt
    closed = text.count(f"</{tag}>")
    if opened == 0 and closed == 0:
        return "missing"
    if opened > 1 or closed > 1:
        return "repeated"
    if opened != closed:
        return "unclosed" if closed < opened else "missing"
    first = -1 if opened_by_prompt else text.index(f"<{tag}>")
    return "unclosed" if text.index(f"</{tag}>") < first else None  # closed before it opens


def tag_state(text: str, *, opened_by_prompt: bool = False) -> str:
    """Return the fault of the think tag as :func:`tag_fault` does, or ``sound``."""
    return tag_fault(text, opened_by_prompt=opened_by_prompt) or SOUND


def text_metrics(
    tags: Sequence[str | None], ungrounded: Sequence[float | None]
) -> dict[str, float | None]:
    """Return what can be told of rows whose raw text, or whose observations, are known.

    ``think_missing``, ``think_unclosed``, ``think_repeated``: shares of the rows whose tag's state
    is known; ``ungrounded_facts``: mean share over the rows that state a fact. A name is absent
    where no row is known.
    """
    known = [tag for tag in tags if tag is not None]
    found: dict[str, float | None] = {
        f"think_{fault}": known.count(fault) / len(known) for fault in TAG_FAULTS if known
    }
    shares = [share for share in ungrounded if share is not None]
    return found | ({"ungrounded_facts": sum(shares) / len(shares)} if shares else {})


def ungrounded_facts(reasoning: str, sources: Iterable[str]) -> float | None:
    """Return the share of the reasoning's facts that no source mentions.

    Facts are numbers (a coordinate is two of them; 2 and 2.0 are the same) and capitalized words
    that do not open a sentence. ``sources`` are the observation and the earlier turns. A count of
    the model's own ("step 3") is a number too, so this is an upper bound on invention. None when
    the reasoning states no fact.
    """
    ground = Grounding()
    for source in sources:
        ground.learn(source)
    return ground.judge(reasoning)


def _facts(text: str) -> list[tuple[Fact, bool]]:
    """Return numbers and capitalized words in order; True: a word that may only open a sentence."""
    found: list[tuple[Fact, bool]] = []
    for match in _FACT.finditer(text):
        word = match.group()
        if not word[0].isdigit():
            found.append((word.lower(), _opens(text, match.start())))
        elif len(word) < 19 and "." not in word:
            found.append((int(word), False))  # the same key as Decimal's, and faster
        else:
            found.append((Decimal(word), False))  # exact at any length, and 2 equals 2.0
    return found


def _opens(text: str, start: int) -> bool:
    """Whether a sentence begins at ``start``: after an end mark, a colon or a line break."""
    place = start - 1
    while place >= 0 and text[place].isspace():
        if text[place] == "\n":
            return True
        place -= 1
    return place < 0 or text[place] in ".!?:"


@lru_cache(maxsize=256)
def _all_facts(source: str) -> frozenset[Fact]:
    """Facts of a text that is shown again and again, such as the prompt of a group."""
    return frozenset(fact for fact, _ in _facts(source))


class Grounding:
    """What has been said to the model so far, to judge the facts of its next reasoning by."""

    def __init__(self) -> None:
        """Know nothing."""
        self._known: set[Fact] = set()

    def learn(self, text: str) -> None:
        """Take the facts of an observation as known, sentence-opening words as well."""
        self._known |= _all_facts(text)

    def judge(self, reasoning: str) -> float | None:
        """Return the share of the reasoning's facts that are not known yet; then know them all.

        None when it states no fact.
        """
        facts = _facts(reasoning)
        stated = [fact for fact, opens in facts if not opens]
        unknown = sum(fact not in self._known for fact in stated)
        self._known.update(fact for fact, _ in facts)
        return unknown / len(stated) if stated else None


def text_patterns(text: str) -> dict[str, float | None]:
    """Return the patterns of one text by name; None where one is undefined for it."""
    words = text.split()
    fives, tens = repeated_ngram_mass(words, 5), repeated_ngram_mass(words[:10], 10)
    if fives:  # longer n-grams repeat only where shorter ones do
        tens = repeated_ngram_mass(words, 10)
    return {
        "sentence_duplication": sentence_duplication(text),
        "repeated_5gram_mass": fives,
        "repeated_10gram_mass": tens,
        "unique_token_ratio": unique_token_ratio(words),
    }


def degeneration_metrics(texts: Iterable[str]) -> dict[str, float | None]:
    """Return the means over texts of every pattern that needs the text alone.

    ``sentence_duplication``, ``duplication_flagged`` (share of texts at or over the flag),
    ``repeated_5gram_mass``, ``repeated_10gram_mass``, ``unique_token_ratio``. A text for which a
    pattern is undefined does not count for it; a pattern that no text defines is None.
    """
    columns: dict[str, list[float]] = {
        "sentence_duplication": [],
        "duplication_flagged": [],
        "repeated_5gram_mass": [],
        "repeated_10gram_mass": [],
        "unique_token_ratio": [],
    }
    for text in texts:
        values = text_patterns(text)
        duplication = values["sentence_duplication"]
        if duplication is not None:
            columns["duplication_flagged"].append(float(duplication >= DUPLICATION_FLAG))
        for name, value in values.items():
            if value is not None:
                columns[name].append(float(value))
    return {name: sum(v) / len(v) if v else None for name, v in columns.items()}
