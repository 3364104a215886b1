"""Question answering with a search engine: look passages up, then answer."""

import logging
import re
from functools import lru_cache

from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.options import whole
from ragen2_cli.envs.search_qa import hotpot
from ragen2_cli.envs.search_qa.index import MemoryIndex, Retriever, open_index
from ragen2_cli.envs.search_qa.questions import Question, question
from ragen2_cli.envs.search_qa.score import exact_match, f1, retrieval_precision, reward
from ragen2_cli.envs.search_qa.server import RetrievalError, ServerRetriever
from ragen2_cli.envs.search_qa.world import Passage, world
from ragen2_cli.errors import UserError

__all__ = ["SearchQA"]

_log = logging.getLogger(__name__)
_ACTION = re.compile(r"\s*(search|finish)\s*\[(.*)\]\s*", re.IGNORECASE | re.DOTALL)
_MAX_WORDS = 500


class SearchQA(TextEnv):
    """Answer a question: ``search[words]`` shows passages, ``finish[answer]`` ends the episode.

    The reward is 1 for an exact match (SQuAD normalization), else the token F1 when it is at least
    0.3, else 0; success is the exact match alone. Any other text is invalid. A retrieval server
    that fails gives the episode no score.

    Args:
        data: HotpotQA rows (jsonl, json, parquet, hub name); empty uses the embedded world.
        corpus: Passages to search (jsonl, parquet); empty uses the passages that come with the
            questions.
        index: Folder of the stored index of ``corpus``; empty puts it beside the corpus.
        retriever: Address of a running Search-R1 retrieval server, in place of a corpus.
        top_k: Passages per search, 1 to 50.
        max_chars: Characters of passages per search, 200 to 100,000; the rest is cut.
    """

    name = "search_qa"
    instruction = (
        "Answer the question with facts from the passages. Write search[words] to look passages "
        "up, or finish[answer] to give a short answer, which ends the task. One action a turn."
    )
    actions = None
    actions_per_turn = 1
    max_turns = 5
    max_actions = 5

    def __init__(
        self,
        data: str = "",
        corpus: str = "",
        index: str = "",
        retriever: str = "",
        top_k: int = 5,
        max_chars: int = 4000,
    ) -> None:
        if corpus and retriever:
            raise UserError(f"environment '{self.name}': give a corpus or a retriever, not both")
        self.sources = (data, corpus, index, retriever)
        self.concurrent = bool(retriever)
        self.top_k = whole(self.name, "top_k", top_k, 1, 50)
        self.max_chars = whole(self.name, "max_chars", max_chars, 200, 100_000)
        self._question: Question | None = None
        self._shown = ""
        self._done = True

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Start the question of ``seed``; with real data, row ``seed`` modulo their number."""
        data = self.sources[0]
        if data:
            questions = hotpot.load(data)[0]
            self._question = questions[seed % len(questions)]
        else:
            self._question = question(seed)
        _retriever(*self.sources)  # a source that cannot be searched is known before the first turn
        self._shown, self._done = "", False
        return self.observe()

    def step(self, action: str) -> StepResult:
        """Search or answer."""
        if self._done or self._question is None:
            raise RuntimeError("the episode is over; call reset")
        match = _ACTION.fullmatch(action)
        text = match[2].strip() if match else ""
        if match is None or not text or len(text.split()) > _MAX_WORDS:
            return StepResult(reward=0.0, valid=False)
        if match[1].lower() == "search":
            return self._search(text)
        answers = self._question.answers
        self._done = True
        info = {"f1": f1(text, answers), "em": float(exact_match(text, answers))}
        return StepResult(reward(text, answers), True, exact_match(text, answers), info=info)

    def _search(self, query: str) -> StepResult:
        assert self._question is not None
        try:
            passages = _retriever(*self.sources).search(query, self.top_k)
        except RetrievalError as error:
            _log.warning("search_qa: no score for this episode: %s", error)
            self._done = True
            return StepResult(reward=None, done=True)
        self._shown = _render(query, passages, self.max_chars)
        precision = retrieval_precision([p.title for p in passages], self._question.gold)
        info = None if precision is None else {"retrieval_precision": precision}
        return StepResult(reward=0.0, info=info)

    def observe(self) -> str:
        """Return the question and what the last search found."""
        if self._question is None:
            raise RuntimeError("call reset first")
        text = f"Question: {self._question.text}"
        return f"{text}\n{self._shown}" if self._shown else text

    def key(self) -> str:
        """Return the question."""
        if self._question is None:
            raise RuntimeError("call reset first")
        return self._question.text


def _render(query: str, passages: list[Passage], limit: int) -> str:
    if not passages:
        return f"No passage found for: {query}"
    parts = [f"[{n}] {p.title}: {p.text}" for n, p in enumerate(passages, 1)]
    return "\n".join(parts)[:limit]


@lru_cache(maxsize=4)
def _retriever(data: str, corpus: str, index: str, server: str) -> Retriever:
    """Return what searches: a server, a stored index, or the passages of the questions.

    Raises:
        UserError: When the real questions bring no passages and no corpus is given.
    """
    if server:
        return ServerRetriever(server)
    if corpus:
        return open_index(corpus, index)
    if not data:
        return MemoryIndex(world().passages)
    passages = hotpot.load(data)[1]
    if not passages:
        raise UserError(f"{data}: no row has a 'context'; give --set env.options.corpus=FILE")
    return MemoryIndex(passages)
