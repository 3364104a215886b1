"""Which rows of a step belong together when the log does not say."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import gcd

from ragen2_cli.errors import counted


@dataclass(frozen=True, slots=True)
class Grouping:
    """How groups were found: rows of a group (None: one group per prompt and step), one line."""

    size: int | None
    said: str


def infer_grouping(prompts_by_step: Sequence[Sequence[int]], told: int | None) -> Grouping:
    """Find the group size from consecutive rows with the same prompt, over the whole log.

    Trainers write the rows of a group one after the other, so a group is a run of equal prompts,
    and a prompt that was drawn twice gives one run of twice the size: the size is the greatest
    common divisor of all runs. Runs of mixed sizes: the most frequent size. When most runs are
    single rows although prompts repeat, rows were shuffled, and a group is a prompt within a step.

    Args:
        prompts_by_step: Prompt identities in file order, one sequence per step.
        told: The size the user gave; wins.
    """
    if told is not None:
        return Grouping(told, f"groups of {counted(told, 'row')}, as told")
    runs = [sum(1 for _ in run) for step in prompts_by_step for _, run in groupby(step)]
    if not runs:
        return Grouping(1, "no rows, no groups")
    counts = Counter(runs)
    size = gcd(*runs)
    if size > 1:
        return Grouping(
            size, f"groups of {counted(size, 'row')}: consecutive rows with the same prompt"
        )
    common = max(counts, key=lambda length: (counts[length], length))
    if common > 1:
        sizes = ", ".join(f"{length} ({counts[length]}x)" for length in sorted(counts)[:6])
        return Grouping(common, f"mixed group sizes: {sizes}; groups of up to {common} rows")
    if any(len(set(step)) < len(step) for step in prompts_by_step):
        return Grouping(None, "rows of a prompt are not consecutive: one group per prompt and step")
    return Grouping(1, "no prompt repeats within a step: groups of one row, without a spread")


def named_groups(
    steps: Sequence[tuple[Sequence[object], Sequence[int]]], column: str, *, told: bool
) -> tuple[list[list[str]] | None, str]:
    """Return the group of each row of each step by a logged column, and one line about it.

    Rows without an id are grouped by their prompts, among themselves. None instead of groups:
    every row is without one, or, unless the user named the column, no id occurs twice in a step
    although a prompt does (ids of rows, not of groups).

    Args:
        steps: Ids and prompt identities of the rows of each step.
        column: Its name.
        told: The user named it.
    """
    missing = [[_missing(one) for one in ids] for ids, _ in steps]
    if all(map(all, missing)):
        return None, f"column '{column}' is empty and was ignored"
    names = [[str(one) for one in ids] for ids, _ in steps]
    present = [
        [name for name, gone in zip(*pair, strict=True) if not gone]
        for pair in zip(names, missing, strict=True)
    ]
    if not told and not any(map(_repeats, present)) and any(_repeats(p) for _, p in steps):
        return None, f"column '{column}' differs in every row though prompts repeat: ignored"
    rest = [
        [prompt for prompt, gone in zip(prompts, flags, strict=True) if gone]
        for (_, prompts), flags in zip(steps, missing, strict=True)
    ]
    said = f"groups by column '{column}'"
    count = sum(map(len, rest))
    if count:
        grouping = infer_grouping(rest, None)
        said += f"; {counted(count, 'row')} without one: {grouping.said}"
        for name, flags, prompts in zip(names, missing, rest, strict=True):
            groups = iter(assign_groups(prompts, grouping))
            for place in (place for place, gone in enumerate(flags) if gone):
                name[place] = f"without {column} {next(groups)}"
    return names, said


def _missing(value: object) -> bool:
    return value is None or value == "" or value != value  # NaN


def _repeats(values: Sequence[object]) -> bool:
    return len(set(values)) < len(values)


def assign_groups(prompts: Sequence[int], grouping: Grouping) -> list[int]:
    """Return the group number of each row of one step."""
    if grouping.size is None:
        index: dict[int, int] = {}
        return [index.setdefault(prompt, len(index)) for prompt in prompts]
    groups: list[int] = []
    next_group = 0
    for _, run in groupby(prompts):
        rows = sum(1 for _ in run)
        groups += [next_group + row // grouping.size for row in range(rows)]
        next_group = groups[-1] + 1
    return groups
