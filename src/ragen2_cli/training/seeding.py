"""Where an episode's randomness comes from: what it is, never a process, a batch or a clock."""

from typing import Literal

from ragen2_cli.envs.splits import stable_hash

Stream = Literal["noise", "sampling", "evaluation noise", "evaluation sampling"]


def episode_seed(stream: Stream, run_seed: int, board_seed: int, rollout: int) -> int:
    """Return the 63-bit seed of one random stream of one episode.

    Every training prompt of a run has a board seed of its own, so these four name the stream
    wherever and in whatever batch the episode is played: runs that differ only in the filter meet
    the same boards, the same noise and the same sampling numbers.

    Args:
        stream: What is drawn from it.
        run_seed: The run's seed; 0 for evaluations, which are equal in every run.
        board_seed: The environment seed of the prompt group.
        rollout: Index inside the group.
    """
    return stable_hash(stream, run_seed, board_seed, rollout)
