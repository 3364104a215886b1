"""Run logs made by hand, for tests of comparisons, correlations and plots."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ragen2_cli.config.load import build_config
from ragen2_cli.core.statistics import wilson
from ragen2_cli.records import Cell, Evaluation, RunLog, Step
from ragen2_cli.runs import RunDirectory
from ragen2_cli.sweeps.folder import SweepDirectory


def evaluation(step: int, successes: int, episodes: int = 100, **changes: Any) -> Evaluation:
    """A sampled held-out measurement."""
    ends = wilson(successes, episodes)
    row = Evaluation(
        step=step,
        decoding="sampled",
        temperature=1.0,
        episodes=episodes,
        successes=successes,
        success=successes / episodes,
        ci_low=ends.low,
        ci_high=ends.high,
        episode_return=successes / episodes,
        invalid_rate=0.1,
        response_length=40.0 - step,
        entropy=0.5,
        seconds=1.0,
    )
    return replace(row, **changes)


def step(number: int, **changes: Any) -> Step:
    """One optimizer step."""
    row = Step(
        step=number,
        success=0.2 + 0.01 * number,
        episode_return=0.1,
        groups=8,
        kept_groups=5,
        dead_groups=2,
        reward_std=0.4,
        reward_var=0.2,
        invalid_rate=0.05,
        truncated_rate=0.0,
        entropy=0.6,
        kl=None,
        loss=0.1,
        grad_norm=1.0,
        learning_rate=1e-3,
        response_length=30.0,
        tokens=1000,
        rollout_seconds=0.3,
        update_seconds=0.4,
        step_seconds=0.7,
    )
    return replace(row, **changes)


def log(
    name: str = "run",
    *,
    labels: dict[str, str] | None = None,
    seed: int = 0,
    successes: tuple[int, ...] = (20, 30, 40),
    diagnostics: tuple[dict[str, Any], ...] = (),
    seconds: float = 10.0,
    tokens: int = 5000,
    config: dict[str, Any] | None = None,
) -> RunLog:
    """A finished run with an evaluation every 5 steps from step 0."""
    evaluations = tuple(evaluation(5 * index, count) for index, count in enumerate(successes))
    return RunLog(
        name=name,
        labels=labels or {},
        config=build_config({**(config or {}), "seed": seed, "steps": 10}).model_dump(mode="json"),
        steps=tuple(step(number) for number in range(1, 11)),
        evaluations=evaluations,
        diagnostics=diagnostics,
        summary={"stopped": None, "kept_ratio": 0.6, "tokens": tokens, "seconds": seconds},
    )


def write(folder: Path, record: RunLog) -> RunDirectory:
    """Write a log as a run's folder."""
    run = RunDirectory.create(folder, record.config)
    for row in record.steps:
        run.append_step(row)
    for found in record.evaluations:
        run.append_evaluation(found)
    for measured in record.diagnostics:
        run.append_diagnostics(measured)
    if record.summary is not None:
        run.write_summary(record.summary)
    run.close()
    return run


def write_sweep(folder: Path, logs: list[RunLog]) -> SweepDirectory:
    """Write logs as a finished sweep."""
    cells = [Cell(each.name, each.labels, each.seed, each.config, "planned") for each in logs]
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    sweep = SweepDirectory(folder)
    for cell in cells:
        sweep.record(cell)
    for cell, each in zip(cells, logs, strict=True):
        write(sweep.run_path(cell), each)
        sweep.record(cell, status="done", seconds=1.0)
    sweep.close()
    return sweep
