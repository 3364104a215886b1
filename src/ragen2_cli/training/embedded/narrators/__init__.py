"""What a demonstrator says and does: one file per environment, listed in ``NARRATORS``.

A narrator is a function ``(env, observation, rng) -> (reasoning, answer)``. It states facts of the
observation that are true and picks good and bad actions by a stated rule. To add one: write it
in a file of its own and list it with the share of the warm start's episodes that it plays.
"""

from collections.abc import Callable

import numpy as np

from ragen2_cli.envs.base import TextEnv
from ragen2_cli.training.embedded.narrators import frozenlake

Narrator = Callable[[TextEnv, str, np.random.Generator], tuple[str, str]]

# environment -> (narrator, share of the warm start's episodes)
NARRATORS: dict[str, tuple[Narrator, float]] = {
    "frozenlake": (frozenlake.narrator(frozenlake.Skill()), 1.0),
}
