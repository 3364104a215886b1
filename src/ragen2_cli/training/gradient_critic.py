"""The critic's part of a gradient analysis: advantages per token, and its own gradient."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ragen2_cli.core.advantages import NO_TURN, Floats, Moments, estimate, whiten
from ragen2_cli.records import Episode
from ragen2_cli.training.compaction import Batch, row_lengths, take_rows, trim_padding
from ragen2_cli.training.credit import CreditRules, turns_of
from ragen2_cli.training.critic import Critic, value_loss
from ragen2_cli.training.logprobs import chunk_by_length


class CriticProbe:
    """What a critic says about a batch of episodes, and what each of them would teach it."""

    def __init__(
        self,
        critic: Critic,
        rules: CreditRules,
        episodes: Sequence[Episode],
        tokens_per_forward: int = 4096,
    ) -> None:
        """Judge the episodes; the critic is not changed."""
        self._critic, self._tokens = critic, tokens_per_forward
        self._parameters = list(critic.trained().values())
        self._batch = batch_of(episodes)
        width = self._batch["completion_ids"].shape[1]
        turns = turns_of(episodes, width)
        scored = np.array([one.episode_return is not None for one in episodes])
        turn_N_C = np.where(scored[:, None], turns.turn_N_C, NO_TURN)
        own = turn_N_C != NO_TURN
        with torch.no_grad():
            values = critic.values(self._moved(self._batch), tokens_per_forward)
        found = estimate(
            turns.rewards_N_K, values.cpu().numpy(), turn_N_C, rules.credit, rules.discounts
        )
        self._whitens = rules.settings is not None and rules.settings.whiten
        self._lengths = [len(one.completion_ids) for one in episodes]
        self._advantages = found.advantages_N_T
        self._own, self._returns = torch.as_tensor(own), torch.as_tensor(found.returns_N_T)

    def advantages(self, trained: NDArray[np.int64]) -> list[Floats]:
        """Return those of every row's completion tokens, as the run's loss takes them.

        Args:
            trained: The rows that are trained on: where the run whitens, their tokens get mean 0
                and standard deviation 1, and the others' are shifted and scaled alike. All if none.
        """
        found, own = self._advantages, self._own.numpy()
        if self._whitens:
            rows = trained if trained.size else np.arange(len(found))
            found = whiten(found, own, Moments.of(found[rows], own[rows]))
        return [row[:length] for row, length in zip(found, self._lengths, strict=True)]

    def __call__(self, rows: NDArray[np.int64]) -> Iterator[Sequence[Tensor]]:
        """Yield gradients that add up to that of some rows' value loss.

        One tensor per parameter; the loss is over the tokens of the whole batch.
        """
        total = max(int(self._own.sum()), 1)
        lengths = row_lengths(self._batch)[torch.as_tensor(rows)].tolist()
        for places in chunk_by_length(lengths, self._tokens):
            chunk = torch.as_tensor(rows[places])
            part = self._moved(trim_padding(take_rows(self._batch, chunk)))
            values = self._critic.values(part, self._tokens)
            width = values.shape[1]
            loss = value_loss(
                values,
                values.detach(),
                self._returns[chunk, :width].to(values),
                self._own[chunk, :width].to(values),
            )
            yield torch.autograd.grad(loss / total, self._parameters)

    def _moved(self, batch: Batch) -> Batch:
        device = self._parameters[0].device
        return {key: value.to(device) for key, value in batch.items()}


def batch_of(episodes: Sequence[Episode]) -> Batch:
    """Token ids and masks of episodes, prompts padded on the left and completions on the right."""
    prompts = [torch.tensor(one.prompt_ids) for one in episodes]
    completions = [torch.tensor(one.completion_ids) for one in episodes]
    return {
        "prompt_ids": _padded(prompts, left=True),
        "prompt_mask": _padded([torch.ones_like(one) for one in prompts], left=True),
        "completion_ids": _padded(completions),
        "completion_mask": _padded([torch.ones_like(one) for one in completions]),
    }


def _padded(rows: Sequence[Tensor], *, left: bool = False) -> Tensor:
    side = "left" if left else "right"
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_side=side)
