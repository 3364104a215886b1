"""Trajectories in the form that TRL's ``rollout_func`` returns."""

from collections.abc import Sequence
from typing import Any

from ragen2_cli.rollout.engine import Trajectory


def trl_fields(
    trajectories: Sequence[Trajectory], *, sampling_logprobs: bool = False
) -> dict[str, Any]:
    """Return the dict of lists, one item per episode, in order.

    ``env_mask`` is 1 on sampled tokens and 0 on observations. TRL pads it with 1, so it must be
    combined with the completion mask wherever padding counts. The other fields reach reward
    functions row by row: ``episode_return``, ``outcome`` (None without a score), ``success``,
    ``status`` and the record itself as ``episode``.

    Args:
        trajectories: What ``rollout`` returned; every completion holds a sampled token.
        sampling_logprobs: Whether to pass on the log-probabilities that the tokens were drawn
            with (TRL then uses them for importance sampling); otherwise ``logprobs`` is None.
    """
    episodes = [trajectory.episode for trajectory in trajectories]
    logprobs = [list(trajectory.sampling_logprobs) for trajectory in trajectories]
    return {
        "prompt_ids": [list(episode.prompt_ids) for episode in episodes],
        "completion_ids": [list(episode.completion_ids) for episode in episodes],
        "logprobs": logprobs if sampling_logprobs else None,
        "env_mask": [list(episode.loss_mask) for episode in episodes],
        "episode_return": [episode.episode_return for episode in episodes],
        "outcome": [episode.outcome for episode in episodes],
        "success": [episode.success for episode in episodes],
        "status": [episode.status for episode in episodes],
        "episode": episodes,
    }
