"""BM25 ranking with bm25s: one way to cut words, build and rank, for every environment."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ragen2_cli.errors import UserError


def tokens(texts: Sequence[str]) -> Any:
    """Return each text's words, lower case, without English stop words."""
    import bm25s

    return bm25s.tokenize(list(texts), stopwords="en", show_progress=False, return_ids=False)


def build(texts: Sequence[str]) -> Any:
    """Return a bm25s model of the texts; a document's number is its place.

    Raises:
        UserError: When no text has a word that could be searched for.
    """
    import bm25s

    words = tokens(texts)
    if not any(words):
        raise UserError("search index: no text of the corpus has a word to search for")
    model = bm25s.BM25()
    model.index(words, show_progress=False)
    return model


def top(model: Any, query: str, count: int, documents: int) -> list[int]:
    """Return document numbers by falling score, ties by number; each shares a word.

    Args:
        model: What ``build`` returned, or bm25s loaded from a folder.
        query: Any text.
        count: How many at most.
        documents: How many documents the model has.
    """
    words = [word for word in tokens([query])[0] if word in model.vocab_dict]
    if not words:
        return []
    scores = model.get_scores(words)
    count = min(count, documents)
    floor = np.partition(scores, documents - count)[documents - count]
    candidates = np.flatnonzero(scores >= max(floor, np.finfo(np.float32).tiny))
    order = np.lexsort((candidates, -scores[candidates]))
    return [int(number) for number in candidates[order][:count]]
