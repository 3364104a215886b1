"""Signs of input dependence that need no model: rewards and the first words of the text.

They work on any log. Two of them are compared with what shuffled prompts would give, because a
plain value says little: with 64 rows chance alone produces information.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
PREFIX_POSITIONS = 8
PERMUTATIONS = 200


def reward_metrics(
    rewards_N: ArrayLike, prompts_N: ArrayLike, *, permutations: int = PERMUTATIONS, seed: int = 0
) -> dict[str, float | None]:
    """Return ``reward_f_ratio`` and its permutation p-value.

    ``reward_f_ratio`` is the root of the one-way F ratio of the rewards over the prompts: with
    equal group sizes G it is std over prompts of the mean reward (ddof 1) divided by
    ``sqrt(mean within-prompt variance / G)``. About 1 without input dependence.
    ``reward_f_pvalue`` is ``(1 + shuffles at least as large) / (1 + shuffles)`` with rewards
    shuffled over all rows. Rows without a score (NaN) are left out.

    Both are None when they are undefined: fewer than two prompts, no prompt with two rows, or no
    variance at all. With no variance within any prompt the ratio is None (it would be infinite)
    and the p-value is still given.
    """
    rewards = np.asarray(rewards_N, dtype=np.float64)
    codes = _codes(prompts_N)
    scored = np.isfinite(rewards)
    rewards, codes = rewards[scored], _codes(codes[scored])
    groups = int(codes.max()) + 1 if codes.size else 0
    if groups < 2 or codes.size <= groups or np.ptp(rewards) <= 1e-6 * np.abs(rewards).max():
        return {"reward_f_ratio": None, "reward_f_pvalue": None}
    observed = _f_root(rewards[None, :], codes, groups)[0]
    rng = np.random.Generator(np.random.PCG64(seed))
    shuffled = rng.permuted(np.tile(rewards, (permutations, 1)), axis=1)
    reached = int((_f_root(shuffled, codes, groups) >= observed * (1 - 1e-9)).sum())
    return {
        "reward_f_ratio": float(observed) if np.isfinite(observed) else None,
        "reward_f_pvalue": (1 + reached) / (1 + permutations),
    }


def _f_root(rewards_R_N: Floats, codes_N: Ints, groups: int) -> Floats:
    """Return the root of the F ratio of each row of rewards; inf without variance inside groups."""
    sizes = np.bincount(codes_N, minlength=groups)
    order = np.argsort(codes_N, kind="stable")  # rows of a prompt side by side: no N x P table
    centred = (rewards_R_N - rewards_R_N.mean(axis=1, keepdims=True))[:, order]
    means_R_P = np.add.reduceat(centred, np.cumsum(sizes) - sizes, axis=1) / sizes
    between = (sizes * means_R_P**2).sum(axis=1)
    within = np.clip((centred**2).sum(axis=1) - between, 0, None)
    within[within <= 1e-12 * (centred**2).sum(axis=1)] = 0.0
    with np.errstate(divide="ignore"):
        ratio = (between / (groups - 1)) / (within / (len(codes_N) - groups))
    return np.sqrt(ratio)


def prefix_metrics(
    symbols_N: Sequence[Sequence[object]],
    prompts_N: ArrayLike,
    *,
    positions: int = PREFIX_POSITIONS,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> dict[str, float | None]:
    """Return how much the first words (or tokens) of a text tell about its prompt.

    - ``prefix_mi``: mean over the first ``positions`` positions of the plug-in mutual information
      (nats) of prompt and symbol there, with the Miller-Madow correction
      ``(prompts + symbols - pairs - 1) / (2 N)``. A text that has ended counts as one more
      symbol; positions that no text reaches are left out.
    - ``prefix_mi_zscore``: ``(prefix_mi - mean) / std`` over shuffles of the prompts; None when
      that std is 0 up to rounding (nothing can differ, so nothing can be said).
    - ``prefix_conditional_entropy``: mean over positions of the plug-in entropy of the symbol
      given the prompt (nats): how freely the text varies for one prompt.
    - ``unique_prefix_rate``: different prefixes divided by rows.

    All are None when there are no rows; the first three also with fewer than two prompts.
    """
    codes = _codes(prompts_N)
    table_N_L = _symbol_table(symbols_N, positions)
    names = ("prefix_mi", "prefix_mi_zscore", "prefix_conditional_entropy", "unique_prefix_rate")
    result: dict[str, float | None] = dict.fromkeys(names)
    if table_N_L.shape[0] == 0:
        return result
    rows = table_N_L.shape[0]
    result["unique_prefix_rate"] = len(np.unique(table_N_L, axis=0)) / rows
    if codes.max() < 1:
        return result
    rng = np.random.Generator(np.random.PCG64(seed))
    labels_R_N = np.concatenate(
        [codes[None, :], rng.permuted(np.tile(codes, (permutations, 1)), axis=1)]
    )
    mi_R = np.zeros(len(labels_R_N))
    conditional = 0.0
    for column_N in table_N_L.T:
        information_R, given_prompt = _position(column_N, labels_R_N)
        mi_R += information_R / table_N_L.shape[1]
        conditional += given_prompt / table_N_L.shape[1]
    result["prefix_mi"] = float(mi_R[0])
    result["prefix_conditional_entropy"] = conditional
    spread = float(mi_R[1:].std()) if permutations else 0.0
    if spread > 1e-9 * max(1.0, float(np.abs(mi_R).max())):
        result["prefix_mi_zscore"] = float((mi_R[0] - mi_R[1:].mean()) / spread)
    return result


def _position(symbols_N: Ints, labels_R_N: Ints) -> tuple[Floats, float]:
    """Return the corrected information under each labelling and H(symbol | prompt) of the first."""
    rows = symbols_N.size
    symbols, prompts = int(symbols_N.max()) + 1, int(labels_R_N.max()) + 1
    log_table = np.arange(rows + 1) * np.log(np.maximum(np.arange(rows + 1), 1))
    symbol_sum = log_table[np.bincount(symbols_N, minlength=symbols)].sum()
    prompt_sum = log_table[np.bincount(labels_R_N[0], minlength=prompts)].sum()
    # Sorting small integers beats a dense table of counts: runs of equal keys are the pairs.
    small = np.int16 if symbols * prompts < 2**15 else np.int64
    keys = np.sort((labels_R_N * symbols + symbols_N).astype(small), axis=1)
    starts_R_N = np.ones(keys.shape, dtype=bool)
    np.not_equal(keys[:, 1:], keys[:, :-1], out=starts_R_N[:, 1:])
    starts = np.flatnonzero(starts_R_N)
    sizes = np.diff(starts, append=keys.size)
    pair_kinds = starts_R_N.sum(axis=1)
    first_run = np.concatenate([[0], np.cumsum(pair_kinds)[:-1]])
    pair_sums = np.add.reduceat(log_table[sizes], first_run)
    entropy_given_prompt = (prompt_sum - pair_sums) / rows
    plug_in = np.log(rows) - symbol_sum / rows - entropy_given_prompt
    correction = (prompts + symbols - pair_kinds - 1) / (2 * rows)
    return plug_in + correction, float(entropy_given_prompt[0])


def _symbol_table(symbols_N: Sequence[Sequence[object]], positions: int) -> Ints:
    """Return (rows, positions) small integers per position; an ended text is its own symbol."""
    longest = max((len(row) for row in symbols_N), default=0)
    width = max(1, min(positions, longest))
    table = np.empty((len(symbols_N), width), dtype=np.int64)
    for position in range(width):
        index: dict[object, int] = {}
        for row, symbols in enumerate(symbols_N):
            symbol = (symbols[position],) if position < len(symbols) else ()
            table[row, position] = index.setdefault(symbol, len(index))
    return table


def _codes(values: ArrayLike) -> Ints:
    """Return the values as 0, 1, 2, ... in sorted order of the different values."""
    array = np.asarray(values)
    return np.unique(array, return_inverse=True)[1].astype(np.int64).reshape(-1)
