"""One episode around one environment: turns, limits, penalties, statuses and prompt wording.

A session knows no tokens. The rollout engine asks for ``messages``, submits one completion per
turn and sends the returned user message, until it gets None.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from ragen2_cli.envs import wording
from ragen2_cli.envs.base import StepResult, TextEnv
from ragen2_cli.envs.parsing import match_actions, parse, split_actions
from ragen2_cli.errors import UserError
from ragen2_cli.records import Status, Turn

Style = Literal["full", "compact"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds an episode.

    Attributes:
        max_turns: Turn cap.
        max_actions: Action budget over all turns; invalid actions cost none of it.
        actions_per_turn: Actions of one answer that run at most; the rest of the answer is cut.
        format_penalty: Added to the return for each turn that is not valid; 0 or negative.
        word_limit: Words the policy is asked to stay within (full style only; not enforced).
    """

    max_turns: int
    max_actions: int
    actions_per_turn: int
    format_penalty: float = -0.1
    word_limit: int = 100

    def __post_init__(self) -> None:
        for name, value in (
            ("max_turns", self.max_turns),
            ("max_actions", self.max_actions),
            ("actions_per_turn", self.actions_per_turn),
            ("word_limit", self.word_limit),
        ):
            if value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        if not -math.inf < self.format_penalty <= 0:
            raise UserError(f"format_penalty must be 0 or negative, not {self.format_penalty}")

    @classmethod
    def of(cls, env: TextEnv, format_penalty: float = -0.1, word_limit: int = 100) -> "Limits":
        """Return the environment's own limits."""
        return cls(env.max_turns, env.max_actions, env.actions_per_turn, format_penalty, word_limit)


