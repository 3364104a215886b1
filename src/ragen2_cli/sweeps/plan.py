"""From what was asked for, in flags and in a TOML file, to the cells of a sweep."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen2_cli.config.load import build_config, parse_set, read_toml
from ragen2_cli.config.presets import PRESETS
from ragen2_cli.errors import UserError, did_you_mean
from ragen2_cli.records import Cell
from ragen2_cli.sweeps.axes import (
    Axis,
    filter_axis,
    number_or_none,
    over_axis,
    seeds_of,
    stochasticity_axis,
    sweep_table,
    top_p_axis,
    values_axis,
)
from ragen2_cli.sweeps.grid import expand

AXES = {
    "stochasticity": stochasticity_axis,
    "filter": filter_axis,
    "top-p": top_p_axis,
    "algorithm": lambda text: values_axis("algorithm", "algorithm.name", text, str),
    "credit": lambda text: values_axis("credit", "algorithm.credit", text, str),
    "kl": lambda text: values_axis("kl", "algorithm.kl", text),
    "entropy": lambda text: values_axis("entropy", "algorithm.entropy", text),
    "entropy-target": lambda text: values_axis(
        "entropy-target", "algorithm.entropy_target", text, number_or_none
    ),
    "seal": lambda text: values_axis("seal", "seal.coefficient", text),
    "group-size": lambda text: values_axis("group-size", "rollout.group_size", text),
    "prompts": lambda text: values_axis("prompts", "rollout.prompts", text),
    "env": lambda text: values_axis("env", "env.name", text, str),
    "model": lambda text: values_axis("model", "model.name", text, str),
}
"""The axes that have a flag of their own."""


def plan(
    given: Mapping[str, str | None],
    over: Sequence[str],
    seeds: str | None,
    *,
    file: Path | None = None,
    preset: str | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
    zipped: bool = False,
) -> list[Cell]:
    """Return the planned cells.

    Flags add axes to those of the file's ``[sweep]`` table; an axis of the same name, and seeds,
    replace the file's.

    Args:
        given: Values of the axes in ``AXES``, as typed; None for those not given.
        over: ``section.key=a,b,c`` texts.
        seeds: As typed; None for the file's, else seed 0 alone.
        file: A sparse TOML file, with or without a ``[sweep]`` table.
        preset: A name of ``PRESETS``.
        flags: Dotted keys that all cells share; None values are flags that were not given.
        sets: ``section.key=value`` texts that all cells share.
        zipped: Zip the axes instead of crossing them.

    Raises:
        UserError: Anything that makes no sweep, in one line.
    """
    base: dict[str, Any] = {}
    if preset is not None:
        if preset not in PRESETS:
            raise UserError(f"--preset: no preset '{preset}'{did_you_mean(preset, PRESETS)}")
        _merge(base, PRESETS[preset])
    table: Mapping[str, Any] = {}
    if file is not None:
        tree = read_toml(file)
        table = tree.pop("sweep", {})
        if not isinstance(table, Mapping):
            raise UserError(f"{file}: sweep is a table, [sweep], not {table!r}")
        _merge(base, tree)
    for key, value in (flags or {}).items():
        if value is not None:
            for part in reversed(key.split(".")):
                value = {part: value}
            _merge(base, value)
    for text in sets:
        _merge(base, parse_set(text))
    axes, listed, file_zips = sweep_table(table)
    asked = [AXES[name](text) for name, text in given.items() if text is not None]
    asked += [over_axis(text) for text in over]
    chosen = seeds_of(seeds) if seeds is not None else listed or [_seed(base)]
    return expand(base, _replaced(axes, asked), chosen, zipped=zipped or file_zips)


def _replaced(axes: Sequence[Axis], asked: Sequence[Axis]) -> list[Axis]:
    """The file's axes, those asked for under the same name in their place, new ones after."""
    names = {axis.name for axis in axes}
    by_name = {axis.name: axis for axis in asked}
    return [by_name.get(axis.name, axis) for axis in axes] + [
        axis for axis in asked if axis.name not in names
    ]


def _seed(base: Mapping[str, Any]) -> int:
    """The seed that all cells share."""
    return build_config({key: value for key, value in base.items() if key == "seed"}).seed


def _merge(tree: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    for key, value in overlay.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        else:
            tree[key] = dict(value) if isinstance(value, Mapping) else value
