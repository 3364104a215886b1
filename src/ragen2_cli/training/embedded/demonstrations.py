"""Demonstrated episodes as token rows: what the policy reads, what it should say, loss or not.

Episodes run through the same ``Session`` and ``ChatTemplate`` as rollouts, so that a warm start
sees exactly the ids that sampling will produce. Boards come from the training side only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ragen2_cli.envs.base import TextEnv
from ragen2_cli.envs.session import Limits, Session
from ragen2_cli.envs.splits import noise_seed, train_seeds
from ragen2_cli.training.embedded.narrators import Narrator

if TYPE_CHECKING:
    from ragen2_cli.rollout.template import ChatTemplate

_BLOCK = 64  # seeds drawn from the cursor at once


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode.

    Attributes:
        seed: The environment's seed.
        exchanges: (user message, completion) pairs in order; a completion follows an opening
            ``<think>`` and ends with ``</answer>``.
        success: Whether the goal was reached.
    """

    seed: int
    exchanges: tuple[tuple[str, str], ...]
    success: bool


def demonstrate(
    env: TextEnv,
    narrator: Narrator,
    seed: int,
    rng: np.random.Generator,
    *,
    turns: int | None = None,
) -> Demonstration:
    """Play one episode.

    Args:
        env: The environment; it is reset.
        narrator: Says and does.
        seed: The board.
        rng: Draws the wording and the moves.
        turns: Stop after this many turns; None plays to the end.
    """
    session = Session(
        env, seed=seed, noise_seed=noise_seed(0, 0, 0, seed), limits=Limits.of(env), style="compact"
    )
    exchanges: list[tuple[str, str]] = []
    message: str | None = session.messages[0]["content"]
    while message is not None and len(exchanges) != turns:
        thought, answer = narrator(env, message, rng)
        completion = f"{thought}</think><answer>{answer}</answer>"
        exchanges.append((message, completion))
        message = session.submit(completion)
    return Demonstration(seed, tuple(exchanges), session.done and session.success)


def stream(
    env: TextEnv,
    narrator: Narrator,
    seed: int,
    rng: np.random.Generator,
    *,
    turns: int | None = None,
) -> Iterator[Demonstration]:
    """Yield demonstrations of training boards without end.

    Args:
        env: The environment.
        narrator: Says and does.
        seed: Decides the boards.
        rng: Draws wordings and moves.
        turns: As in :func:`demonstrate`.
    """
    cursor = 0
    while True:
        seeds, cursor = train_seeds(env, seed, cursor, _BLOCK)
        for board in seeds:
            yield demonstrate(env, narrator, board, rng, turns=turns)


def token_row(
    demonstration: Demonstration, template: "ChatTemplate"
) -> tuple[list[int], list[int]]:
    """Return (ids, loss mask) of a whole episode.

    The mask is 1 on each completion and its end marker, 0 on everything the policy only reads.
    """
    tokenizer = template.tokenizer
    ids: list[int] = []
    mask: list[int] = []
    said: list[int] = []
    for message, completion in demonstration.exchanges:
        if ids:
            read = template.next_turn_ids(message, sampled_ids=said)
        else:
            read = template.first_prompt_ids([{"role": "user", "content": message}])
        said = [
            *tokenizer.encode(completion, add_special_tokens=False),
            tokenizer.eos_token_id,
        ]
        ids += read + said
        mask += [0] * len(read) + [1] * len(said)
    return ids, mask
