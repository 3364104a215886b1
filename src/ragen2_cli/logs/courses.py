"""Entropy by step from wherever it was logged, and the pattern rates of the texts beside it."""

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ragen2_cli.core.batches import batch_metrics
from ragen2_cli.core.courses import RATES, Course, PatternRates
from ragen2_cli.errors import UserError, did_you_mean
from ragen2_cli.logs.files import SUFFIXES, BrokenFile, LogFile, columns, rows
from ragen2_cli.logs.layout import STEP, Choice, finite_number
from ragen2_cli.logs.reader import LogData, Progress, iter_texts, read_log
from ragen2_cli.logs.spoken import TagRule, of_episode, of_row

ENTROPY = (
    "entropy",
    "train/entropy",
    "actor/entropy",
    "actor/entropy_loss",
    "policy/entropy",
    "policy/entropy_avg",
    "objective/entropy",
)
STEPS = (*STEP, "Step", "_step", "train/global_step", "trainer/global_step")
STATE = "trainer_state.json"
_SAMPLE = 256


def read_course(
    path: Path, choice: Choice, *, entropy: str | None = None, progress: Progress | None = None
) -> Course:
    """Read the entropy series of a run or of anyone's logs, and the pattern rates of its texts.

    Entropy is taken from ``metrics.jsonl`` of our runs; else from the newest ``trainer_state.json``
    (of the folder or of its checkpoints); else from a table with a step and an entropy column, as
    W&B exports one; else, with texts alone, it is the entropy of the first words given the prompt.

    Args:
        path: A run's folder, a log's folder, or one file.
        choice: What the user said about the columns of the texts.
        entropy: Column of the entropy; the usual names are tried.
        progress: Called with (steps done, steps in all, what).

    Raises:
        UserError: Neither entropy nor texts, or a named column that is missing.
    """
    from ragen2_cli.runs.kinds import is_run

    if is_run(path):
        return _of_run(path, progress)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; give a log, a folder of logs or a run")
    said: list[str] = []
    found = _logged(path, entropy, said)
    rates = _rates(path, choice, said, wanted=found is None)
    if found is None:
        basis = "entropy of the first words given the prompt (texts alone, no entropy was logged)"
        series = _of_texts(path, choice)
    else:
        basis, series = found
    if not series:
        raise UserError(f"{path}: no step in it")
    return _course(path, basis, series, rates, said)


def _course(
    path: Path,
    basis: str,
    series: dict[int, float | None],
    rates: dict[int, PatternRates],
    said: list[str],
) -> Course:
    steps = sorted(series)
    measured = {step: rate.means() for step, rate in rates.items()}
    if rates and not measured.keys() & series.keys():
        said.append("no step has both entropy and texts: patterns are left out")
    by_name = {name: [measured.get(step, {}).get(name) for step in steps] for name in RATES}
    return Course(str(path), basis, steps, [series[step] for step in steps], by_name, tuple(said))


def _of_run(path: Path, progress: Progress | None) -> Course:
    from ragen2_cli.runs import RunDirectory

    run = RunDirectory.open(path)
    steps = run.read_steps()
    if not steps:
        raise UserError(f"{path}: the run has no steps yet")
    series = {row.step: row.entropy for row in steps}
    rates = {}
    numbers = run.rollout_steps()
    for done, number in enumerate(numbers):
        if progress:
            progress(done, len(numbers), f"step {number}")
        rates[number] = PatternRates()
        for episode in run.iter_rollouts(number):
            rates[number].add(of_episode(episode))
    return _course(path, "entropy of the trained tokens (metrics.jsonl)", series, rates, [])


