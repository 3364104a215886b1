"""Running sums of the gradients of several loss terms, kept where the parameters are."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ragen2_cli.core.gradients import TermNorms

Gradient = Sequence[Tensor | None]
"""One tensor per parameter; None for 0."""


class GradientSums:
    """The gradient of each term over some rows: in float32, or the parameters' own dtype if wider.

    A term takes memory once something other than 0 is added to it.
    """

    def __init__(self, terms: Sequence[str]) -> None:
        """Start every term at 0; a term that is not named is not there."""
        self._sums: dict[str, list[Tensor | None]] = {term: [] for term in terms}

    def add(self, term: str, gradient: Gradient) -> None:
        """Add one gradient, which stays as it is."""
        sums = self._sums[term]
        sums.extend([None] * (len(gradient) - len(sums)))
        for index, part in enumerate(gradient):
            if part is None:
                continue
            before = sums[index]
            if before is None:
                wide = torch.promote_types(part.dtype, torch.float32)
                sums[index] = part.detach().to(wide, copy=True)
            else:
                before += part.detach()

    def absorb(self, other: "GradientSums") -> None:
        """Add all terms of other rows."""
        for term, gradient in other._sums.items():
            self.add(term, gradient)

    def norms(
        self,
        task: str,
        loss_factor: float = 1.0,
        entropy_factor: float = 1.0,
        advantage_factor: float = 1.0,
    ) -> TermNorms:
        """Euclidean norms, their squares added in float64.

        Args:
            task: The term that is the policy loss.
            loss_factor: On the policy loss and the KL term.
            entropy_factor: On the entropy term and the critic's loss.
            advantage_factor: On every advantage, so on the policy loss alone.
        """
        factors = {"entropy": entropy_factor, "kl": loss_factor}
        present = {term: factor for term, factor in factors.items() if term in self._sums}
        return TermNorms(
            task=self._norm({task: loss_factor * advantage_factor}),
            entropy=self._norm({"entropy": entropy_factor}) if "entropy" in present else None,
            kl=self._norm({"kl": loss_factor}) if "kl" in present else None,
            regularizer=self._norm(present) if present else None,
            critic=self._norm({"critic": entropy_factor}) if "critic" in self._sums else None,
        )

    def _norm(self, factors: dict[str, float]) -> float:
        """Norm of a weighted sum of terms, one parameter at a time."""
        squares = 0.0
        for index in range(max(len(self._sums[term]) for term in factors)):
            total: Tensor | None = None
            for term, factor in factors.items():
                part = self._sums[term][index] if self._sums[term] else None
                if part is not None:
                    total = part * factor if total is None else total.add(part, alpha=factor)
            if total is not None:
                total = total.cpu() if total.device.type == "mps" else total  # has no float64
                squares += float(torch.linalg.vector_norm(total, dtype=torch.float64)) ** 2
        return math.sqrt(squares)
