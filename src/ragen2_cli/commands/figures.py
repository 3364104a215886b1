"""From paths to the rows behind each figure: which reader goes with which plot."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen2_cli.errors import UserError

if TYPE_CHECKING:
    from ragen2_cli.records import RunLog
    from ragen2_cli.runs import RunDirectory

Say = Callable[[str], None]
Rows = list[dict[str, Any]]


def from_logs(kind: str) -> Callable[[Sequence[Path], int | None, Say], Rows]:
    """Return a reader for plots that need run logs alone."""

    def read(paths: Sequence[Path], step: int | None, say: Say) -> Rows:
        from ragen2_cli.sweeps.results import load

        found: Rows = _plot(kind).data(load(paths, say))
        return found

    return read


def _plot(kind: str) -> Any:
    return importlib.import_module(f"ragen2_cli.plots.{kind.replace('-', '_')}")


def stochasticity(paths: Sequence[Path], step: int | None, say: Say) -> Rows:
    """Read logs, and compute the best policy's success where the environment knows it."""
    from ragen2_cli.plots.stochasticity import data
    from ragen2_cli.sweeps.results import load

    logs = load(paths, say)
    return data(logs, ceilings(logs))


CEILING_BOARDS = 128


def ceilings(logs: "Sequence[RunLog]") -> list[float | None]:
    """Return the best policy's mean success on held-out boards for each run's environment.

    None where it is not known: it is for FrozenLake that slips. Equal environments are played once.
    """
    from ragen2_cli.runs.jsonl import dumps

    texts = [dumps(log.config["env"]) for log in logs]
    known = {text: _ceiling(log) for text, log in dict(zip(texts, logs, strict=True)).items()}
    return [known[text] for text in texts]


def _ceiling(log: "RunLog") -> float | None:
    from statistics import fmean

    from ragen2_cli.config.load import build_config
    from ragen2_cli.envs.frozenlake import FrozenLake
    from ragen2_cli.envs.splits import heldout_seeds
    from ragen2_cli.training.player import build_env

    config = build_config(log.config)
    if config.env.kind != "slip" or config.env.name != "frozenlake":
        return None
    env = build_env(config)
    if not isinstance(env, FrozenLake):
        return None
    successes = []
    for seed in heldout_seeds(env, CEILING_BOARDS):
        env.reset(seed)
        successes.append(env.ceiling())
    return fmean(successes)


def spearman(paths: Sequence[Path], step: int | None, say: Say) -> Rows:
    """Read logs and correlate their final measurements with success, within levels."""
    from ragen2_cli.plots.spearman import data
    from ragen2_cli.sweeps.correlations import ENTROPY_FAMILY, MI_FAMILY, correlate
    from ragen2_cli.sweeps.results import load

    families = dict.fromkeys(MI_FAMILY, "MI") | dict.fromkeys(ENTROPY_FAMILY, "entropy")
    return data(correlate(load(paths, say)), families)


def scatter(paths: Sequence[Path], step: int | None, say: Say) -> Rows:
    """Read logs and pair every checkpoint's diagnostics with its success."""
    from ragen2_cli.plots.scatter import data
    from ragen2_cli.sweeps.correlations import points
    from ragen2_cli.sweeps.results import load

    logs = load(paths, say)
    return data(logs, points(logs, rule="per-checkpoint"))


def gradients(paths: Sequence[Path], step: int | None, say: Say) -> Rows:
    """Read each run's newest gradient analyses, or those of a step, all of one source.

    Fresh batches where every analyzed run has one, else training batches.

    Raises:
        UserError: Some runs have only the one, some only the other.
    """
    from ragen2_cli.plots.gradients import data

    analyzed = [found for run in _runs(paths, say) if (found := _analyses(run, step))]
    for source in ("fresh batch", "training batch"):
        if all(source in found for found in analyzed):
            return data([content for found in analyzed for content in found[source]])
    raise UserError(
        "gradients: some runs have only fresh batches, some only training batches; "
        "use ragen2 analyze gradients on the others, or --step"
    )


def _analyses(run: "RunDirectory", step: int | None) -> dict[str, Rows]:
    """Return by source the analyses of its newest step, one for each pair of coefficients."""
    from ragen2_cli.runs.jsonl import read_json

    found: dict[str, Rows] = {}
    files = (run.path / "gradients").glob("step-*.json")
    for content in map(read_json, sorted(files, key=lambda file: file.stat().st_mtime)):
        if step is None or content["step"] == step:
            found.setdefault(content["source"], []).append(content)
    for source, contents in found.items():
        last = max(content["step"] for content in contents)
        chosen = {
            (content["entropy"], content["kl"]): content
            for content in contents
            if content["step"] == last
        }
        found[source] = list(chosen.values())
    return found


