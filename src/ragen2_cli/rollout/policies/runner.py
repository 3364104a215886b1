"""What a batch of conversations asks of a model: encode chunks, decode one step, copy rows."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch


class Chunk(NamedTuple):
    """Tokens to encode in one cache row.

    Attributes:
        row: Cache row.
        start: Columns of the row that are filled already.
        ids: Token ids that follow them, at least one.
    """

    row: int
    start: int
    ids: Sequence[int]


class Runner(Protocol):
    """A model with a key-value cache of rows, every row contiguous from column 0."""

    vocabulary: int
    device: torch.device

    def reserve(self, rows: int, columns: int) -> None:
        """Make room; what is cached stays."""

    def encode(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Append chunks to their rows; return the logits after each chunk's last token (C, V)."""

    def decode(self, columns_R: np.ndarray, ids_R: torch.Tensor) -> torch.Tensor:
        """Append one token to each of the first R rows; return the logits after it (R, V).

        Args:
            columns_R: Column of each row that the token is written to.
            ids_R: The tokens.
        """

    def copy(self, source: int, target: int, columns: int) -> None:
        """Copy a row's first columns to another row."""


def grown(needed: int, present: int) -> int:
    """Return the columns to allocate for ``needed`` ones: room for half as many again."""
    return present if needed <= present else max(needed + 64, present * 3 // 2)