class Session:
    """One environment's episode; resets the environment when it is built.

    Args:
        env: The environment; this session owns it until the episode ends.
        seed: The prompt's seed (equal inside a group).
        noise_seed: The seed of the dynamics (differs inside a group).
        limits: See :class:`Limits`.
        style: ``full`` explains the task in words (system message, budget, format request);
            ``compact`` shows the bare observation, for the embedded policy.
        silent: Every reward and penalty is recorded as 0 and success as False, whatever happens
            (a prompt chosen by ``--dead-share``).
    """

    def __init__(
        self,
        env: TextEnv,
        *,
        seed: int,
        noise_seed: int,
        limits: Limits,
        style: Style = "full",
        silent: bool = False,
    ) -> None:
        self.env = env
        self.seed = seed
        self.noise_seed = noise_seed
        self.limits = limits
        self.style = style
        self.silent = silent
        self._turns: list[Turn] = []
        self._actions_used = 0
        self._status: Status | None = None
        observation = env.reset(seed, noise_seed)
        self._shown = self._user_message(observation)
        self.messages: list[dict[str, str]] = [{"role": "user", "content": self._shown}]
        if style == "full":
            system = wording.system_message(
                env.instruction, env.actions, limits.actions_per_turn, limits.max_actions
            )
            self.messages.insert(0, {"role": "system", "content": system})

    def submit(self, completion: str) -> str | None:
        """Read one completion, run its actions and record the turn.

        The turn is valid when the answer holds at least one known action and no unknown one.
        Known actions run in order until the environment is done or the budget is spent; the
        others are dropped.

        Args:
            completion: The sampled text after the prompt's opening ``<think>``.

        Returns:
            The next user message, or None when the episode is over.

        Raises:
            RuntimeError: When the episode is over; it never pays twice.
        """
        if self._status is not None:
            raise RuntimeError(f"the episode is over ({self._status}); it takes no more answers")
        parsed = parse(completion)
        known, unknown = match_actions(self._words(parsed.answer), self.env.actions)
        ran, rewards, last, refused = self._run(known)
        valid = bool(ran) and not unknown and not refused
        self._status = self._ending(last)
        if self._status in ("action_budget", "turn_cap"):
            rewards.append(self.env.settle())
        failed = self._status == "grader_error"
        penalty = 0.0 if valid or failed else self.limits.format_penalty
        self._turns.append(
            Turn(
                observation=self._shown,
                reasoning=parsed.reasoning,
                answer=parsed.answer,
                actions=tuple(ran),
                reward=None if failed else 0.0 if self.silent else math.fsum(rewards),
                penalty=0.0 if self.silent else penalty,
                valid=valid,
                info=self._info,
            )
        )
        if self._status is not None:
            return None
        self._shown = self._user_message(self.env.observe())
        return self._shown

    def abort(self, status: Status) -> None:
        """End the episode from outside, usually with ``context_limit``.

        What is earned stays earned; after ``grader_error`` the episode has no score.

        Raises:
            RuntimeError: When the episode is already over.
        """
        if self._status is not None:
            raise RuntimeError(f"the episode is already over ({self._status})")
        self._status = status
        last = self._turns[-1] if self._turns else None
        if status == "context_limit" and last is not None and last.reward is not None:
            owed = 0.0 if self.silent else self.env.settle()
            self._turns[-1] = replace(last, reward=last.reward + owed)

    @property
    def concurrent(self) -> bool:
        """Whether ``submit`` may wait long and run in a thread; see :class:`TextEnv`."""
        return self.env.concurrent

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self._status is not None

    @property
    def status(self) -> Status:
        """How the episode ended.

        Raises:
            RuntimeError: While it still runs.
        """
        if self._status is None:
            raise RuntimeError("the episode still runs; it has no status")
        return self._status

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The exchanges so far."""
        return tuple(self._turns)

    @property
    def outcome(self) -> float | None:
        """Sum of the turn rewards so far, without penalties; None after a grader error."""
        if self._status == "grader_error":
            return None
        return math.fsum(turn.reward for turn in self._turns if turn.reward is not None)

    @property
    def episode_return(self) -> float | None:
        """Sum of turn rewards and format penalties so far; None after a grader error."""
        if self._status == "grader_error":
            return None
        rewards = [turn.reward for turn in self._turns if turn.reward is not None]
        return math.fsum(rewards + [turn.penalty for turn in self._turns])

    @property
    def success(self) -> bool:
        """Whether the environment's goal was reached."""
        return self._status == "success"

    def _words(self, answer: str) -> list[str]:
        """Return the answer's actions; free text with one action a turn is taken whole."""
        if self.env.actions is None and self.limits.actions_per_turn == 1:
            return [answer] if answer else []
        return split_actions(answer, self.limits.actions_per_turn)

    def _run(self, known: list[str]) -> tuple[list[str], list[float], StepResult | None, bool]:
        """Run actions until done, ungraded or out of budget.

        Returns:
            The actions that ran, their rewards, the last result and whether the environment
            refused a text as no action.
        """
        ran: list[str] = []
        rewards: list[float] = []
        last: StepResult | None = None
        refused = False
        self._info: dict[str, float] = {}
        for action in known:
            if self._actions_used >= self.limits.max_actions:
                break
            last = self.env.step(action)
            self._info |= last.info or {}
            if last.reward is not None:
                rewards.append(last.reward)
            if last.valid:
                ran.append(action)
                self._actions_used += 1
            refused = refused or not last.valid
            if last.done or last.reward is None:
                break
        return ran, rewards, last, refused

    def _ending(self, last: StepResult | None) -> Status | None:
        """Return how the episode ends after the turn's last result, or None when it goes on."""
        if last is not None and last.reward is None:
            return "grader_error"
        if last is not None and last.done:
            return "success" if last.success and not self.silent else "failure"
        if self._actions_used >= self.limits.max_actions:
            return "action_budget"
        return "turn_cap" if len(self._turns) + 1 >= self.limits.max_turns else None

    def _user_message(self, observation: str) -> str:
        """Render the message of the next turn in this session's style."""
        previous = self._turns[-1] if self._turns else None
        if self.style == "compact":
            return wording.compact_message(observation, previous)
        return wording.user_message(
            observation,
            previous,
            turn=len(self._turns) + 1,
            max_turns=self.limits.max_turns,
            actions_left=self.limits.max_actions - self._actions_used,
            actions_per_turn=self.limits.actions_per_turn,
            free_text=self.env.actions is None,
            word_limit=self.limits.word_limit,
        )
