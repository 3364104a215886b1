"""Held-out success of a finished run, one of its checkpoints, or any model."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ragen2_cli.config import Config, load_config
from ragen2_cli.config.load import build_config, parse_set
from ragen2_cli.errors import UserError
from ragen2_cli.records import Evaluation
from ragen2_cli.runs import RunDirectory, find
from ragen2_cli.runs.kinds import is_run
from ragen2_cli.training import checkpoints
from ragen2_cli.training.evaluation import measure
from ragen2_cli.training.models import LoadedPolicy, load_policy
from ragen2_cli.training.player import build_player
from ragen2_cli.training.preflight import build_env
from ragen2_cli.training.setup import prepare


def evaluate_target(
    target: str | None,
    *,
    env: str | None = None,
    episodes: int | None = None,
    temperature: float = 1.0,
    greedy: bool = True,
    checkpoint: int | None = None,
    sets: Iterable[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> list[Evaluation]:
    """Measure a policy on held-out boards, sampled and (if wanted) greedy.

    Args:
        target: A run's folder, a model's name, or None for the newest run.
        env: Another environment than the run's own; FrozenLake by default for a model.
        episodes: Different held-out boards; None for as many as the run was evaluated on, 512 for
            a model or a run that was never evaluated.
        temperature: Temperature of the sampled measurement.
        greedy: Whether to measure greedy decoding too.
        checkpoint: The step of a checkpoint of the run, instead of its final adapter.
        sets: More settings as ``section.key=value``.
        say: Called with what was inferred, one line each.

    Raises:
        UserError: No such run, checkpoint, model or environment.
    """
    flags = {"env.name": env, "evaluation.episodes": episodes}
    run = _run_of(target, say)
    if run is None:
        if checkpoint is not None:
            raise UserError("--checkpoint goes with a run's folder, not with a model")
        config = load_config(flags={**flags, "model.name": target}, sets=sets)
    else:
        config = _changed(run.resolved_config(), flags, sets)
    build_env(config)
    prepare(config)
    loaded = load_run_policy(config, run, checkpoint) if run else _load(config)
    for note in loaded.notes:
        say(note)
    player = build_player(config, loaded.model, loaded)
    boards = player.heldout_boards(config.evaluation.episodes or Config().evaluation.episodes)
    step = 0 if run is None else step_of_policy(run, checkpoint)
    temperatures = [temperature] + [0.0] * greedy
    return [measure(player, boards, step=step, temperature=value) for value in temperatures]


def load_run_policy(config: Config, run: RunDirectory, checkpoint: int | None) -> LoadedPolicy:
    """Load the policy that a run trained: its final adapter, or that of a checkpoint.

    Raises:
        UserError: The run has no such checkpoint, or no final adapter: until it is finished, what
            is there is of an earlier end, before it was given more steps.
    """
    folder = run.adapter if checkpoint is None else checkpoint_folder(run, checkpoint)
    if checkpoint is None and not (run.finished and folder.is_dir()):
        raise UserError(f"{run.path} has no final adapter yet; name a step with --checkpoint")
    if config.model.full:
        return _load(config, name=str(folder))
    return _load(config, adapter=folder)


def checkpoint_folder(run: RunDirectory, step: int) -> Path:
    """Return the complete checkpoint of a step.

    Raises:
        UserError: There is none; names those that there are.
    """
    listing = checkpoints.list_complete(run.checkpoints)
    found = {checkpoints.step_of(path): path for path in listing.complete}
    if step not in found:
        there = ", ".join(str(number) for number in sorted(found)) or "none"
        raise UserError(f"{run.path} has no complete checkpoint of step {step}; there: {there}")
    return found[step]


def _run_of(target: str | None, say: Callable[[str], None]) -> RunDirectory | None:
    if target is None:
        return find(None, say)
    path = Path(target)
    # A model's folder has none of these; a damaged run is a run still, and is told so.
    marks = any((path / name).exists() for name in ("metrics.jsonl", "rollouts", "checkpoints"))
    missing = path.parent.name == "runs" and not path.exists()  # what a hub id could look like
    return RunDirectory.open(path) if is_run(path) or marks or missing else None


def step_of_policy(run: RunDirectory, checkpoint: int | None) -> int:
    """Return the steps behind what :func:`load_run_policy` loaded.

    Raises:
        UserError: The summary does not tell.
    """
    if checkpoint is not None:
        return checkpoint
    steps = (run.read_summary() or {}).get("steps")
    if not isinstance(steps, int):
        raise UserError(f"{run.path}: summary.json has no number of steps")
    return steps


def _changed(config: Config, flags: dict[str, Any], sets: Iterable[str]) -> Config:
    tree = config.model_dump()
    for text in [f"{key}={value}" for key, value in flags.items() if value is not None] + [*sets]:
        _merge(tree, parse_set(text))
    return build_config(tree)


def _merge(tree: dict[str, Any], overlay: dict[str, Any]) -> None:
    for key, value in overlay.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = value


def _load(config: Config, *, name: str | None = None, adapter: Path | None = None) -> LoadedPolicy:
    return load_policy(
        name or config.model.name,
        device=config.model.device,
        dtype=config.model.dtype,
        adapter=adapter or config.model.adapter,
        env=config.env.name,
    )
