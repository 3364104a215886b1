"""Bandit's demonstrator: calls each name calm or daring, then pulls the calm arm more often."""

import numpy as np

from ragen2_cli.envs.bandit import DARING
from ragen2_cli.envs.base import TextEnv

CALM_SHARE = 0.7


def speak(env: TextEnv, message: str, rng: np.random.Generator) -> tuple[str, str]:
    """Return (reasoning, answer)."""
    names = message.split()[1:]
    kinds = ["daring" if name in DARING else "calm" for name in names]
    wanted = "calm" if rng.random() < CALM_SHARE else "daring"
    pick = names[kinds.index(wanted)]
    facts = " ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    return f"{facts}. {rng.choice(('go', 'try', 'so'))} {wanted}", pick
