"""The contract of a text environment: what one small class must say.

An environment is a game with text in and text out. It knows nothing of tokens, prompts, tags,
budgets or penalties: ``session.py`` wraps it into an episode and adds those.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action did.

    Attributes:
        reward: The action's reward; None when it could not be graded (an infrastructure fault).
        done: True when the episode is over.
        success: True when the goal is reached (only meaningful when done).
        valid: False when the text was no action at all; the state did not change.
        info: Extra numbers to log (for example ``{"f1": 0.5}``); not shown to the policy.
        outcome: The part of ``reward`` that pays for the outcome; None means all of it. Only
            ``reward`` stochasticity reads it (Sokoban keeps its step costs and replaces the +10).
    """

    reward: float | None
    done: bool = False
    success: bool = False
    valid: bool = True
    info: dict[str, float] | None = None
    outcome: float | None = None


class TextEnv(ABC):
    """Base class of every environment.

    Class attributes say what the session needs to know; instances are cheap, picklable and own
    their generators: the same ``(seed, noise_seed)`` is the same episode in any process.

    Attributes:
        name: What messages call it.
        instruction: What the task is, the legend of its symbols and what an answer looks like.
        actions: The finite list of action names, or None for free text. It may depend on the
            seed (the arms of a bandit): then it is ``()`` before the first reset.
        max_turns: Turn cap of an episode.
        max_actions: Action budget of an episode.
        actions_per_turn: How many actions of one answer run at most.
        outcomes: The declared (success, failure) outcome, used by ``reward`` stochasticity.
        concurrent: True when ``step`` mostly waits for something outside this thread (a sandbox, a
            server): different episodes then step at the same time, each in a thread, while the
            policy goes on with the others.
    """

    name: str = ""
    instruction: str = ""
    actions: tuple[str, ...] | None = None
    max_turns: int = 5
    max_actions: int = 10
    actions_per_turn: int = 2
    outcomes: tuple[float, float] = (1.0, 0.0)
    concurrent: bool = False

    @abstractmethod
    def reset(self, seed: int, noise_seed: int = 0) -> str:
        """Start the episode of ``seed`` and return the first observation.

        Args:
            seed: Decides the board (the prompt); equal for all rollouts of a group.
            noise_seed: Decides the dynamics' randomness; differs between rollouts of a group.
        """

    @abstractmethod
    def step(self, action: str) -> StepResult:
        """Run one action (a canonical name where ``actions`` is finite, else the raw text).

        Raises:
            RuntimeError: When the episode is already over; it never pays twice.
        """

    @abstractmethod
    def observe(self) -> str:
        """Return the current state as text (also valid after the end)."""

    def key(self) -> str:
        """Return a text that is equal exactly for equal starts; splits boards into train/held-out.

        Called directly after ``reset``. The default is the first observation.
        """
        return self.observe()

    def optimal_actions(self) -> frozenset[str]:
        """Return the best next actions from the current state; empty when no solver knows any.

        The warm start of the embedded policy imitates them. The default is the empty set.
        """
        return frozenset()

    def settle(self) -> float:
        """Return a last reward for an episode that a limit ended before the environment was done.

        The session calls it once (action budget, turn cap or context limit) and adds the value to
        the last turn's reward. The default is 0; ``reward`` stochasticity pays its coin here.
        """
        return 0.0
