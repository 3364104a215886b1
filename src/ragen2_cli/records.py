"""The rows that training writes and everything else reads.

Plain dataclasses: no I/O, no framework types. ``runs.py`` turns them into files and back.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1

Status = Literal["success", "failure", "action_budget", "turn_cap", "context_limit", "grader_error"]
STATUSES: tuple[Status, ...] = (
    "success",
    "failure",
    "action_budget",
    "turn_cap",
    "context_limit",
    "grader_error",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange: what the policy saw, what it thought, what it did, what it earned.

    Attributes:
        observation: The user message of this turn, exactly as rendered for the policy.
        reasoning: Text between the think tags; empty when there is none.
        answer: Text between the answer tags as written; empty when there is none.
        actions: The environment actions that ran, in order, by their canonical names.
        reward: Sum of the environment's rewards in this turn; None when the grader failed.
        penalty: Format penalty of this turn (0 or negative); part of the return.
        valid: True when the answer held at least one known action and no unknown one.
        info: Numbers that the environment measured (``f1``, ``retrieval_precision``); the rollout
            file does not hold them, their means are in ``Step.extra`` as ``env/NAME``.
    """

    observation: str
    reasoning: str
    answer: str
    actions: tuple[str, ...]
    reward: float | None
    penalty: float
    valid: bool
    info: dict[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout of one prompt, with everything that was trained on.

    Attributes:
        step: Optimizer step (1-based) whose batch it belongs to; 0 for evaluations before training.
        group: Index of its prompt group inside the batch.
        rollout: Index inside the group.
        seed: Seed of the environment instance; equal inside a group.
        prompt: The first user message.
        turns: The exchanges in order.
        episode_return: Sum of turn rewards and penalties; None when it has no score.
        outcome: The same without the format penalty; None when it has no score.
        success: Whether the environment's goal was reached (its true outcome).
        status: How it ended.
        prompt_ids: Token ids before the first sampled token.
        completion_ids: Sampled and observation token ids after the prompt, as trained on.
        loss_mask: 1 for each sampled completion token, 0 for each observation token.
        turn_spans: Half-open (start, end) index pairs into ``completion_ids``, one per turn's
            sampled tokens.
        advantage: Its advantage, the mean over its sampled tokens where they differ; None before
            it is known, and where a critic did not judge a group that was dropped.
        kept: Whether the group filter kept its group; None before it is known.
        silent: True when ``--dead-share`` silenced its prompt.
    """

    step: int
    group: int
    rollout: int
    seed: int
    prompt: str
    turns: tuple[Turn, ...]
    episode_return: float | None
    outcome: float | None
    success: bool
    status: Status
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    loss_mask: tuple[int, ...] = ()
    turn_spans: tuple[tuple[int, int], ...] = ()
    advantage: float | None = None
    kept: bool | None = None
    silent: bool = False

    @property
    def invalid_turns(self) -> int:
        """Number of turns whose answer was not valid."""
        return sum(not turn.valid for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step, one line of ``metrics.jsonl``.

    Rates are shares in [0, 1]; lengths are sampled tokens per episode; durations are seconds.
    A quantity that was not computed is None, never 0.
    """

    step: int
    success: float | None
    episode_return: float | None
    groups: int
    kept_groups: int
    dead_groups: int
    reward_std: float | None
    reward_var: float | None
    invalid_rate: float
    truncated_rate: float
    entropy: float | None
    kl: float | None
    loss: float | None
    grad_norm: float | None
    learning_rate: float
    response_length: float
    tokens: int
    rollout_seconds: float
    update_seconds: float
    step_seconds: float
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Success on the held-out prompts at one moment, one line of ``evaluations.jsonl``.

    Attributes:
        step: Optimizer steps done when it was measured.
        decoding: ``sampled`` or ``greedy``.
        temperature: Sampling temperature; 0 for greedy.
        episodes: Number of held-out episodes n.
        successes: How many reached the goal.
        success: ``successes / episodes``.
        ci_low: Lower end of the 95 % Wilson interval.
        ci_high: Upper end of the 95 % Wilson interval.
        episode_return: Mean return of the scored episodes.
        invalid_rate: Share of turns without a valid answer.
        response_length: Mean sampled tokens per episode.
        entropy: Mean negative log-probability of the sampled tokens under the distribution they
            were drawn from (an estimate of its entropy), in nats; None for greedy decoding.
        seconds: How long it took.
    """

    step: int
    decoding: Literal["sampled", "greedy"]
    temperature: float
    episodes: int
    successes: int
    success: float
    ci_low: float
    ci_high: float
    episode_return: float | None
    invalid_rate: float
    response_length: float
    entropy: float | None
    seconds: float


CellStatus = Literal["planned", "running", "done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep, one line of ``cells.jsonl`` each time its status changes.

    Attributes:
        name: Its folder's name below the sweep's ``runs/``.
        labels: What it has of each swept axis, such as ``{"filter": "top-p"}``; not the seed.
        seed: The run's seed; cells of equal seed meet the same boards and noise.
        config: Its resolved config.
        status: The newest status.
        reason: Why it failed, or which rule stopped it early; empty otherwise.
        seconds: How long its newest attempt took; None before one ended.
    """

    name: str
    labels: dict[str, str]
    seed: int
    config: dict[str, Any]
    status: CellStatus
    reason: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RunLog:
    """Everything numeric that a run wrote, for comparisons and plots.

    Attributes:
        name: The run's folder name.
        labels: Its arm in a sweep; empty for a run of its own.
        config: Its resolved config.
        steps: One row per optimizer step.
        evaluations: One row per held-out measurement.
        diagnostics: One row per measured step, as written.
        summary: What it ended with; None while it is not finished.
    """

    name: str
    labels: dict[str, str]
    config: dict[str, Any]
    steps: tuple[Step, ...]
    evaluations: tuple[Evaluation, ...]
    diagnostics: tuple[dict[str, Any], ...]
    summary: dict[str, Any] | None = None

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])
