r"""A client for a running retrieval server of the Search-R1 protocol.

Request: ``POST URL`` with ``{"queries": [q], "topk": k, "return_scores": true}``. Answer:
``{"result": [[{"document": {"contents": "title\ntext"}, "score": s}, ...]]}``.
"""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from ragen2_cli.envs.search_qa.index import split_contents
from ragen2_cli.envs.search_qa.world import Passage
from ragen2_cli.errors import UserError

MAX_ANSWER = 4 << 20


class RetrievalError(Exception):
    """The server did not answer, or not in the protocol: nobody's score."""


class ServerRetriever:
    """Asks a server.

    Args:
        url: Its address, for example ``http://127.0.0.1:8000/retrieve``.
        seconds: How long one try may take.
        tries: How often a request is made before it counts as failed.
    """

    def __init__(self, url: str, seconds: float = 10.0, tries: int = 2) -> None:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"retriever {url!r}: give an address that starts with http://")
        self.url = url
        self.seconds = seconds
        self.tries = tries

    def search(self, query: str, count: int) -> list[Passage]:
        """Return at most ``count`` passages, best first.

        Raises:
            RetrievalError: When every try failed or the answer is not of the protocol.
        """
        body = json.dumps({"queries": [query], "topk": count, "return_scores": True}).encode()
        headers = {"Content-Type": "application/json"}
        reason = ""
        for _ in range(self.tries):
            request = urllib.request.Request(self.url, data=body, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=self.seconds) as answer:
                    return _read(answer.read(MAX_ANSWER + 1), count)
            except (urllib.error.URLError, TimeoutError, OSError, http.client.HTTPException) as bad:
                reason = str(bad)
        raise RetrievalError(f"{self.url}: {reason} ({self.tries} tries)")


def _read(data: bytes, count: int) -> list[Passage]:
    if len(data) > MAX_ANSWER:
        raise RetrievalError("the answer is longer than 4 MB")
    try:
        answer: Any = json.loads(data)
        found = answer["result"][0]
        documents = [item.get("document", item) for item in found]
        return [split_contents(document["contents"]) for document in documents][:count]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise RetrievalError(
            f"the answer is not of the Search-R1 protocol ({type(error).__name__}: {error})"
        ) from error
