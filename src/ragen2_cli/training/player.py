"""Plays a config's environment with a policy: training groups and held-out boards."""

from collections.abc import Sequence
from typing import Any

from ragen2_cli.config import Config
from ragen2_cli.envs.session import Session, Style
from ragen2_cli.envs.splits import heldout_seeds, is_silent, train_seeds
from ragen2_cli.errors import UserError
from ragen2_cli.rollout.engine import EpisodeId, Trajectory, rollout
from ragen2_cli.rollout.policies import TransformersPolicy
from ragen2_cli.rollout.policy import Policy
from ragen2_cli.rollout.template import ChatTemplate
from ragen2_cli.training.devices import resolve_device
from ragen2_cli.training.models import LoadedPolicy, context_length
from ragen2_cli.training.preflight import build_env, limits_of
from ragen2_cli.training.seeding import episode_seed

MAX_NEW_TOKENS: dict[Style, int] = {"compact": 96, "full": 400}
LENGTH_NORM = 2048
"""Tokens that ``dr-grpo`` divides by where episodes cannot sample more."""


class Player:
    """An environment, a policy and the limits between them.

    Args:
        config: The run's config.
        policy: Who plays.
        template: How messages become token ids.
        style: How the prompts are worded.
        context_limit: Most tokens of an episode.
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        template: ChatTemplate,
        *,
        style: Style,
        context_limit: int,
    ) -> None:
        self.config = config
        self.policy = policy
        self.template = template
        self.style: Style = style
        self.max_new_tokens = config.rollout.max_new_tokens or MAX_NEW_TOKENS[style]
        self.context_limit = context_limit
        if config.rollout.backend == "vllm" and config.trl.get("vllm_max_model_length"):
            self.context_limit = min(self.context_limit, config.trl["vllm_max_model_length"])
        self._env = build_env(config)
        self.limits = limits_of(config, self._env)

    @property
    def max_completion_length(self) -> int:
        """The constant length that ``dr-grpo`` divides a row's loss by.

        ``algorithm.length_norm``, or ``LENGTH_NORM`` and at least what an episode can sample,
        within the context. A model's whole context (32,768 for Qwen2.5) would only make the task
        and KL terms that much smaller beside an entropy bonus, divided by its own tokens.
        """
        sampled = self.limits.max_turns * self.max_new_tokens
        derived = min(self.context_limit, max(LENGTH_NORM, sampled))
        return self.config.algorithm.length_norm or derived

    def next_boards(self, cursor: int, count: int) -> tuple[list[int], int]:
        """Return the seeds of the next training prompts and the cursor after them."""
        return train_seeds(self._env, self.config.seed, cursor, count)

    def heldout_boards(self, count: int) -> list[int]:
        """Return the seeds of ``count`` different held-out boards, equal in every run."""
        return heldout_seeds(self._env, count)

    def play_groups(self, boards: Sequence[int], *, step: int, first: int = 0) -> list[Trajectory]:
        """Play every board ``group_size`` times at the training temperature.

        Args:
            boards: Environment seeds, one per group.
            step: The optimizer step that the batch belongs to.
            first: Group index of the first board in the whole batch.
        """
        rollouts = range(self.config.rollout.group_size)
        ids = [
            EpisodeId(step, first + group, number, board)
            for group, board in enumerate(boards)
            for number in rollouts
        ]
        run_seed, share = self.config.seed, self.config.env.dead_share
        sessions = [
            self._session(
                where.seed,
                episode_seed("noise", run_seed, where.seed, where.rollout),
                silent=is_silent(where.seed, share),
            )
            for where in ids
        ]
        seeds = [episode_seed("sampling", run_seed, where.seed, where.rollout) for where in ids]
        return self._rollout(sessions, ids, seeds, self.config.rollout.temperature)

    def play_heldout(
        self, boards: Sequence[int], *, step: int, temperature: float
    ) -> list[Trajectory]:
        """Play every held-out board once; the same noise and sampling numbers in every run.

        Args:
            boards: Environment seeds from ``heldout_boards``.
            step: Optimizer steps done so far.
            temperature: Sampling temperature; 0 is greedy.
        """
        ids = [EpisodeId(step, index, 0, board) for index, board in enumerate(boards)]
        sessions = [
            self._session(board, episode_seed("evaluation noise", 0, board, 0)) for board in boards
        ]
        seeds = [episode_seed("evaluation sampling", 0, board, 0) for board in boards]
        return self._rollout(sessions, ids, seeds, temperature)

    def _session(self, board: int, noise: int, *, silent: bool = False) -> Session:
        return Session(
            build_env(self.config),
            seed=board,
            noise_seed=noise,
            limits=self.limits,
            style=self.style,
            silent=silent,
        )

    def _rollout(
        self,
        sessions: list[Session],
        ids: list[EpisodeId],
        seeds: list[int],
        temperature: float,
    ) -> list[Trajectory]:
        return rollout(
            self.policy,
            self.template,
            sessions,
            ids=ids,
            seeds_N=seeds,
            max_new_tokens=self.max_new_tokens,
            context_limit=self.context_limit,
            temperature=temperature,
        )


def build_player(config: Config, model: Any, loaded: LoadedPolicy, *, fused: bool = True) -> Player:
    """Put a loaded model (or the trainable wrapper around it) into its config's environment.

    Args:
        config: The run's config.
        model: Who plays.
        loaded: What it was loaded with.
        fused: Whether a small model may be sampled from past its own ``forward``; not where that
            runs under autocast.

    Raises:
        UserError: Neither the model nor ``rollout.context_limit`` says how long an episode may be.
    """
    limit = config.rollout.context_limit or context_length(loaded.model)
    if limit is None:
        raise UserError(
            f"--model {config.model.name}: its config tells no length of its context; set "
            "rollout.context_limit"
        )
    stop = loaded.model.generation_config.eos_token_id
    stop_ids = () if stop is None else stop if isinstance(stop, list) else (stop,)
    return Player(
        config,
        TransformersPolicy(model, max_rows=_rows_at_once(config), fused=fused),
        ChatTemplate(loaded.tokenizer, stop_ids=stop_ids),
        style=loaded.style,
        context_limit=limit,
    )


def _rows_at_once(config: Config) -> int | None:
    """Return how many episodes are sampled together: evaluation must fit where training does.

    None leaves it to the policy.
    """
    if config.rollout.max_rows or resolve_device(config.model.device) == "cpu":
        return config.rollout.max_rows or None
    return min(256, max(64, config.rollout.prompts * config.rollout.group_size))
