"""An environment around another one: the same game unless a subclass changes something."""

from ragen2_cli.envs.base import StepResult, TextEnv


class EnvWrapper(TextEnv):
    """Passes everything on to ``env``; subclasses override what they change.

    Args:
        env: The wrapped environment.
    """

    def __init__(self, env: TextEnv) -> None:
        self.env = env
        self._mirror()

    def _mirror(self) -> None:
        """Copy what the session reads; actions may change with a reset."""
        self.name = self.env.name
        self.instruction = self.env.instruction
        self.actions = self.env.actions
        self.max_turns = self.env.max_turns
        self.max_actions = self.env.max_actions
        self.actions_per_turn = self.env.actions_per_turn
        self.outcomes = self.env.outcomes
        self.concurrent = self.env.concurrent

    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Reset the wrapped environment."""
        observation = self.env.reset(seed, noise_seed)
        self._mirror()
        return observation

    def step(self, action: str) -> StepResult:
        """Step the wrapped environment."""
        return self.env.step(action)

    def observe(self) -> str:
        """Return the wrapped environment's state."""
        return self.env.observe()

    def key(self) -> str:
        """Return the wrapped environment's key: wrapped or not, a board is on the same side."""
        return self.env.key()

    def optimal_actions(self) -> frozenset[str]:
        """Return the wrapped environment's best actions."""
        return self.env.optimal_actions()

    def settle(self) -> float:
        """Settle the wrapped environment."""
        return self.env.settle()
