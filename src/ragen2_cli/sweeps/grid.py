"""Cross (or zip) axes and seeds into cells, each with a config of its own, checked at once."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragen2_cli.config.load import build_config
from ragen2_cli.errors import UserError
from ragen2_cli.records import Cell
from ragen2_cli.sweeps.axes import Arm, Axis

_LONGEST_NAME = 120


def expand(
    base: Mapping[str, Any], axes: Sequence[Axis], seeds: Sequence[int], *, zipped: bool = False
) -> list[Cell]:
    """Return one planned cell per combination of arms and seed; the seed varies fastest.

    Cells with the same seed meet the same boards and noise, whatever else differs.

    Args:
        base: A sparse config tree that all cells share.
        axes: What varies; none at all sweeps the seeds alone.
        seeds: The run seeds, each once.
        zipped: Take the first arm of every axis together, then the second, instead of all
            combinations.

    Raises:
        UserError: Axes of different length under ``zipped``, two axes of one name or that set the
            same key, one that sets the seed, a cell whose config is refused (an unknown key, a
            value out of range), or two cells that are the same run.
    """
    names = [axis.name for axis in axes]
    _check_axes(axes)
    cells = []
    for arms in _combinations(axes, zipped=zipped):
        labels = {name: arm.label for name, arm in zip(names, arms, strict=True)}
        for seed in seeds:
            tree = json.loads(json.dumps(base))
            for arm in arms:
                for key, value in arm.settings.items():
                    _put(tree, key, value)
            tree["seed"] = seed
            config = _checked(tree, labels)
            cells.append(Cell(cell_name(labels, seed), labels, seed, config, "planned"))
    refuse_copies(cells)
    return cells


def _check_axes(axes: Sequence[Axis]) -> None:
    """Refuse axes that would overwrite each other: a cell's label must be what it runs."""
    names = [axis.name for axis in axes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"sweep: {twice} is swept twice; give all its values at once")
    set_by: dict[str, str] = {}
    for axis in axes:
        for key in dict.fromkeys(key for arm in axis.arms for key in arm.settings):
            if key.partition(".")[0] == "seed":
                raise UserError(f"sweep: {axis.name} sets the seed; give seeds with --seeds")
            for other, name in set_by.items():
                if name != axis.name and _overlap(other, key):
                    raise UserError(f"sweep: {name} and {axis.name} both set {key}; use one")
            set_by[key] = axis.name


def _overlap(one: str, other: str) -> bool:
    """Whether two dotted keys are equal or one holds the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def refuse_copies(cells: Iterable[Cell]) -> None:
    """Refuse two cells of equal config, whose runs would count as independent.

    Raises:
        UserError: There are two; both are named.
    """
    seen: dict[str, str] = {}
    for cell in cells:
        first = seen.setdefault(json.dumps(cell.config, sort_keys=True), cell.name)
        if first != cell.name:
            raise UserError(f"sweep: {first} and {cell.name} are the same run; keep one of them")


def _combinations(axes: Sequence[Axis], *, zipped: bool) -> list[tuple[Arm, ...]]:
    if not zipped or not axes:
        return list(itertools.product(*(axis.arms for axis in axes)))
    lengths = {axis.name: len(axis.arms) for axis in axes}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UserError(f"--zip: the axes have different numbers of values ({counts})")
    return list(zip(*(axis.arms for axis in axes), strict=True))


def _checked(tree: dict[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    try:
        return build_config(tree).model_dump(mode="json")
    except UserError as error:
        where = ", ".join(f"{name} {label}" for name, label in labels.items())
        raise UserError(f"{error}" + f" (in the cell {where})" * bool(where)) from None


def cell_name(labels: Mapping[str, str], seed: int) -> str:
    """Return a folder name such as ``filter-top-p_stochasticity-20_seed-3``.

    Labels whose spelling had to change carry a short hash, so that two cells never share a name.
    """
    parts, changed = [], False
    for name, label in labels.items():
        text = f"{name.rpartition('.')[2]}-{label}"
        safe = re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.")
        changed |= safe != text
        parts.append(safe)
    full = "_".join([*parts, f"seed-{seed}"])
    if not changed and len(full) <= _LONGEST_NAME:
        return full
    digest = hashlib.blake2b(json.dumps(dict(labels)).encode(), digest_size=3).hexdigest()
    return "_".join(["_".join(parts)[: _LONGEST_NAME - 24], digest, f"seed-{seed}"])


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise UserError(f"sweep: {key}: {section} is a value, not a section")
    tree[last] = value
