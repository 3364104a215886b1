"""Does the reasoning still depend on the prompt? Metrics of the cross log-probability matrix.

``L[i, j]`` is the log-probability of reasoning i after prompt j (teacher-forced, temperature 1).
When the reasoning depends on its prompt, the own column beats the average column; when it has
become a template, all columns look alike. Follows RAGEN-2 (arXiv 2604.06268, section on mutual
information) and its code; where they differ, ``marginal`` chooses.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen2_cli.errors import UserError

Floats = NDArray[np.float64]
Marginal = Literal["token-mean", "sequence"]
RETRIEVAL_AT = (1, 2, 4, 8)
EMA_DECAY = 0.9


def cross_scoring_metrics(
    sum_logprobs_N_P: ArrayLike,
    lengths_N: ArrayLike,
    own_N: ArrayLike,
    prompt_ids_P: Sequence[object],
    marginal: Marginal = "token-mean",
    std_eps: float = 1e-3,
) -> dict[str, float]:
    """Return every mutual-information metric of one measurement.

    With ``len`` the tokens of a row, per row and then averaged over rows::

        matched  = L[i, own] / len
        marginal = logsumexp_j(L[i, j] / len) - log P          token-mean
                   (logsumexp_j(L[i, j]) - log P) / len        sequence
        mi_estimate = matched - marginal                       nats per token
        mi_zscore   = (matched - marginal) / (std(marginal) + std_eps)

    Names ending in ``_seq`` (and ``mi_seq_estimate``) are the same without division by the length,
    in nats per reasoning; they do not depend on ``marginal``. Standard deviations are population
    ones. ``retrieval_accuracy@k`` is how often the own prompt is among the k best columns.
    Columns whose ``prompt_ids_P`` are equal are one prompt for retrieval and chance; the marginal
    counts every column. Small negative estimates are noise around zero.

    Rows that cannot be scored (no tokens; NaN or +inf anywhere; own entry -inf) are left out and
    counted in ``rows_left_out``; -inf in another column is an ordinary zero probability.

    Args:
        sum_logprobs_N_P: Summed token log-probabilities, one row per reasoning, one column per
            prompt.
        lengths_N: Tokens of each reasoning.
        own_N: Column of each row's own prompt.
        prompt_ids_P: Hashable identity of each column's prompt, for example its token ids.
        marginal: Which of the two marginals; they are not comparable with each other.
        std_eps: Added to the standard deviation in the z-scores.

    Raises:
        UserError: Fewer than two different prompts, or no row that can be scored.
        ValueError: Shapes that do not fit.
    """
    logprobs_N_P, lengths, own, codes_P, left_out = _checked(
        sum_logprobs_N_P, lengths_N, own_N, prompt_ids_P
    )
    if marginal not in ("token-mean", "sequence"):
        raise ValueError(f"unknown marginal '{marginal}': choose token-mean or sequence")
    rows, prompts = logprobs_N_P.shape
    own_seq_N = logprobs_N_P[np.arange(rows), own]
    marginal_seq_N = _logsumexp(logprobs_N_P) - np.log(prompts)
    matched_N = own_seq_N / lengths
    if marginal == "token-mean":
        marginal_N = _logsumexp(logprobs_N_P / lengths[:, None]) - np.log(prompts)
    else:
        marginal_N = marginal_seq_N / lengths
    result = {
        "mi_estimate": _mean(matched_N - marginal_N),
        "mi_seq_estimate": _mean(own_seq_N - marginal_seq_N),
        "mi_upper_bound": float(np.log(prompts)),
        "mi_zscore": _mean((matched_N - marginal_N) / (marginal_N.std() + std_eps)),
        "mi_zscore_seq": _mean((own_seq_N - marginal_seq_N) / (marginal_seq_N.std() + std_eps)),
        "matched_mean": _mean(matched_N),
        "matched_mean_seq": _mean(own_seq_N),
        "marginal_mean": _mean(marginal_N),
        "marginal_mean_seq": _mean(marginal_seq_N),
        "marginal_std": float(marginal_N.std()),
        "marginal_std_seq": float(marginal_seq_N.std()),
        "conditional_entropy": -_mean(matched_N),
        "conditional_entropy_seq": -_mean(own_seq_N),
        "reasoning_entropy": -_mean(marginal_N),
        "reasoning_entropy_seq": -_mean(marginal_seq_N),
        "rows": float(rows),
        "rows_left_out": float(left_out),
        "prompts": float(prompts),
        "distinct_prompts": float(codes_P.max() + 1),
    }
    for k in RETRIEVAL_AT:
        suffix = "" if k == 1 else f"@{k}"
        accuracy, chance = _retrieval(logprobs_N_P, own, codes_P, min(k, prompts))
        result[f"retrieval_accuracy{suffix}"] = accuracy
        result[f"retrieval_chance{suffix}"] = chance
        result[f"retrieval_above_chance{suffix}"] = accuracy - chance
    return result


def ema(values: Iterable[float], decay: float = EMA_DECAY) -> list[float]:
    """Return the running average ``decay * old + (1 - decay) * new``; the first value starts it.

    Empty in, empty out.
    """
    averages: list[float] = []
    for value in values:
        averages.append(ema_step(averages[-1] if averages else None, value, decay))
    return averages


def ema_step(previous: float | None, value: float, decay: float = EMA_DECAY) -> float:
    """Return the next running average; ``previous`` None means that ``value`` is the first."""
    return value if previous is None else decay * previous + (1 - decay) * value


def add_ema(
    metrics: Mapping[str, float],
    previous: Mapping[str, float] | None,
    std_eps: float = 1e-3,
    decay: float = EMA_DECAY,
) -> dict[str, float]:
    """Return ``metrics`` with the z-scores whose standard deviation is smoothed over measurements.

    Adds ``marginal_std_ema`` and ``marginal_std_ema_seq`` (the state: hand the returned dict in as
    ``previous`` next time) and ``mi_zscore_ema`` and ``mi_zscore_ema_seq``, which are
    ``mi / (smoothed std + std_eps)``.
    """
    result = dict(metrics)
    for suffix, estimate in (("", "mi_estimate"), ("_seq", "mi_seq_estimate")):
        state = f"marginal_std_ema{suffix}"
        result[state] = ema_step(
            None if previous is None else previous[state], metrics[f"marginal_std{suffix}"], decay
        )
        result[f"mi_zscore_ema{suffix}"] = metrics[estimate] / (result[state] + std_eps)
    return result


def _checked(
    sum_logprobs_N_P: ArrayLike,
    lengths_N: ArrayLike,
    own_N: ArrayLike,
    prompt_ids_P: Sequence[object],
) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64], int]:
    """Return the rows that can be scored, column identities as small integers, rows left out."""
    logprobs = np.asarray(sum_logprobs_N_P, dtype=np.float64)
    lengths = np.asarray(lengths_N, dtype=np.float64)
    own = np.asarray(own_N, dtype=np.int64)
    if logprobs.ndim != 2 or lengths.shape != own.shape or lengths.shape != logprobs.shape[:1]:
        raise ValueError(
            f"shapes do not fit: log-probabilities {logprobs.shape}, lengths {lengths.shape}, "
            f"own columns {own.shape}"
        )
    if len(prompt_ids_P) != logprobs.shape[1]:
        raise ValueError(f"{len(prompt_ids_P)} prompt ids for {logprobs.shape[1]} columns")
    if own.size and (own.min() < 0 or own.max() >= logprobs.shape[1]):
        raise ValueError("own columns must lie between 0 and the number of columns - 1")
    index: dict[object, int] = {}
    codes_P = np.array([index.setdefault(_hashable(key), len(index)) for key in prompt_ids_P])
    if len(index) < 2:
        raise UserError(
            f"cross-scoring needs at least two different prompts, but there is {len(index)}: "
            "take rows of more prompts"
        )
    own_logprob = logprobs[np.arange(len(own)), own]
    usable = (
        (lengths > 0)
        & np.isfinite(own_logprob)
        & ~np.any(np.isnan(logprobs) | np.isposinf(logprobs), axis=1)
    )
    if not usable.any():
        raise UserError(
            f"none of the {len(own)} reasonings can be scored: every one is empty or has NaN or "
            "infinite log-probabilities"
        )
    return logprobs[usable], lengths[usable], own[usable], codes_P, int((~usable).sum())


def _hashable(key: object) -> object:
    """Return lists and arrays of ids as tuples, everything else as it is."""
    return tuple(key) if isinstance(key, list | np.ndarray) else key


def _logsumexp(values_N_P: Floats) -> Floats:
    peak_N = values_N_P.max(axis=1)
    return peak_N + np.log(np.exp(values_N_P - peak_N[:, None]).sum(axis=1))


def _mean(values: Floats) -> float:
    return float(values.mean())


def _retrieval(
    logprobs_N_P: Floats, own_N: NDArray[np.int64], codes_P: NDArray[np.int64], k: int
) -> tuple[float, float]:
    """Return how often the own prompt is among the k best columns, and the chance of that.

    The free places among the k after all strictly better columns are shared evenly by the columns
    that tie with the best own one.
    """
    own_mask_N_P = codes_P[own_N][:, None] == codes_P[None, :]
    best_own_N = np.where(own_mask_N_P, logprobs_N_P, -np.inf).max(axis=1)
    better_N = (logprobs_N_P > best_own_N[:, None]).sum(axis=1)
    tied_N_P = logprobs_N_P == best_own_N[:, None]
    tied_own_N = (tied_N_P & own_mask_N_P).sum(axis=1)
    places_N = np.clip(k - better_N, 0, None)
    credit_N = np.minimum(1.0, places_N * tied_own_N / tied_N_P.sum(axis=1))
    chance = min(1.0, float((k * own_mask_N_P.sum(axis=1) / codes_P.size).mean()))
    return float(credit_N.mean()), chance