def _logged(
    path: Path, entropy: str | None, said: list[str]
) -> tuple[str, dict[int, float | None]] | None:
    """Return where entropy was found, and the series; say which others were passed over."""
    names = (entropy,) if entropy else ENTROPY
    seen: list[str] = []
    for file, table in _tables(path):
        seen += [name for name in table if name not in seen]
        column = _pick(names, table)
        step = _pick(STEPS, table)
        if column is None or step is None:
            continue
        series: dict[int, float | None] = {}
        for row in _rows(file, said, alone=path.is_file()):
            number, value = finite_number(row.get(step)), finite_number(row.get(column))
            if number == number:  # rows of evaluations have a step and no entropy
                series.setdefault(int(number), None)
                if value == value:
                    series[int(number)] = value
        if any(value is not None for value in series.values()):
            others = [one for one in table if _pick(names, [one]) and one != column]
            if others:
                said.append(f"not read: {', '.join(others)} (--entropy NAME chooses)")
            return f"{column} ({file.path.name})", series
    if entropy:
        hint = did_you_mean(entropy, seen) + f"; columns seen: {', '.join(seen) or 'none'}"
        raise UserError(f"--entropy {entropy}: no table with that column and a step{hint}")
    return None


def _tables(path: Path) -> Iterator[tuple[LogFile, list[str]]]:
    """Yield files that could hold a series, TRL's own first, with their columns."""
    files = [path] if path.is_file() else []
    if path.is_dir():
        states = sorted(path.glob(f"checkpoint-*/{STATE}"), key=lambda file: _number(file.parent))
        files = [path / STATE] if (path / STATE).is_file() else states[-1:]
        inside = sorted(one for one in path.iterdir() if one.is_file() and one.suffix in SUFFIXES)
        files += [one for one in inside if one.name != STATE]
    for each in files:
        file = LogFile(each, None, None)
        try:
            names = _history_columns(each) if each.name == STATE else list(columns(file))
        except BrokenFile as error:
            if path.is_file():
                raise UserError(f"{path}: {error}") from error
            continue  # the reader of the texts names it
        yield file, names


def _number(folder: Path) -> int:
    digits = folder.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _history(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        history = content["log_history"]
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise BrokenFile("not a trainer state with a log history") from error
    if not isinstance(history, list):
        raise BrokenFile("its log history is no list")
    return [row for row in history if isinstance(row, dict)]


def _history_columns(path: Path) -> list[str]:
    return list(dict.fromkeys(name for row in _history(path) for name in row))


def _rows(file: LogFile, said: list[str], *, alone: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table; one that ends early is refused alone, and named in a folder."""
    if file.path.name == STATE:
        yield from _history(file.path)
        return
    try:
        yield from rows(file)
    except BrokenFile as error:
        if alone:
            raise UserError(f"{file.path}: {error}") from error
        said.append(f"{file.path.name}: {error}; rows before it are used")


def _pick(names: tuple[str, ...], table: list[str]) -> str | None:
    """Return the first usual name there is; W&B exports put the run's name and " - " before."""
    for name in names:
        for column in table:
            if column == name or column.endswith(f" - {name}"):
                return column
    return None


def _rates(path: Path, choice: Choice, said: list[str], *, wanted: bool) -> dict[int, PatternRates]:
    """Return the rates of the texts by step; without texts none, or an error where wanted."""
    data = LogData("log")
    try:
        texts = iter_texts(path, choice, data)
        sample = list(islice(texts, _SAMPLE))
    except UserError as error:
        if wanted:
            raise UserError(
                f"{path}: no entropy was found, and no texts to take one from ({error})"
            ) from error
        said.append("no prompts and completions beside the entropy: patterns are not counted")
        return {}
    rule = TagRule(completion for _, _, completion in sample)
    found: dict[int, PatternRates] = {}
    for step, prompt, completion in chain(sample, texts):
        found.setdefault(step, PatternRates()).add(of_row(prompt, completion, rule))
    said += data.said
    said += [f"left out: {count} {reason}" for reason, count in data.skipped.items()]
    return found


def _of_texts(path: Path, choice: Choice) -> dict[int, float | None]:
    steps = read_log(path, choice).steps
    return {
        step: batch_metrics(found, permutations=1)["prefix_conditional_entropy"]
        for step, found in steps.items()
    }
