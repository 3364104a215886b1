"""Questions from HotpotQA rows, and the passages that come with them."""

from functools import lru_cache

from ragen2_cli.envs.rows import Row, field, read_rows
from ragen2_cli.envs.search_qa.questions import Question
from ragen2_cli.envs.search_qa.world import Passage
from ragen2_cli.errors import UserError


@lru_cache(maxsize=2)
def load(source: str) -> tuple[tuple[Question, ...], tuple[Passage, ...]]:
    """Read questions and the union of their context passages, each title once.

    A row has ``question`` and ``answer`` (or ``golden_answers``, a list, as Search-R1 writes);
    ``supporting_facts.title`` and ``context.title``/``context.sentences`` are read when there, in
    the hub's layout of columns or the original one of pairs.

    Raises:
        UserError: When a row lacks its question or answer, or there is no row.
    """
    questions = []
    passages: dict[str, Passage] = {}
    for number, row in read_rows(source):
        where = f"{source} row {number}"
        text = field(row, "question", str, where).strip()
        if "golden_answers" in row:
            answers = tuple(field(row, "golden_answers", list, where))
        else:
            answers = (field(row, "answer", str, where),)
        if not answers or not all(isinstance(answer, str) for answer in answers):
            raise UserError(f"{where}: field 'golden_answers' must be a list of texts, not empty")
        gold = frozenset(title for title, _ in _pairs(row, "supporting_facts", "sent_id", where))
        questions.append(Question(text, answers, gold, len(gold)))
        for title, sentences in _pairs(row, "context", "sentences", where):
            passages.setdefault(title, Passage(title, " ".join(map(str.strip, sentences))))
    if not questions:
        raise UserError(f"{source}: no question in it")
    return tuple(questions), tuple(passages.values())


def _pairs(row: Row, name: str, second: str, where: str) -> list[tuple[str, list[str]]]:
    """Return the (title, other) pairs of a column in either layout; empty when it is absent."""
    value = row.get(name)
    if value is None:
        return []
    if isinstance(value, dict):
        titles = field(value, "title", list, f"{where}, {name}")
        others = field(value, second, list, f"{where}, {name}")
        return list(zip(titles, others, strict=False))
    if isinstance(value, list) and all(isinstance(p, list | tuple) and len(p) == 2 for p in value):
        return [(title, other) for title, other in value]
    raise UserError(f"{where}: field {name!r} has neither columns nor pairs of titles")