def heatmap(paths: Sequence[Path], step: int | None, say: Say) -> Rows:
    """Read the probes of one run: of a sweep's runs, the first one's."""
    from ragen2_cli.plots.heatmap import data
    from ragen2_cli.runs import step_of
    from ragen2_cli.runs.jsonl import read_json

    run = _runs(paths, say)[0]
    files = sorted((run.path / "probes").glob("step-*.json"))
    return data([read_json(file) for file in files if step in (None, step_of(file.name))])


def filter_(paths: Sequence[Path], step: int | None, say: Say) -> Rows:
    """Read the episodes of one step of one run; the last step by default."""
    from ragen2_cli.core.filters import SPREAD_SCORES
    from ragen2_cli.plots.filter import data

    run = _runs(paths, say)[0]
    steps = run.rollout_steps()
    if not steps:
        raise UserError(f"{run.path}: no rollouts to show the filter on")
    score = run.read_config()["config"]["filter"]["score"]
    episodes = run.read_rollouts(steps[-1] if step is None else step)
    return data(episodes, score=score if score in SPREAD_SCORES else "reward_var")


def entropy(paths: Sequence[Path], step: int | None, say: Say) -> Rows:
    """Read entropy and pattern rates of runs, sweeps, and anyone's logs."""
    from ragen2_cli.commands.entropy import read, rows

    return rows(read(paths))


READERS: dict[str, Callable[[Sequence[Path], int | None, Say], Rows]] = {
    "curves": from_logs("curves"),
    "dead-share": from_logs("dead-share"),
    "dynamics": from_logs("dynamics"),
    "entropy": entropy,
    "filter": filter_,
    "gradients": gradients,
    "heatmap": heatmap,
    "lengths": from_logs("lengths"),
    "scatter": scatter,
    "sensitivity": from_logs("sensitivity"),
    "separation": from_logs("separation"),
    "spearman": spearman,
    "stochasticity": stochasticity,
}
"""Every figure but the regime plane, which is drawn from a verdict."""
FROM_LOGS = READERS.keys() - {"entropy", "filter", "gradients", "heatmap"}
"""Figures of a whole pool: beside them lie the numbers of each of its runs."""


def runs(paths: Sequence[Path], say: Say) -> Rows:
    """Return what ``ragen2 compare`` measures, one row for each run of a figure's pool."""
    from ragen2_cli.sweeps.compare import run_rows
    from ragen2_cli.sweeps.results import load

    return run_rows(load(paths, say))


def _runs(paths: Sequence[Path], say: Say) -> list[Any]:
    """Return run directories: those given, or the finished ones of the sweeps given."""
    from ragen2_cli.runs import RunDirectory
    from ragen2_cli.runs.kinds import is_sweep
    from ragen2_cli.sweeps.folder import SweepDirectory
    from ragen2_cli.sweeps.results import newest

    found = []
    for path in paths or [newest(say)]:
        if is_sweep(path):
            sweep = SweepDirectory.open(path)
            found += [
                RunDirectory.open(sweep.run_path(cell))
                for cell in sweep.cells.values()
                if sweep.finished(cell)
            ]
        else:
            found.append(RunDirectory.open(path))
    if not found:
        raise UserError(f"{paths[0]}: none of its cells is finished yet")
    return found


def make(kind: str, paths: Sequence[Path], step: int | None, say: Say) -> tuple[Rows, Any]:
    """Return the numbers behind a figure, and the figure.

    Raises:
        UserError: What the paths hold cannot be read, or cannot make this figure.
    """
    if kind == "regimes":
        return regimes(paths, say)
    rows = READERS[kind](paths, step, say)
    return rows, _plot(kind).draw(rows)


def regimes(paths: Sequence[Path], say: Say) -> tuple[Rows, Any]:
    """Draw the path of one run on the plane of entropy and information."""
    from dataclasses import asdict

    from ragen2_cli.core.regimes import judge

    run = _runs(paths, say)[0]
    measured = run.read_diagnostics()
    names = ("step", "conditional_entropy", "mi_estimate", "prefix_conditional_entropy")
    rows = [{name: row.get(name) for name in (*names, "prefix_mi")} for row in measured]
    return rows, _plot("regimes").draw(measured, asdict(judge(measured)))
