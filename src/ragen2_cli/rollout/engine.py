"""The multi-turn rollout: sessions on one side, a policy on the other, token ids in between.

What was sampled is what is trained on: sampled ids are kept as they are and observation ids are
put between them with a loss mask of 0; nothing is rendered twice or encoded again.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from ragen2_cli.envs.session import Session
from ragen2_cli.errors import UserError
from ragen2_cli.records import Episode
from ragen2_cli.rollout.policy import Following, Policy, SampledTurn
from ragen2_cli.rollout.template import ChatTemplate

# Most environments that are waited for at once; each is a sandbox's or a server's business.
BUSY_ENVIRONMENTS = 32


class EpisodeId(NamedTuple):
    """Where an episode belongs; see :class:`ragen2_cli.records.Episode`."""

    step: int
    group: int
    rollout: int
    seed: int


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode with what was measured while it was sampled.

    The three sequences run parallel to ``episode.completion_ids`` and hold 0 at observation
    tokens.

    Attributes:
        episode: The record.
        logprobs: Log-probability of each sampled id at temperature 1, in nats.
        sampling_logprobs: The same at the sampling temperature; 0 when greedy.
        entropies: Entropy at temperature 1 of what each sampled id was drawn from, in nats.
        truncated_turns: Turns that the token limit ended, not a stop.
    """

    episode: Episode
    logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    entropies: tuple[float, ...]
    truncated_turns: int

    @property
    def sampled_tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(self.episode.loss_mask)


@dataclass(slots=True)
class _Course:
    """An episode under way."""

    session: Session
    prompt: str
    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    truncated: int = 0

    def add_turn(self, turn: SampledTurn) -> None:
        self.spans.append((len(self.ids), len(self.ids) + len(turn.ids)))
        self._extend(turn.ids, 1, turn.logprobs, turn.sampling_logprobs, turn.entropies)
        self.truncated += turn.truncated

    def add_observation(self, ids: Sequence[int]) -> None:
        zeros = [0.0] * len(ids)
        self._extend(ids, 0, zeros, zeros, zeros)

    def _extend(
        self,
        ids: Sequence[int],
        mask: int,
        logprobs: Sequence[float],
        sampling_logprobs: Sequence[float],
        entropies: Sequence[float],
    ) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
        self.logprobs += logprobs
        self.sampling_logprobs += sampling_logprobs
        self.entropies += entropies

    def finished(self, where: EpisodeId) -> Trajectory:
        session = self.session
        episode = Episode(
            step=where.step,
            group=where.group,
            rollout=where.rollout,
            seed=where.seed,
            prompt=self.prompt,
            turns=session.turns,
            episode_return=session.episode_return,
            outcome=session.outcome,
            success=session.success,
            status=session.status,
            prompt_ids=tuple(self.prompt_ids),
            completion_ids=tuple(self.ids),
            loss_mask=tuple(self.mask),
            turn_spans=tuple(self.spans),
            silent=session.silent,
        )
        return Trajectory(
            episode,
            tuple(self.logprobs),
            tuple(self.sampling_logprobs),
            tuple(self.entropies),
            self.truncated,
        )


def rollout(
    policy: Policy,
    template: ChatTemplate,
    sessions: Sequence[Session],
    *,
    ids: Sequence[EpisodeId],
    seeds_N: Sequence[int],
    max_new_tokens: int,
    context_limit: int,
    temperature: float = 1.0,
) -> list[Trajectory]:
    """Play every session to its end and return one trajectory each, in order.

    A turn needs room for ``max_new_tokens``: where the context after an observation has less,
    the episode ends with ``context_limit`` before that observation. A turn without a stop is
    cut at ``max_new_tokens`` and submitted as it is. Every turn holds at least one sampled token.

    Args:
        policy: Who plays.
        template: How messages become ids.
        sessions: Fresh sessions, one per episode; equal prompts (groups) are encoded once.
        ids: Where each episode belongs.
        seeds_N: Seed of each episode's sampling stream; a repeated seed repeats the samples.
        max_new_tokens: Most sampled tokens of a turn, at least 1.
        context_limit: Most tokens of prompt and completion together.
        temperature: Softmax temperature of sampling; 0 is greedy.

    Raises:
        UserError: A value out of range, or a first prompt that leaves no room for a turn.
    """
    _check(max_new_tokens, temperature, len(sessions), len(ids), len(seeds_N))
    courses = []
    for session in sessions:
        prompt_ids = template.first_prompt_ids(session.messages)
        courses.append(_Course(session, session.messages[-1]["content"], prompt_ids))
        if len(prompt_ids) + max_new_tokens > context_limit:
            raise UserError(
                f"context_limit {context_limit} has no room for a prompt of {len(prompt_ids)} "
                f"tokens and a turn of {max_new_tokens}: raise context_limit or lower "
                "max_new_tokens"
            )

    def reply(number: int, turn: SampledTurn) -> Following | Callable[[], Following]:
        course = courses[number]
        course.add_turn(turn)
        text = template.completion_text(turn.ids)
        if not course.session.concurrent:
            return observe(course, turn, course.session.submit(text))
        submitted = helpers.submit(course.session.submit, text)
        return lambda: observe(course, turn, submitted.result())

    def observe(course: _Course, turn: SampledTurn, message: str | None) -> Following:
        if message is None:
            return None
        following = template.next_turn_ids(message, sampled_ids=turn.ids)
        used = len(course.prompt_ids) + len(course.ids) + len(following)
        if used + max_new_tokens > context_limit:
            course.session.abort("context_limit")
            return None
        course.add_observation(following)
        return following

    with ThreadPoolExecutor(BUSY_ENVIRONMENTS, thread_name_prefix="environment") as helpers:
        if courses:
            policy.converse(
                [course.prompt_ids for course in courses],
                seeds_N,
                reply,
                stop=template.stop,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
            )
    return [course.finished(where) for course, where in zip(courses, ids, strict=True)]


def _check(max_new_tokens: int, temperature: float, *counts: int) -> None:
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"temperature must be 0 or a positive number, not {temperature}")
    if len(set(counts)) != 1:
        raise ValueError(f"sessions, ids and seeds_N differ in length: {counts}")
