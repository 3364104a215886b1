"""Merge defaults, preset, TOML file and flags into one frozen config."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ragen2_cli.config.presets import ALGORITHMS, PRESETS
from ragen2_cli.config.schema import CONFIG_SCHEMA, Config
from ragen2_cli.errors import UserError, did_you_mean

Tree = dict[str, Any]

MAX_DEPTH = 32
"""Most levels of nested tables and lists in a config; far beyond, recursion would fail."""


def load_config(
    file: Path | None = None,
    *,
    preset: str | None = None,
    flags: Mapping[str, Any] | None = None,
    sets: Iterable[str] = (),
) -> Config:
    """Build the config of a run.

    Later sources win: defaults, preset, file, flags, ``--set``. The algorithm's own preset values
    (``algorithm.name``) sit beneath everything that names its fields.

    Args:
        file: A sparse TOML file, or None.
        preset: A name of ``PRESETS``, or None.
        flags: Dotted keys to values; None values are flags that were not given.
        sets: ``section.key=value`` texts; the value is TOML, or text where it is not TOML.

    Raises:
        UserError: For an unknown key, preset or file, or a value out of its range.
    """
    tree: Tree = {}
    if preset is not None:
        if preset not in PRESETS:
            raise UserError(f"--preset: no preset '{preset}'{did_you_mean(preset, PRESETS)}")
        _merge(tree, PRESETS[preset])
    if file is not None:
        given = read_toml(file)
        if "sweep" in given:
            raise UserError(
                f"--config {file}: its [sweep] table makes it a sweep; run it with"
                f" ragen2 sweep --config {file}"
            )
        _merge(tree, given)
    for key, value in (flags or {}).items():
        if value is not None:
            _merge(tree, _nest(key, value))
    for text in sets:
        _merge(tree, parse_set(text))
    return build_config(tree)


def build_config(tree: Mapping[str, Any], where: str = "") -> Config:
    """Check a (sparse) tree of settings and return the frozen config.

    Args:
        tree: The settings, nested.
        where: What error messages begin with, such as ``runs/a/config.json: ``.

    Raises:
        UserError: One line per first fault: key, reason and, for unknown keys, the nearest name.
    """
    version = tree.get("schema_version", CONFIG_SCHEMA)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise UserError(f"{where}config: schema_version is a whole number from 1, not {version!r}")
    if version > CONFIG_SCHEMA:
        raise UserError(
            f"{where}config: schema version {version} is newer than {CONFIG_SCHEMA}, the newest "
            "this version reads; upgrade ragen2"
        )
    merged: Tree = {}
    algorithm = tree.get("algorithm")
    default = Config().algorithm.name
    name = algorithm.get("name", default) if isinstance(algorithm, Mapping) else default
    if isinstance(name, str) and name in ALGORITHMS:
        _merge(merged, {"algorithm": {"name": name, **ALGORITHMS[name]}})
    _merge(merged, tree)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise UserError(where + _first_fault(error)) from None


def read_toml(file: Path) -> Tree:
    """Read a TOML file into a tree.

    Raises:
        UserError: When it does not exist, cannot be read or is not TOML.
    """
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"--config: no file {file}") from None
    except OSError as error:
        raise UserError(f"--config: cannot read {file}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deeply
        raise UserError(f"--config: cannot read {file}: {error}") from None
    if _depth(tree) > MAX_DEPTH:
        raise UserError(f"--config: {file} nests tables deeper than {MAX_DEPTH} levels")
    return tree


def _depth(tree: Tree) -> int:
    """Return the levels of nested tables and lists, counted without recursion."""
    depth = 0
    level: list[Any] = [tree]
    while level:
        depth += 1
        below = [item.values() if isinstance(item, dict) else item for item in level]
        level = [one for items in below for one in items if isinstance(one, dict | list)]
    return depth


def parse_set(text: str) -> Tree:
    """Parse ``section.key=value`` into a nested tree.

    Raises:
        UserError: When there is no ``=`` or no key.
    """
    key, separator, raw = text.partition("=")
    key = key.strip()
    if key.count(".") > MAX_DEPTH:
        raise UserError(f"--set: '{key[:40]}...' has more than {MAX_DEPTH} levels")
    if not separator or not key:
        hint = did_you_mean(key, known_keys()) if key else ""
        sections = f"; sections: {', '.join(_sections())}" if not hint else ""
        raise UserError(f"--set: '{text}' is not section.key=value{hint}{sections}")
    try:
        value: Any = tomllib.loads(f"value = {raw}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = raw.strip()
    if _depth({key: value}) > MAX_DEPTH:
        raise UserError(f"--set: {key} nests its value deeper than {MAX_DEPTH} levels")
    return _nest(key, value)


def known_keys() -> list[str]:
    """Return every config key, dotted, in the order of the schema."""
    found = []
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            found += [f"{name}.{key}" for key in section.model_fields]
        else:
            found.append(name)
    return found


def _sections() -> list[str]:
    return list(dict.fromkeys(key.partition(".")[0] for key in known_keys()))


def _nest(key: str, value: Any) -> Tree:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(tree: Tree, overlay: Mapping[str, Any]) -> None:
    for key, value in overlay.items():
        if isinstance(value, Mapping):
            below = tree.setdefault(key, {})
            if not isinstance(below, dict):
                raise UserError(f"config: {key} is a value, not a section")
            _merge(below, value)
        else:
            tree[key] = value


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"]) or "config"
    if fault["type"] == "extra_forbidden":
        known = _fields_at(fault["loc"][:-1])
        word = str(fault["loc"][-1])
        elsewhere = [key for key in known_keys() if key.endswith(f".{word}")]
        hint = did_you_mean(word, known) or f"; known keys: {', '.join(known)}"
        hint = f" (did you mean '{elsewhere[0]}'?)" if elsewhere else hint
        return f"{where}: unknown config key{hint}"
    reason = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return reason
    given = fault.get("input")
    hint = ""
    if fault["type"] == "string_pattern_mismatch":
        reason = f"use {_fields_at(fault['loc'][:-1])[str(fault['loc'][-1])].description}"
    if fault["type"] == "literal_error" and isinstance(given, str):
        hint = did_you_mean(given, _choices(fault["ctx"]["expected"]))
    return f"{where}: {reason}, got {given!r}{hint}"


def _choices(expected: str) -> list[str]:
    return [part.strip(" '") for part in expected.replace(" or ", ", ").split(",")]


def _fields_at(path: tuple[int | str, ...]) -> dict[str, FieldInfo]:
    model: type[BaseModel] = Config
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return {}
        model = annotation
    return model.model_fields
