"""Any of our environments as a TRL ``environment_factory``: one tool, ``act``.

    from datasets import Dataset
    from ragen2_cli import GroupFilter, SnrGRPOTrainer
    from ragen2_cli.envs.trl_adapter import environment_factory, task_rows

    trainer = SnrGRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        train_dataset=Dataset.from_list(task_rows("frozenlake", 64)),
        environment_factory=environment_factory("frozenlake"),
        group_filter=GroupFilter("top-p", 0.9),
    )

TRL owns the dialogue there: the model calls the tool, TRL masks its answers out of the loss and
asks the environment for its reward. Our own ``ragen2 train`` uses ``session.py`` instead.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

from ragen2_cli.envs import TextEnv, make
from ragen2_cli.envs.parsing import match_actions
from ragen2_cli.envs.splits import stable_hash, train_seeds

_OVER = "The episode is over."


class ToolEnvironment:
    """One rollout's environment, with the methods that TRL looks for.

    Args:
        env: The environment; this object owns it.
        number: Tells the chance of this instance from that of others.
        format_penalty: Added to the reward for each call that is no valid action.
    """

    def __init__(self, env: TextEnv, number: int, format_penalty: float) -> None:
        self._env = env
        self._number = number
        self._penalty = format_penalty
        self._resets = 0
        self._rewards: list[float] = []
        self._left = 0
        self._over = True
        self._graded = True

    def reset(self, seed: int = 0, **_: Any) -> str:
        """Start the episode of a data set row's ``seed``; its text ends the user's message."""
        noise = stable_hash("trl", self._number, self._resets, seed)
        self._resets += 1
        self._rewards, self._over, self._graded = [], False, True
        self._left = self._env.max_actions
        state = self._env.reset(seed, noise)
        actions = self._env.actions
        names = f"\nActions: {', '.join(actions)}." if actions else ""
        return f"{self._env.instruction}{names}\nAct with the tool `act`. State:\n{state}"

    def act(self, action: str) -> str:
        """Do one action in the environment.

        Args:
            action: The action, exactly as the instruction describes it.

        Returns:
            What the environment looks like afterwards.
        """
        if self._over:
            return _OVER
        known, _ = match_actions([action.strip()], self._env.actions)
        result = self._env.step(known[0]) if known else None
        if result is None or not result.valid:
            self._rewards.append(self._penalty)
            return f"That was no valid action. State:\n{self._env.observe()}"
        self._left -= 1
        if result.reward is None:
            self._graded, self._over = False, True
            return _OVER
        self._rewards.append(result.reward)
        self._over = result.done
        if not self._over and self._left == 0:
            self._rewards.append(self._env.settle())
            self._over = True
        return f"{self._env.observe()}\n{_OVER}" if self._over else self._env.observe()

    def get_reward(self) -> float | None:
        """Return the sum of all rewards and penalties; None when an action could not be graded."""
        return math.fsum(self._rewards) if self._graded else None


def environment_factory(
    name_or_path: str, *, format_penalty: float = -0.1, **options: Any
) -> Callable[[], ToolEnvironment]:
    """Return what TRL's trainers take as ``environment_factory``.

    Args:
        name_or_path: As for ``ragen2_cli.envs.make``.
        format_penalty: Added for each call that is no valid action; 0 or negative.
        **options: The environment's options, and ``stochasticity`` and ``kind``.

    Raises:
        UserError: As ``make``, at once and not in the middle of training.
    """
    make(name_or_path, **options)
    numbers = itertools.count()
    return lambda: ToolEnvironment(make(name_or_path, **options), next(numbers), format_penalty)


def task_rows(
    name_or_path: str, count: int, *, seed: int = 0, **options: Any
) -> list[dict[str, Any]]:
    """Return data set rows with a ``prompt`` and a training-side ``seed`` each.

    Args:
        name_or_path: As for ``ragen2_cli.envs.make``.
        count: How many rows.
        seed: Decides which boards are drawn.
        **options: As for ``environment_factory``.
    """
    seeds, _ = train_seeds(make(name_or_path, **options), seed, 0, count)
    prompt = [{"role": "user", "content": "Act in a text environment."}]
    return [{"prompt": prompt, "seed": number} for number in seeds]
