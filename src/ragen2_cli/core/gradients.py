"""Gradient analysis by reward-spread quantile: where the task signal is, and what drowns it.

Groups are sorted by spread into buckets Q1 (lowest) to Q6. For each bucket and for the whole batch
three gradients are taken at one policy, before clipping and without an optimizer step: of the
policy loss (task), of ``entropy_coef * entropy`` and of ``kl_coef * KL``. All have the weights of
the loss of the whole batch, a mean over its rows or its tokens (``DENOMINATORS``; the entropy term
always is one over tokens), so that the buckets' gradients add up to the batch's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen2_cli.errors import UserError, did_you_mean

Remainder = Literal["spread", "last"]
Per = Literal["batch", "row", "token"]
Denominator = Literal["rows", "tokens"]
DENOMINATORS: dict[str, Denominator] = {
    "grpo": "rows",
    "dapo": "tokens",
    "bnpo": "tokens",
    "dr_grpo": "rows",
}
"""TRL's losses whose policy gradient, at the policy that sampled, is known here: what each is a
mean over."""
REMAINDERS: tuple[Remainder, ...] = get_args(Remainder)
PERS: tuple[Per, ...] = get_args(Per)


@dataclass(frozen=True)
class TermNorms:
    """Euclidean norms of the loss terms' gradients; None for what was not computed.

    Attributes:
        task: Norm of the policy loss's gradient.
        entropy: Norm of the entropy term's gradient.
        kl: Norm of the KL term's gradient.
        regularizer: Norm of the *summed* entropy and KL gradient: what really acts on the weights.
        critic: Norm of the value loss's gradient in the critic's weights; no part of the ratios.
    """

    task: float
    entropy: float | None = None
    kl: float | None = None
    regularizer: float | None = None
    critic: float | None = None

    @property
    def regularizer_sum(self) -> float | None:
        """Sum of the two norms, as the reference plots it; at least ``regularizer``."""
        present = [norm for norm in (self.entropy, self.kl) if norm is not None]
        return sum(present) if present else None

    @property
    def snr(self) -> float | None:
        """Task norm over the norm of the summed regularizer; None without one, or if it is 0."""
        return self.task / self.regularizer if self.regularizer else None

    @property
    def snr_sum(self) -> float | None:
        """Task norm over ``regularizer_sum``, the reference's ratio; at most ``snr``."""
        return self.task / self.regularizer_sum if self.regularizer_sum else None


@dataclass(frozen=True)
class BucketRow:
    """One line of the report.

    Attributes:
        bucket: ``Q1`` (lowest spread) to ``Q6``, or ``all``.
        groups: Number of groups in it.
        dead_groups: How many of them carry no signal.
        rows: Its rollouts with a score; the others are not trained on.
        tokens: Its trained tokens.
        score_mean: Mean spread of its groups.
        score_low: Smallest spread.
        score_high: Largest spread.
        norms: Gradient norms over the global denominator, so that buckets add up.
        denominator: That denominator: how many rows, or tokens, the whole batch has.
        denominator_of: Which of the two, as the loss does it.
    """

    bucket: str
    groups: int
    dead_groups: int
    rows: int
    tokens: int
    score_mean: float
    score_low: float
    score_high: float
    norms: TermNorms
    denominator: int
    denominator_of: Denominator

    def per(self, unit: Per) -> TermNorms:
        """Norms over another denominator: the whole ``batch``, the bucket's rows or its tokens.

        Every term is scaled alike, by ``denominator / count``, so the SNR does not depend on the
        choice; under a loss over rows that goes for the entropy term too, though its mean is one
        over tokens. A bucket without rows or tokens has no such norm: NaN.

        Raises:
            UserError: Unknown unit.
        """
        if unit not in PERS:
            raise UserError(
                f"gradient norms: unknown unit '{unit}'{did_you_mean(unit, PERS)};"
                f" use one of {', '.join(PERS)}"
            )
        if unit == "batch":
            return self.norms
        count = self.rows if unit == "row" else self.tokens
        return scaled(self.norms, self.denominator / count if count else math.nan)


