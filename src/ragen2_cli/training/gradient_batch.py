"""The batch of a gradient analysis: rows, spreads, advantages, and the weight of every token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ragen2_cli.core.advantages import Credit, spread_over_tokens, turn_advantages
from ragen2_cli.core.gradients import DENOMINATORS, Remainder
from ragen2_cli.core.groups import LossScaling, Scale, advantages, group_stats
from ragen2_cli.errors import UserError
from ragen2_cli.records import Episode
from ragen2_cli.training.credit import turns_of

Advantages = NDArray[np.float64] | list[NDArray[np.float64]]
"""One per row, or for each row one per completion token."""


@dataclass(frozen=True)
class ProbeSettings:
    """What is measured, and how.

    Attributes:
        entropy: Coefficient of the entropy bonus; 0 leaves the term out.
        kl: Coefficient of the KL penalty; 0 leaves the term out.
        loss_type: Decides the weight of a token, as in training.
        max_completion_length: The constant length of ``dr_grpo``.
        temperature: Of the softmax, as in training.
        scales: Ways of scaling rewards; each gives a task gradient of its own. A critic adds
            ``gae``, its advantages token by token.
        buckets: Most buckets.
        credit: ``episode``, or ``turn`` for advantages turn by turn, as the run without a critic.
        remainder: Where groups go that do not divide evenly.
        score: The spread that groups are sorted by.
        loss_scaling: Factor on the advantages of what the filter keeps, as in training.
        soft: Multiply advantages by the filter's soft weights, as in training; in every table.
        tokens_per_forward: Padded tokens in one forward pass; fewer where the vocabulary is large.
    """

    entropy: float = 0.0
    kl: float = 0.0
    loss_type: str = "grpo"
    max_completion_length: int = 1
    temperature: float = 1.0
    scales: tuple[Scale, ...] = ("group", "none")
    credit: Credit = "episode"
    buckets: int = 6
    remainder: Remainder = "spread"
    score: str = "reward_var"
    loss_scaling: LossScaling = "none"
    soft: bool = False
    tokens_per_forward: int = 4096


@dataclass(frozen=True, eq=False)
class ProbeBatch:
    """P groups of G consecutive rows, N in all. Rows without a score have no token that counts.

    Attributes:
        ids_N: Token ids of prompt and completion.
        mask_N: 1 on the trained tokens of the completion, 0 on its observations.
        prompt_N: Tokens of the prompt.
        group_size: G.
        spread_P_G: The numbers whose spread a filter judges.
        score_P: Spread of each group.
        dead_P: Groups whose returns carry no signal.
        scored_N: Rows with a score; as in training, the others are no part of any mean.
        tokens_N: Trained tokens of each row.
        advantage_N: By scale of rewards, of each row; exactly 0 in dead groups and for unscored
            rows. Of ``gae``, and with credit per turn, of each row's completion tokens.
        weight_N: Weight of each token of a row in the policy and KL loss of the whole batch.
    """

    ids_N: list[list[int]]
    mask_N: list[list[int]]
    prompt_N: list[int]
    group_size: int
    spread_P_G: NDArray[np.float64]
    score_P: NDArray[np.float64]
    dead_P: NDArray[np.bool_]
    scored_N: NDArray[np.bool_]
    tokens_N: NDArray[np.int64]
    advantage_N: dict[str, Advantages]
    weight_N: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        episodes: Sequence[Episode],
        group_size: int,
        settings: ProbeSettings,
        *,
        spread_of_outcome: bool,
    ) -> "ProbeBatch":
        """Read episodes in group order; ``spread_of_outcome`` leaves the format penalty out."""
        returns = _matrix([episode.episode_return for episode in episodes], group_size)
        spread = (
            _matrix([episode.outcome for episode in episodes], group_size)
            if spread_of_outcome
            else returns
        )
        stats = group_stats(spread)
        scored_N = ~np.isnan(returns).ravel()
        mask_N = [
            [bit * int(scored) for bit in episode.loss_mask]
            for episode, scored in zip(episodes, scored_N, strict=True)
        ]
        tokens_N = np.array([sum(mask) for mask in mask_N], dtype=np.int64)
        return cls(
            ids_N=[[*episode.prompt_ids, *episode.completion_ids] for episode in episodes],
            mask_N=mask_N,
            prompt_N=[len(episode.prompt_ids) for episode in episodes],
            group_size=group_size,
            spread_P_G=spread,
            score_P=stats.var_P if settings.score == "reward_var" else stats.std_P,
            dead_P=group_stats(returns).dead_P,
            scored_N=scored_N,
            tokens_N=tokens_N,
            advantage_N={
                scale: _advantages(episodes, returns, scale, settings.credit)
                for scale in settings.scales
            },
            weight_N=np.where(scored_N, _row_weights(tokens_N, int(scored_N.sum()), settings), 0.0),
        )

    def weigh(self, weight_P: NDArray[np.float64]) -> None:
        """Multiply every advantage by its group's weight."""
        weight_N = np.repeat(weight_P, self.group_size)
        for scale, given in self.advantage_N.items():
            self.advantage_N[scale] = (
                [row * weight for row, weight in zip(given, weight_N, strict=True)]
                if isinstance(given, list)
                else given * weight_N
            )

    def rows_of(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of the groups' rows."""
        return (groups[:, None] * self.group_size + np.arange(self.group_size)).ravel()

    def inverse_shares(self, groups: NDArray[np.int64], loss_type: str) -> tuple[float, float]:
        """Factors that normalize by some groups instead of all: for the loss, for the entropy."""
        rows = self.rows_of(groups)
        by_tokens = float(self.tokens_N.sum() / max(self.tokens_N[rows].sum(), 1))
        by_rows = float(self.scored_N.sum() / max(self.scored_N[rows].sum(), 1))
        return (by_rows if DENOMINATORS[loss_type] == "rows" else by_tokens), by_tokens


def _matrix(values: Sequence[float | None], group_size: int) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64).reshape(-1, group_size)


def _advantages(
    episodes: Sequence[Episode], returns: NDArray[np.float64], scale: Scale, credit: Credit
) -> Advantages:
    if credit == "episode":
        return np.nan_to_num(advantages(returns, scale)).ravel()
    turns = turns_of(episodes, max(len(episode.completion_ids) for episode in episodes))
    size = returns.shape[1]
    alive_N = np.repeat(~group_stats(returns).dead_P, size)
    relative = turn_advantages(turns.rewards_N_K, size, scale) * alive_N[:, None]
    rows = spread_over_tokens(relative, turns.turn_N_C)
    return [row[: len(one.completion_ids)] for row, one in zip(rows, episodes, strict=True)]


def _row_weights(
    tokens_N: NDArray[np.int64], scored: int, settings: ProbeSettings
) -> NDArray[np.float64]:
    """Weight of each token of a row in the policy and KL loss over all scored rows."""
    rows, length = max(scored, 1), np.maximum(tokens_N, 1).astype(np.float64)
    if settings.loss_type == "grpo":
        return 1 / (rows * length)
    if settings.loss_type == "dr_grpo":
        return np.full(len(length), 1 / (rows * settings.max_completion_length))
    if settings.loss_type in ("dapo", "bnpo"):
        return np.full(len(length), 1 / max(int(tokens_N.sum()), 1))
    raise UserError(
        f"gradients: no analysis for the loss '{settings.loss_type}';"
        f" use one of {', '.join(DENOMINATORS)}"
    )
