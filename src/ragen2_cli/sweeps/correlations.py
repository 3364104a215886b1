"""Which diagnostics go with success: Spearman over a pool of runs, with n, interval and p."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ragen2_cli.core.statistics import Spearman, spearman
from ragen2_cli.errors import UserError, counted, did_you_mean
from ragen2_cli.records import RunLog
from ragen2_cli.sweeps.axes import flat
from ragen2_cli.sweeps.results import sampled

Rule = Literal["final", "best", "per-checkpoint"]
FEWEST_RUNS = 3
MI_FAMILY = (
    "mi_estimate",
    "mi_seq_estimate",
    "mi_zscore",
    "mi_zscore_seq",
    "mi_zscore_ema",
    "mi_zscore_ema_seq",
    "retrieval_accuracy",
    "retrieval_above_chance",
    "reward_f_ratio",
    "prefix_mi",
    "prefix_mi_zscore",
)
ENTROPY_FAMILY = (
    "conditional_entropy",
    "conditional_entropy_seq",
    "reasoning_entropy",
    "reasoning_entropy_seq",
)
METRICS = (*MI_FAMILY, *ENTROPY_FAMILY, "response_length", "unique_prefix_rate", "valid_reasoning")
"""What is correlated where a run has it; anything else in a diagnostics row is left alone."""


@dataclass(frozen=True)
class Point:
    """One measurement of one run (by its place in the pool), and the success it is held against."""

    run: int
    step: int
    success: float
    diagnostics: dict[str, float | None]
    levels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Correlation:
    """One diagnostic's correlation with success.

    Attributes:
        metric: The diagnostic.
        scope: ``pooled``, or ``within`` and the levels' names.
        runs: Independent runs behind the pairs.
        result: The correlation.
    """

    metric: str
    scope: str
    runs: int
    result: Spearman


def points(
    pool: Sequence[RunLog], *, rule: Rule = "final", within: Sequence[str] = ()
) -> list[Point]:
    """Pair each chosen sampled evaluation with the newest diagnostics that are not later than it.

    ``final`` takes the last evaluation of a run, ``best`` the one of highest success (the earliest
    of equals), ``per-checkpoint`` every one. Evaluations before the first diagnostics, and the one
    before training, are left out.

    Raises:
        UserError: A run without diagnostics or without a pair, or a level that a run lacks.
    """
    found = []
    for number, log in enumerate(pool):
        if not log.diagnostics:
            raise UserError(
                f"{log.name}: no diagnostics; train with diagnostics.every above 0, or leave it out"
            )
        first = min(row["step"] for row in log.diagnostics)
        rows = [row for row in sampled(log) if row.step >= max(first, 1)]
        if not rows:
            raise UserError(
                f"{log.name}: no evaluation after its first diagnostics at step {first}"
            )
        if rule == "final":
            rows = rows[-1:]
        elif rule == "best":
            rows = [max(rows, key=lambda row: row.success)]
        levels = tuple(_level(log, key) for key in within)
        for row in rows:
            latest = max(
                (one for one in log.diagnostics if one["step"] <= row.step),
                key=lambda one: one["step"],
            )
            found.append(Point(number, row.step, row.success, dict(latest), levels))
    return found


def _level(log: RunLog, key: str) -> str:
    if key in log.labels:
        return log.labels[key]
    settings = flat(log.config)
    if key not in settings:
        known = [*log.labels, *settings]
        raise UserError(
            f"--within: {log.name} has no label or key '{key}'{did_you_mean(key, known)}"
        )
    return str(settings[key])


def correlate(
    pool: Sequence[RunLog],
    *,
    rule: Rule = "final",
    within: Sequence[str] = (),
    seed: int = 0,
) -> list[Correlation]:
    """Correlate every diagnostic with success, pooled and, where asked, within levels.

    The bootstrap resamples runs, never checkpoints. Within levels, ranks lose their level's mean.

    Raises:
        UserError: Fewer than 3 runs, as for ``points``, or a pool without any known diagnostic.
    """
    if len(pool) < FEWEST_RUNS:
        raise UserError(
            f"correlations: {counted(len(pool), 'run')} cannot show a correlation; "
            f"give {FEWEST_RUNS} or more"
        )
    chosen = points(pool, rule=rule, within=within)
    found = []
    for metric in METRICS:
        values = [point.diagnostics.get(metric) for point in chosen]
        if all(value is None for value in values):
            continue
        for scope in ("pooled", f"within {', '.join(within)}")[: 1 + bool(within)]:
            result = spearman(
                [float("nan") if value is None else float(value) for value in values],
                [point.success for point in chosen],
                seed=seed,
                clusters=[point.run for point in chosen],
                levels=[point.levels for point in chosen] if scope != "pooled" else None,
            )
            found.append(Correlation(metric, scope, len(pool), result))
    if not found:
        raise UserError("correlations: the runs' diagnostics hold no known metric")
    return found
