"""Three kinds of randomness, one level: what chance does to an environment.

| kind | with probability s | which environments |
|---|---|---|
| ``slip`` | the move is one of the two perpendicular ones | those with an option ``slip`` |
| ``action`` | a uniformly drawn action replaces the chosen one | those with a list of actions |
| ``reward`` | a fair coin between the declared outcomes replaces the outcome's reward | all |

Each rollout has its own stream, from its noise seed; boards and splits do not change with s.
"""

from dataclasses import replace

import numpy as np

from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.wrapper import EnvWrapper
from ragen2_cli.errors import UserError, did_you_mean

KINDS = ("slip", "action", "reward")


def check_kind(kind: str) -> None:
    """Refuse an unknown kind.

    Raises:
        UserError: With the closest known name.
    """
    if kind not in KINDS:
        raise UserError(
            f"unknown kind of stochasticity '{kind}'{did_you_mean(kind, KINDS)}; "
            f"known: {', '.join(KINDS)}"
        )


def wrap(env: TextEnv, level: float, kind: str) -> TextEnv:
    """Return ``env`` under ``action`` or ``reward`` stochasticity (``slip`` is an option of it).

    Raises:
        UserError: When ``kind`` is ``action`` and the environment takes free text.
    """
    if kind == "reward":
        return RandomReward(env, level)
    if env.actions is None:
        raise UserError(
            f"environment '{env.name}' takes free text, so stochasticity of kind 'action' has no "
            "action list to draw from; use kind 'reward'"
        )
    return RandomAction(env, level)


class RandomAction(EnvWrapper):
    """Replaces the chosen action by a uniform one with probability ``level``.

    The draw may be the chosen action itself, so a move is as intended with probability
    ``1 - level + level / n``.

    Args:
        env: An environment with a finite action list.
        level: Probability in [0, 1].
    """

    def __init__(self, env: TextEnv, level: float) -> None:
        super().__init__(env)
        self.level = level

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Reset and start this episode's own stream."""
        self._rng = np.random.default_rng((noise_seed, 0xAC7))
        return super().reset(seed, noise_seed)

    def step(self, action: str) -> StepResult:
        """Step with the chosen or the drawn action."""
        if self._rng.random() < self.level and self.actions:
            action = self.actions[int(self._rng.integers(len(self.actions)))]
        return super().step(action)


class RandomReward(EnvWrapper):
    """Replaces the outcome's reward by a fair coin with probability ``level``.

    Drawn once per episode. Step costs stay; the recorded success stays the true one; an episode
    that a cap ends gets its coin there. Ungraded steps stay ungraded.

    Args:
        env: Any environment.
        level: Probability in [0, 1].
    """

    def __init__(self, env: TextEnv, level: float) -> None:
        super().__init__(env)
        self.level = level

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Reset and draw whether the outcome is replaced, and by what."""
        rng = np.random.default_rng((noise_seed, 0x4E3))
        self._replaced = bool(rng.random() < self.level)
        heads = bool(rng.random() < 0.5)
        observation = super().reset(seed, noise_seed)
        self._coin = self.outcomes[0] if heads else self.outcomes[1]
        return observation

    def step(self, action: str) -> StepResult:
        """Step; take the outcome's reward away and pay the coin at the end."""
        result = super().step(action)
        if not self._replaced or result.reward is None:
            return result
        outcome = result.reward if result.outcome is None else result.outcome
        paid = self._coin if result.done else 0.0
        return replace(result, reward=result.reward - outcome + paid, outcome=paid)

    def settle(self) -> float:
        """Pay the coin of an episode that a cap ended."""
        return self._coin if self._replaced else super().settle()
