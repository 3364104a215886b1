"""Answer scores by the rules of SQuAD and HotpotQA: exact match and token F1."""

import re
import string
from collections import Counter
from collections.abc import Sequence

F1_FLOOR = 0.3
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = ("yes", "no", "noanswer")


def normalize(text: str) -> str:
    """Lower the case, drop ASCII punctuation, then articles, and squeeze white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> bool:
    """Whether the normalized answer equals one of the normalized references."""
    return any(normalize(answer) == normalize(reference) for reference in references)


def f1(answer: str, references: Sequence[str]) -> float:
    """Best token F1 over the references, in [0, 1].

    F1 is the harmonic mean of the shares of the answer's and the reference's tokens that occur in
    both, with multiplicity. Where either side is yes, no or noanswer, only equality scores. Two
    empty texts score 1 only when both normalize to nothing.
    """
    return max((_pair_f1(normalize(answer), normalize(item)) for item in references), default=0.0)


def _pair_f1(answer: str, reference: str) -> float:
    if answer == reference:
        return 1.0
    if answer in _CLOSED or reference in _CLOSED:
        return 0.0
    got, want = answer.split(), reference.split()
    shared = sum((Counter(got) & Counter(want)).values())
    return 2 * shared / (len(got) + len(want)) if shared else 0.0


def reward(answer: str, references: Sequence[str]) -> float:
    """1 for an exact match, else F1 when it is at least 0.3, else 0."""
    if exact_match(answer, references):
        return 1.0
    score = f1(answer, references)
    return score if score >= F1_FLOOR else 0.0


def retrieval_precision(titles: Sequence[str], gold: frozenset[str]) -> float | None:
    """Share of the shown passages whose title the answer needs; None when none was shown.

    Args:
        titles: Titles of the passages shown.
        gold: Titles that the question's data name as needed; None is returned when empty.
    """
    if not titles or not gold:
        return None
    return sum(title in gold for title in titles) / len(titles)
