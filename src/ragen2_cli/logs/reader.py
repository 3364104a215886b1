"""Read a log as a stream into rows by step; count and name everything that is left out."""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ragen2_cli.core.batches import PATTERN_ROWS, LogRow, pattern_text
from ragen2_cli.core.degeneration import ungrounded_facts
from ragen2_cli.core.surface import PREFIX_POSITIONS
from ragen2_cli.errors import UserError
from ragen2_cli.logs.files import (
    BrokenFile,
    LogFile,
    Row,
    columns,
    find_files,
    merge_kinds,
    mode_of,
    rows,
)
from ragen2_cli.logs.grouping import assign_groups, infer_grouping, named_groups
from ragen2_cli.logs.layout import Choice, Layout, find_layout, finite_number, reward_number, total
from ragen2_cli.logs.texts import (
    messages_of,
    plain_text,
    prompt_key,
    reasoning_of,
    split_prompt,
    think_tag,
    turns_of,
)

_SAMPLE_ROWS = 256
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class RawText:
    """Prompt (text or messages) and turns of one row, as they are in the log."""

    prompt: Any
    turns: tuple[str, ...]


@dataclass
class LogData:
    """A log, read.

    Attributes:
        kind: ``run`` for our own run folder, else ``log``.
        steps: Rows by step, ascending; those of a run are read when they are asked for.
        said: What was inferred, one line each.
        skipped: What was left out and how often, by reason.
        rows_read: Rows seen, skipped ones included.
        length_unit: Unit of ``LogRow.length``: ``tokens`` or ``words``.
    """

    kind: str
    steps: Mapping[int, list[LogRow]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    rows_read: int = 0
    length_unit: str = "words"


@dataclass
class _Step:
    """Rows of one step in a compact form, before groups are known."""

    prompts: "array[int]" = field(default_factory=lambda: array("q"))
    rewards: "array[float]" = field(default_factory=lambda: array("d"))
    lengths: "array[float]" = field(default_factory=lambda: array("d"))
    words: "array[int]" = field(default_factory=lambda: array("q"))
    marks: "array[int]" = field(default_factory=lambda: array("b"))
    prefixes: list[tuple[str, ...]] = field(default_factory=list)
    patterns: list[tuple[str, str, float | None]] = field(default_factory=list)
    groups: list[Any] = field(default_factory=list)
    scored: set[str] = field(default_factory=set)
    digest: Any = field(default_factory=lambda: blake2b(digest_size=16))


def read_log(path: Path, choice: Choice, progress: Progress | None = None) -> LogData:
    """Read a log file or a folder of them in one pass; memory grows with rows, not with text.

    Args:
        path: A parquet, jsonl, CSV or table JSON file, or a folder of them.
        choice: What the user said about its columns.
        progress: Called with (bytes done, bytes in all, file name).

    Raises:
        UserError: Nothing to read, a single file that is broken or empty, or columns missing.
    """
    data = LogData("log")
    files, layout = _open(path, choice, data)
    interned: dict[str, str] = {}
    prompts: dict[bytes, int] = {}
    steps: dict[int, _Step] = {}
    sizes = [file.path.stat().st_size for file in files]
    for number, file in enumerate(files):
        for row, step in _usable(file, layout, choice, data, single=len(files) == 1):
            _add(steps.setdefault(step, _Step()), row, layout, data, prompts, interned)
            if progress and data.rows_read % 1000 == 0:
                progress(sum(sizes[:number]), sum(sizes), file.path.name)
    if progress:
        progress(sum(sizes), sum(sizes), files[-1].path.name)
    if not any(step.prompts for step in steps.values()):
        left = ", ".join(f"{count} {reason}" for reason, count in data.skipped.items())
        raise UserError(f"{path}: no rows to diagnose{f' ({left})' if left else ''}")
    for name in {*choice.rewards, *filter(None, [choice.columns.get("reward")])}:
        if not any(name in step.scored for step in steps.values()):
            raise UserError(f"{path}: '{name}' is no reward: it has a number in no row")
    _finish(data, steps, layout, choice)
    return data


def _open(
    path: Path, choice: Choice, data: LogData, *, texts_alone: bool = False
) -> tuple[list[LogFile], Layout]:
    """Return the readable files of the chosen mode and their common layout."""
    found = find_files(path)
    modes = {file.mode for file in found}
    if choice.mode != "all" and choice.mode in modes and len(modes) > 1:
        other = sum(file.mode not in (choice.mode, None) for file in found)
        if other:
            data.skipped[f"files of another mode than {choice.mode}"] += other
        found = [file for file in found if file.mode in (choice.mode, None)]
    read: list[tuple[LogFile, dict[str, str]]] = []
    for file in found:
        try:
            read.append((file, columns(file)))
        except BrokenFile as error:
            if len(found) == 1:
                raise UserError(f"{file.path}: {error}") from error
            data.skipped["unreadable files"] += 1
            data.said.append(f"skipped {file.path.name}: {error}")
    # Beside completions, a table without any is something else: metrics, the numbers of a figure.
    tables = [each for each in read if _shares(each[1], choice)] or read
    if len(tables) < len(read):
        data.skipped["files without completions"] += len(read) - len(tables)
    files = [file for file, _ in tables]
    kinds: dict[str, str] = {}
    for _, seen in tables:
        merge_kinds(kinds, seen)
    if not kinds:
        raise UserError(f"{path}: {'empty, no columns' if files else 'no readable log'}")
    layout = find_layout(kinds, choice, _sample(files[0]), texts_alone=texts_alone)
    if choice.mode == "eval" and "eval" not in modes and layout.mode is None:
        raise UserError(f"{path}: --mode eval, but neither a file name, folder nor column tells it")
    data.said += layout.said
    return files, layout


def _sample(file: LogFile) -> list[Row]:
    """Return the first rows of a file, as far as it can be read."""
    found: list[Row] = []
    try:
        for row in rows(file):
            found.append(row)
            if len(found) == _SAMPLE_ROWS:
                break
    except BrokenFile:
        return found  # the full pass reports it
    return found


def _shares(seen: dict[str, str], choice: Choice) -> bool:
    from ragen2_cli.logs.layout import COMPLETION

    return bool(set(seen) & {*COMPLETION, choice.columns.get("completion", "")})


def _usable(
    file: LogFile, layout: Layout, choice: Choice, data: LogData, *, single: bool
) -> Iterator[tuple[Row, int]]:
    """Yield the rows of a file that belong to the chosen mode, with their steps."""
    try:
        for row in rows(file, layout.names):
            data.rows_read += 1
            mode = row.get(layout.mode) if layout.mode else None
            told = choice.mode if mode in (None, "") else mode_of(str(mode)) or "train"
            if choice.mode not in ("all", told):
                data.skipped[f"rows of another mode than {choice.mode}"] += 1
                continue
            value = row.get(layout.step) if layout.step else file.step
            step = finite_number(value)
            if layout.step and math.isnan(step):
                data.skipped["rows without a step"] += 1
                continue
            yield row, 0 if math.isnan(step) else int(step)
    except BrokenFile as error:
        if single:
            raise UserError(f"{file.path}: {error}") from error
        data.skipped["files that end early"] += 1
        data.said.append(f"{file.path.name}: {error}; rows before it are used")


def _add(
    step: _Step,
    row: Row,
    layout: Layout,
    data: LogData,
    prompts: dict[bytes, int],
    interned: dict[str, str],
) -> None:
    """Reduce one row and append it."""
    prompt, completion = split_prompt(row.get(layout.prompt), row.get(layout.completion))
    turns = turns_of(completion)
    if prompt is None or completion is None or not turns:
        data.skipped["rows without a prompt or a completion"] += 1
        return
    values = {name: weight * reward_number(row.get(name)) for name, weight in layout.rewards}
    step.scored |= {name for name, value in values.items() if not math.isnan(value)}
    reward = total(list(values.values()))
    if math.isnan(reward):
        data.skipped["rewards that are no number (row kept without a score)"] += 1
    reasoning = reasoning_of(turns)
    key = prompt_key(messages_of(prompt))
    words = reasoning.text.split()
    step.digest.update(key + repr(reward).encode() + prompt_key("\0".join(turns)))
    step.prompts.append(prompts.setdefault(key, len(prompts)))
    step.rewards.append(reward)
    step.lengths.append(float(sum(len(turn.split()) for turn in turns)))
    step.words.append(len(words))
    tagged = "<answer>" in turns[0], "</think>" in turns[0]
    step.marks.append(reasoning.paired + 2 * reasoning.closed + 4 * tagged[0] + 8 * tagged[1])
    step.prefixes.append(tuple([interned.setdefault(w, w) for w in words[:PREFIX_POSITIONS]]))
    if len(step.patterns) < PATTERN_ROWS:
        text = pattern_text(reasoning.text)
        facts = ungrounded_facts(text, [plain_text(prompt)])
        step.patterns.append((text, think_tag(turns[0]), facts))
    if layout.group:
        step.groups.append(row.get(layout.group))


def _finish(data: LogData, steps: dict[int, _Step], layout: Layout, choice: Choice) -> None:
    """Find groups, drop steps that repeat a batch, and turn compact rows into rows."""
    kept: dict[int, _Step] = {}
    previous = b""
    for number in sorted(steps):
        digest = steps[number].digest.digest()
        if digest == previous:
            data.skipped["steps that log the batch of the step before again"] += 1
        else:
            kept[number] = steps[number]
        previous = digest
    grouping = infer_grouping([step.prompts for step in kept.values()], choice.group_size)
    named: list[list[str]] | None = None
    if layout.group and choice.group_size is None:
        ids = [(step.groups, step.prompts) for step in kept.values()]
        named, said = named_groups(ids, layout.group, told="group" in choice.columns)
        data.said.append(said)
    if named is None:
        data.said.append(grouping.said)
    marks = 0
    for step in kept.values():
        for mark in step.marks:
            marks |= mark
    valid_bit = 1 if marks & 4 else 2 if marks & 8 else 0
    if not valid_bit:
        data.said.append("no think or answer tags: whole completions are taken as reasoning")
    found: dict[int, list[LogRow]] = {}
    for index, (number, step) in enumerate(kept.items()):
        groups = named[index] if named else assign_groups(step.prompts, grouping)
        if named is None and grouping.size:
            short = sum(size != grouping.size for size in Counter(groups).values())
            if short:
                data.skipped["groups of another size (kept)"] += short
        found[number] = list(_log_rows(number, step, groups, valid_bit))
    data.steps = found


def _log_rows(
    number: int, step: _Step, groups: Sequence[object], valid_bit: int
) -> Iterator[LogRow]:
    for index, prefix in enumerate(step.prefixes):
        known = index < len(step.patterns)
        text, tag, facts = step.patterns[index] if known else (None, None, None)
        yield LogRow(
            step=number,
            group=str(groups[index]),
            prompt=step.prompts[index],
            reward=step.rewards[index],
            prefix=prefix,
            reasoning_words=step.words[index],
            valid=bool(step.marks[index] & valid_bit) if valid_bit else None,
            length=step.lengths[index],
            patterns=text,
            tag=tag if valid_bit else None,
            ungrounded=facts,
        )


def texts_of_step(path: Path, choice: Choice, step: int) -> list[RawText]:
    """Return prompts and turns of one step, in the order of its rows in ``LogData``.

    Raises:
        UserError: As ``read_log``.
    """
    found = []
    for number, prompt, completion in iter_texts(path, choice, LogData("log")):
        turns = turns_of(completion) if number == step else []
        if turns:
            found.append(RawText(messages_of(prompt), tuple(turns)))
    return found


def iter_texts(path: Path, choice: Choice, data: LogData) -> Iterator[tuple[int, Any, Any]]:
    """Yield step, prompt and completion of every row, as logged, for what needs no reward.

    Args:
        path: As for ``read_log``.
        choice: What the user said about its columns.
        data: Counts what was left out and says what was inferred.

    Raises:
        UserError: As ``read_log``, a missing reward aside.
    """
    files, layout = _open(path, choice, data, texts_alone=True)
    for file in files:
        for row, step in _usable(file, layout, choice, data, single=len(files) == 1):
            prompt, completion = split_prompt(row.get(layout.prompt), row.get(layout.completion))
            if prompt is None or completion is None:
                data.skipped["rows without a prompt or a completion"] += 1
                continue
            yield step, prompt, completion
