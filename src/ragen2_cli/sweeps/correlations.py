"""Which diagnostics go with success: Spearman over a pool of runs, with n, interval and p."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ragen2_cli.core.statistics import Spearman, spearman
from ragen2_cli.errors import UserError, counted, did_you_mean
from ragen2_cli.records import RunLog
from ragen2_cli.sweeps.axes import flat
from ragen2_cli.sweeps.results import arm_of, sampled

Rule = Literal["final", "best", "per-checkpoint"]
FEWEST_RUNS = 3
LEVELS = ("env.name", "env.kind", "env.stochasticity", "seed")
"""What moves diagnostics and success alike, whatever the arm: levels by default, where it varies.
Runs of equal seed share their prompts, on which MI depends."""
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
        runs: Runs behind the pairs.
        unit: What the interval takes for independent: ``run``, or ``arm`` within seeds.
        result: The correlation.
    """

    metric: str
    scope: str
    runs: int
    unit: Literal["run", "arm"]
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


def default_levels(pool: Sequence[RunLog]) -> list[str]:
    """Return those of ``LEVELS`` that vary, while a level holds more than two runs on average.

    So the seed is one where several arms ran the same seeds. Of two runs a level would only know
    which is the better one.
    """
    settings = [flat(log.config) for log in pool]
    chosen: list[str] = []
    levels = 1
    for key in LEVELS:
        found = len({tuple(one[name] for name in (*chosen, key)) for one in settings})
        if levels < found < len(pool) / 2:
            chosen, levels = [*chosen, key], found
    return chosen


def correlate(
    pool: Sequence[RunLog],
    *,
    rule: Rule = "final",
    within: Sequence[str] | None = None,
    seed: int = 0,
) -> list[Correlation]:
    """Correlate every diagnostic with success, pooled and within levels.

    Within levels, ranks lose their level's mean. The bootstrap resamples runs, never checkpoints.
    Runs of equal seed are not independent of each other, for which interval and p make no
    allowance unless the seed is among the levels. There, what is left varies between arms, so
    that whole arms are resampled, and exchanged for p where all have the same seeds.

    Args:
        pool: The runs.
        rule: Which measurement of a run counts.
        within: Labels or config keys whose levels count; None for ``default_levels``, empty for
            pooled only.
        seed: Of permutations and bootstrap.

    Raises:
        UserError: Fewer than 3 runs, as for ``points``, or a pool without any known diagnostic.
    """
    if len(pool) < FEWEST_RUNS:
        raise UserError(
            f"correlations: {counted(len(pool), 'run')} cannot show a correlation; "
            f"give {FEWEST_RUNS} or more"
        )
    if within is None:
        within = default_levels(pool)
    chosen = points(pool, rule=rule, within=within)
    found = []
    for metric in METRICS:
        values = [point.diagnostics.get(metric) for point in chosen]
        if all(value is None for value in values):
            continue
        for scope in ("pooled", f"within {', '.join(within)}")[: 1 + bool(within)]:
            pooled = scope == "pooled"
            unit: Literal["run", "arm"] = "arm" if not pooled and "seed" in within else "run"
            result = spearman(
                [float("nan") if value is None else float(value) for value in values],
                [point.success for point in chosen],
                seed=seed,
                clusters=[
                    point.run if unit == "run" else arm_of(pool[point.run]) for point in chosen
                ],
                levels=None if pooled else [point.levels for point in chosen],
            )
            found.append(Correlation(metric, scope, len(pool), unit, result))
    if not found:
        raise UserError("correlations: the runs' diagnostics hold no known metric")
    return found
