"""From a path to a diagnosis: rows of metrics by step, and the verdict on them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen2_cli.errors import UserError, counted

if TYPE_CHECKING:
    from ragen2_cli.core.regimes import Thresholds
    from ragen2_cli.logs import Choice, LogData

SHARP_FALL = 0.5
"""A response length below this share of the first steps' is called a sharp fall."""


@dataclass(frozen=True)
class Scoring:
    """How reasoning is cross-scored; ``model`` and ``checkpoint`` None: it is not.

    Attributes:
        model: Any policy that ``--model`` takes.
        adapter: A PEFT adapter on it.
        checkpoint: A run's own policy at this step (0: its final adapter).
        device: See ``training.models``.
        steps: The steps to be scored; empty: up to ``most`` spread over the log.
        most: Steps that are scored at most when none are named.
        samples: Reasonings per step.
        sampling: ``first-turn`` or ``trajectory`` (run folders only).
        marginal: ``token-mean`` or ``sequence``.
        seed: Decides which reasonings are taken.
    """

    model: str | None = None
    adapter: str | None = None
    checkpoint: int | None = None
    device: str = "auto"
    steps: tuple[int, ...] = ()
    most: int = 10
    samples: int = 64
    sampling: str = "first-turn"
    marginal: str = "token-mean"
    seed: int = 0

    @property
    def wanted(self) -> bool:
        """Whether there is anything to score with."""
        return self.model is not None or self.checkpoint is not None


@dataclass
class Report:
    """Everything ``ragen2 diagnose`` tells, ready for JSON."""

    path: str
    kind: str
    rows_read: int
    said: list[str]
    skipped: dict[str, int]
    length_unit: str
    verdict: dict[str, Any] = field(default_factory=dict)
    thresholds: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)


def diagnose_path(
    path: Path,
    choice: "Choice",
    scoring: Scoring,
    limits: "Thresholds",
    *,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Diagnose a run folder or logs.

    A run folder's own measurements (diagnostics.jsonl) are used where there are any; what is
    scored here replaces them.

    Raises:
        UserError: Nothing to read, or a model that cannot be loaded.
    """
    from ragen2_cli.core.batches import batch_metrics
    from ragen2_cli.core.regimes import judge
    from ragen2_cli.logs import read_log, read_run
    from ragen2_cli.runs.kinds import is_run

    own_run = is_run(path)
    data = read_run(path, progress) if own_run else read_log(path, choice, progress)
    report = Report(
        path=str(path),
        kind=data.kind,
        rows_read=data.rows_read,
        said=data.said,
        skipped=dict(data.skipped),
        length_unit=data.length_unit,
        thresholds=asdict(limits),
    )
    by_step: dict[int, dict[str, Any]] = {}
    for done, (step, rows) in enumerate(data.steps.items()):
        if progress:
            progress(done, len(data.steps), f"measuring step {step}")
        by_step[step] = {"step": step} | batch_metrics(rows, seed=scoring.seed)
    if own_run and not scoring.wanted:
        _merge_own(path, by_step, report)
    if scoring.wanted:
        for row in _scored(path, data, choice, scoring, own_run=own_run, say=say):
            by_step[row["step"]] |= row
    report.steps = [by_step[step] for step in sorted(by_step)]
    _smooth(report.steps)
    report.verdict = asdict(judge(report.steps, limits))
    report.verdict["next_step"] = _next_step(report.verdict, path, own_run=own_run)
    report.warnings = _warnings(report)
    return report


def _next_step(verdict: dict[str, Any], path: Path, *, own_run: bool) -> str:
    """Return a command that makes sense for this path: a run in progress, a finished one, logs."""
    import shlex

    from ragen2_cli.runs import RunDirectory

    where = shlex.quote(str(path))
    finished = own_run and RunDirectory.open(path).finished
    if verdict["regime"] == "not enough data" and verdict["basis"] == "text":
        policy = f"--checkpoint {0 if finished else 'STEP'}" if own_run else "--model NAME"
        if verdict["measurements"] > 1:  # enough of them: it is the first words that do not tell
            return f"ragen2 diagnose {where} {policy}  # score whole reasonings with the policy"
    if verdict["regime"] not in ("diverse", "compressed"):
        advice: str = verdict["next_step"]
        return advice
    if not own_run:
        return f"ragen2 diagnose {where}  # again, when the log has grown"
    if verdict["regime"] == "compressed":
        step = "" if finished else " --checkpoint STEP"
        return f"ragen2 evaluate {where}{step}  # little variety left: compare sampled with greedy"
    if finished:
        return f"ragen2 evaluate {where}  # nothing to mend: measure what it learned"
    return f"ragen2 diagnose {where} --watch  # nothing to mend; keep watching"


def _merge_own(path: Path, by_step: dict[int, dict[str, Any]], report: Report) -> None:
    """Add what the run itself measured with its policy."""
    from ragen2_cli.runs import RunDirectory

    rows = [row for row in RunDirectory.open(path).read_diagnostics() if row["step"] in by_step]
    for row in rows:
        row.pop("schema_version", None)
        by_step[row["step"]] = row | by_step[row["step"]]
    if rows:
        report.said.append(
            f"cross-scoring as measured during training ({counted(len(rows), 'step')})"
        )


def _scored(
    path: Path,
    data: "LogData",
    choice: "Choice",
    scoring: Scoring,
    *,
    own_run: bool,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Cross-score the chosen steps with the policy that was named."""
    steps = _chosen_steps(list(data.steps), scoring)
    policy = _load(path, scoring, own_run=own_run)
    for note in policy.notes:
        say(note)
    results = []
    options = {"samples": scoring.samples, "marginal": scoring.marginal, "seed": scoring.seed}
    for step in steps:
        say(f"scoring step {step}")
        if own_run:
            from ragen2_cli.runs import RunDirectory
            from ragen2_cli.training.diagnostics import measure

            episodes = RunDirectory.open(path).read_rollouts(step)
            row = measure(
                policy.model,
                policy.tokenizer,
                episodes,
                step=step,
                sampling=scoring.sampling,  # type: ignore[arg-type]
                **options,  # type: ignore[arg-type]
            )
        else:
            from ragen2_cli.logs import texts_of_step
            from ragen2_cli.training.log_scoring import measure_texts

            texts = texts_of_step(path, choice, step)
            row = measure_texts(
                policy.model,
                policy.tokenizer,
                data.steps[step],
                texts,
                step=step,
                **options,  # type: ignore[arg-type]
            )
        results.append(row)
    return results


def _chosen_steps(there: Sequence[int], scoring: Scoring) -> list[int]:
    for step in scoring.steps:
        if step not in there:
            raise UserError(f"--step {step}: not in the log; it has {_some(there)}")
    if scoring.steps:
        return sorted(set(scoring.steps))
    count = min(scoring.most, len(there))
    last = len(there) - 1
    return sorted({there[round(i * last / max(1, count - 1))] for i in range(count)})


def _some(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:8]))
    return f"steps {shown}{f', ... {steps[-1]}' if len(steps) > 8 else ''}"


