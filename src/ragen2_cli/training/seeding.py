"""Where the randomness of an episode comes from: its own numbers, never a process or a clock."""

from typing import Literal

import numpy as np

_STREAMS = {"noise": 0, "sampling": 1, "evaluation-noise": 2, "evaluation-sampling": 3}

Stream = Literal["noise", "sampling", "evaluation-noise", "evaluation-sampling"]


def episode_seed(stream: Stream, run_seed: int, board_seed: int, rollout: int) -> int:
    """Return a 63-bit seed for one stream of one episode.

    Training prompts have board seeds of their own (a cursor over seeds), so the triple names an
    episode wherever and in whatever batch it is played: runs that differ only in the filter see
    the same boards, the same noise and the same sampling stream.

    Args:
        stream: What is drawn from it; streams are independent of each other.
        run_seed: The run's seed; 0 for evaluations, which are equal in every run.
        board_seed: The environment seed of the prompt group.
        rollout: Index inside the group.
    """
    sequence = np.random.SeedSequence([_STREAMS[stream], run_seed, board_seed, rollout])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
