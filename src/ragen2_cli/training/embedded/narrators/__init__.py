"""What a demonstrator says and does: one file per environment, listed in ``LESSONS``.

A narrator is a function ``(env, message, rng) -> (reasoning, answer)``. It states facts of the
user message that are true and picks good and bad actions by a stated rule. To add one: write it
in a file of its own and list it with the share of the warm start's episodes that it plays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ragen2_cli.envs.base import TextEnv
from ragen2_cli.training.embedded.narrators import bandit, countdown, frozenlake, sokoban

Narrator = Callable[[TextEnv, str, np.random.Generator], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Lesson:
    """One part of the warm start.

    Attributes:
        env: Name of the environment.
        narrator: Who plays it.
        share: Share of the warm start's episodes.
        words: Episodes in each step of the words phase (see ``warm_start.train_words``).
        options: The environment's options.
    """

    env: str
    narrator: Narrator
    share: float
    words: int
    options: dict[str, Any] = field(default_factory=dict)


_FROZENLAKE = frozenlake.narrator(frozenlake.Skill())

LESSONS: tuple[Lesson, ...] = (
    Lesson("frozenlake", _FROZENLAKE, 0.4, 4),
    Lesson("frozenlake", _FROZENLAKE, 0.25, 1, {"ice": 0.6}),
    Lesson("sokoban", sokoban.speak, 0.1, 1),
    Lesson("bandit", bandit.speak, 0.1, 16),
    Lesson("countdown", countdown.speak, 0.15, 12),
)

READING = Lesson("frozenlake", _FROZENLAKE, 1.0, 0, {"ice": 0.6})