def quantile_buckets(
    score_P: ArrayLike, num_buckets: int = 6, remainder: Remainder = "spread"
) -> list[NDArray[np.int64]]:
    """Group indices by score quantile, low bucket to high; inside a bucket indices ascend.

    Args:
        score_P: One score per group.
        num_buckets: Buckets wanted; there are fewer when there are fewer groups.
        remainder: ``spread`` makes sizes differ by at most one (the low buckets take the extra
            groups); ``last`` gives each bucket ``P // buckets`` groups and the rest to the last, as
            the reference does.

    Returns:
        One ascending index array per bucket, none empty; an empty list for no groups. Equal scores
        go by index.

    Raises:
        UserError: Fewer than one bucket, an unknown remainder rule, or scores that are not a flat
            list of numbers.
    """
    if remainder not in REMAINDERS:
        raise UserError(
            f"buckets: unknown remainder '{remainder}'{did_you_mean(remainder, REMAINDERS)};"
            f" use one of {', '.join(REMAINDERS)}"
        )
    if num_buckets < 1:
        raise UserError(f"buckets: at least 1 is needed, got {num_buckets}")
    score = np.array(score_P, dtype=np.float64)
    if score.ndim != 1 or np.isnan(score).any():
        raise UserError("buckets: expected one score per group, without NaN")
    order = np.argsort(score, kind="stable")
    count = min(num_buckets, score.size)
    if count == 0:
        return []
    if remainder == "spread":
        return [np.sort(part) for part in np.array_split(order, count)]
    size = score.size // count
    starts = [size * k for k in range(1, count)]
    return [np.sort(part) for part in np.split(order, starts)]


def scaled(norms: TermNorms, factor: float) -> TermNorms:
    """All norms times one non-negative factor; what was not computed stays None."""

    def times(norm: float | None) -> float | None:
        return None if norm is None else norm * factor

    return TermNorms(
        norms.task * factor,
        times(norms.entropy),
        times(norms.kl),
        times(norms.regularizer),
        times(norms.critic),
    )


def gradient_table(
    norms_B: Sequence[TermNorms],
    whole: TermNorms,
    buckets: Sequence[NDArray[np.int64]],
    *,
    score_P: ArrayLike,
    dead_P: ArrayLike,
    rows_P: ArrayLike,
    tokens_P: ArrayLike,
    denominator_of: Denominator,
) -> list[BucketRow]:
    """The report: one row per bucket, low to high, and ``all`` at the end.

    Args:
        norms_B: Norms per bucket over the global denominator.
        whole: The same for the whole batch: of the sum of the buckets' gradients.
        buckets: Group indices per bucket.
        score_P: Spread of each group.
        dead_P: Whether each group is dead.
        rows_P: Scored rollouts of each group.
        tokens_P: Trained tokens of each group.
        denominator_of: What the global denominator counts.

    Raises:
        UserError: Another number of norms than buckets, or no bucket.
    """
    if len(norms_B) != len(buckets) or not buckets:
        raise UserError(f"gradient table: {len(norms_B)} norms for {len(buckets)} buckets")
    score, dead = np.asarray(score_P, dtype=np.float64), np.asarray(dead_P, dtype=bool)
    rows, tokens = np.asarray(rows_P, dtype=np.int64), np.asarray(tokens_P, dtype=np.int64)
    names = [f"Q{k}" for k in range(1, len(buckets) + 1)] + ["all"]
    members = [*buckets, np.concatenate(buckets)]
    return [
        BucketRow(
            bucket=name,
            groups=int(group.size),
            dead_groups=int(dead[group].sum()),
            rows=int(rows[group].sum()),
            tokens=int(tokens[group].sum()),
            score_mean=float(score[group].mean()),
            score_low=float(score[group].min()),
            score_high=float(score[group].max()),
            norms=norms,
            denominator=int((rows if denominator_of == "rows" else tokens)[members[-1]].sum()),
            denominator_of=denominator_of,
        )
        for name, group, norms in zip(names, members, [*norms_B, whole], strict=True)
    ]
