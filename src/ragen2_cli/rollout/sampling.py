"""Random streams and token sampling: one uniform number per token, drawn by inverse CDF.

Every episode has a counter-based stream of its own (Philox keyed by its seed), so a sample
depends on the episode's seed and context alone, not on its neighbors in the batch.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def stream(seed: int) -> np.random.Generator:
    """Return the random stream of the episode with this seed (0 <= seed < 2**128)."""
    return np.random.Generator(np.random.Philox(key=seed))


def draw(
    logits_R_V: "torch.Tensor", uniforms_R: "torch.Tensor", temperature: float
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Draw one token per row.

    The token is the first whose cumulative probability exceeds the row's uniform number; sums
    run in float64, so no token of probability 0 is drawn and no mass is lost at the end.
    At temperature 0 it is the most likely token (the lowest id of a tie) and the uniform number
    is unused.

    Args:
        logits_R_V: Raw scores, one row per live episode.
        uniforms_R: Numbers in [0, 1), float64, on the CPU.
        temperature: Softmax temperature, 0 or more.

    Returns:
        The ids (R,), and in float32 (3, R): log-probability at temperature 1, log-probability
        at ``temperature`` (0 when greedy), entropy at temperature 1 in nats. They lie where the
        logits do, but for Apple's MPS, which has no float64: there on the CPU.
    """
    import torch

    logits_R_V = logits_R_V.float()
    if logits_R_V.device.type == "mps":
        logits_R_V = logits_R_V.cpu()
    logprobs_R_V = logits_R_V.log_softmax(-1)
    probs_R_V = logprobs_R_V.exp()
    # torch.special.entr would repeat the logarithm; 0 * -inf (a forbidden token) counts as 0
    entropy_R = -(probs_R_V * logprobs_R_V.clamp_min(torch.finfo(torch.float32).min)).sum(-1)
    if temperature == 0:
        ids_R = logits_R_V.argmax(-1)
        chosen_R = logprobs_R_V.gather(-1, ids_R[:, None])[:, 0]
        return ids_R, torch.stack((chosen_R, torch.zeros_like(chosen_R), entropy_R))
    if temperature != 1:
        tempered_R_V = (logits_R_V / temperature).log_softmax(-1)
        probs_R_V = tempered_R_V.exp()
    cumulative_R_V = probs_R_V.cumsum(-1, dtype=torch.float64)
    targets_R_1 = uniforms_R.to(logits_R_V.device)[:, None] * cumulative_R_V[:, -1:]
    ids_R_1 = torch.searchsorted(cumulative_R_V, targets_R_1, right=True)
    ids_R_1.clamp_(max=logits_R_V.shape[-1] - 1)
    chosen_R = logprobs_R_V.gather(-1, ids_R_1)[:, 0]
    tempered_R = chosen_R if temperature == 1 else tempered_R_V.gather(-1, ids_R_1)[:, 0]
    return ids_R_1[:, 0], torch.stack((chosen_R, tempered_R, entropy_R))
