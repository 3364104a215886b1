"""Success on held-out boards: during training, and of any run or model."""

import time
from collections.abc import Callable, Sequence
from statistics import fmean

from ragen2_cli.core.statistics import wilson
from ragen2_cli.records import Evaluation
from ragen2_cli.rollout.engine import Trajectory
from ragen2_cli.training import processes
from ragen2_cli.training.player import Player

MATCHING_EPISODES = 128
"""Held-out boards that each round of the search for a matched temperature plays."""


def measure(player: Player, boards: Sequence[int], *, step: int, temperature: float) -> Evaluation:
    """Play every board once, each process its share, and count.

    Args:
        player: Who plays what.
        boards: Held-out environment seeds.
        step: Optimizer steps done so far.
        temperature: Sampling temperature; 0 is greedy.
    """
    start = time.perf_counter()
    own = processes.share(list(boards))
    played = processes.gather(player.play_heldout(own, step=step, temperature=temperature))
    return summarize(
        played, step=step, temperature=temperature, seconds=time.perf_counter() - start
    )


def summarize(
    played: Sequence[Trajectory], *, step: int, temperature: float, seconds: float
) -> Evaluation:
    """Turn held-out episodes into one row; an episode without a score counts as no success.

    Args:
        played: At least one episode.
        step: Optimizer steps done so far.
        temperature: The temperature they were sampled at; 0 is greedy.
        seconds: How long they took.
    """
    episodes = [trajectory.episode for trajectory in played]
    successes = sum(episode.success for episode in episodes)
    interval = wilson(successes, len(episodes))
    returns = [episode.episode_return for episode in episodes if episode.episode_return is not None]
    turns = sum(len(episode.turns) for episode in episodes)
    return Evaluation(
        step=step,
        decoding="sampled" if temperature > 0 else "greedy",
        temperature=temperature,
        episodes=len(episodes),
        successes=successes,
        success=successes / len(episodes),
        ci_low=interval.low,
        ci_high=interval.high,
        episode_return=fmean(returns) if returns else None,
        invalid_rate=sum(episode.invalid_turns for episode in episodes) / max(turns, 1),
        response_length=fmean(trajectory.sampled_tokens for trajectory in played),
        entropy=_sampling_entropy(played) if temperature > 0 else None,
        seconds=seconds,
    )


def _sampling_entropy(played: Sequence[Trajectory]) -> float:
    tokens = sum(trajectory.sampled_tokens for trajectory in played)
    return -sum(sum(trajectory.sampling_logprobs) for trajectory in played) / tokens


def measure_at_entropy(player: Player, boards: Sequence[int], entropy: float) -> Evaluation:
    """Measure a start policy at the temperature that gives it a certain sampling entropy.

    Args:
        player: Who plays what.
        boards: Held-out environment seeds; the search for the temperature plays the first
            ``MATCHING_EPISODES`` of them.
        entropy: The entropy to reach, in nats.
    """

    def entropy_at(temperature: float) -> float:
        few = boards[:MATCHING_EPISODES]
        return measure(player, few, step=0, temperature=temperature).entropy or 0.0

    temperature = temperature_of_entropy(entropy_at, entropy)
    return measure(player, boards, step=0, temperature=temperature)


def temperature_of_entropy(
    entropy_at: Callable[[float], float],
    target: float,
    *,
    low: float = 0.05,
    high: float = 2.0,
    rounds: int = 6,
) -> float:
    """Return the temperature at which a policy's sampling entropy equals ``target``.

    Bisection; entropy grows with temperature. A target outside the bracket gives its nearer end.

    Args:
        entropy_at: Mean entropy in nats of what is sampled at a temperature.
        target: The entropy to reach, in nats.
        low: Lower end of the bracket.
        high: Upper end of the bracket.
        rounds: Halvings; each asks ``entropy_at`` once.
    """
    for _ in range(rounds):
        middle = (low + high) / 2
        if entropy_at(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2