def _load(path: Path, scoring: Scoring, *, own_run: bool) -> Any:
    from ragen2_cli.runs import RunDirectory

    if scoring.model is not None:
        from ragen2_cli.training.models import load_policy

        env = RunDirectory.open(path).resolved_config().env.name if own_run else None
        device, adapter = scoring.device, scoring.adapter
        return load_policy(scoring.model, device=device, adapter=adapter, env=env)
    if not own_run:
        raise UserError("--checkpoint goes with a run folder; for logs name the --model")
    from ragen2_cli.training.evaluate_target import load_run_policy

    run = RunDirectory.open(path)
    config = run.resolved_config()
    if scoring.device != "auto":
        model = config.model.model_copy(update={"device": scoring.device})
        config = config.model_copy(update={"model": model})
    return load_run_policy(config, run, scoring.checkpoint or None)


def _smooth(rows: list[dict[str, Any]]) -> None:
    """Add the smoothed z-scores in step order."""
    from ragen2_cli.core.collapse import add_ema

    previous = None
    for row in rows:
        if row.get("mi_estimate") is not None:
            previous = add_ema(row, previous)
            row |= previous


def _warnings(report: Report) -> list[str]:
    """Return what else is worth a look: dead groups, shrinking text, repetition."""
    found = []
    last = report.steps[-1]
    lengths = [row["response_length"] for row in report.steps if row["response_length"]]
    window = max(1, min(5, len(lengths) // 2))
    if len(lengths) > 1:
        first, now = sum(lengths[:window]) / window, sum(lengths[-window:]) / window
        if now < SHARP_FALL * first:
            found.append(
                f"response length fell sharply, {first:.1f} to {now:.1f} {report.length_unit}: "
                "a behavioral sign of collapse"
            )
    if last["dead_ratio"] is not None and last["dead_ratio"] > 0.5:
        found.append(f"{last['dead_ratio']:.0%} of the groups are dead: they teach nothing")
    if last["duplication_flagged"] and last["duplication_flagged"] > 0.1:
        found.append(f"{last['duplication_flagged']:.0%} of the reasonings repeat their sentences")
    if last["prompts"] == 1:
        found.append("one prompt only: nothing can be said about dependence on the prompt")
    return found
