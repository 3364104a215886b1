"""What a sweep varies: named axes of labeled arms, from flags or from a ``[sweep]`` table."""

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragen2_cli.errors import UserError, did_you_mean

LEVELS = "0,2,5,10,20,50,80,100"
"""The stochasticity levels of the sources, in percent: what a bare ``--stochasticity`` means."""
MOST_SEEDS = 10_000
_SWEEP_KEYS = ("seeds", "zip", "over", "arms")


@dataclass(frozen=True)
class Arm:
    """One value of an axis.

    Attributes:
        label: What tables, legends and folder names call it.
        settings: Dotted config keys and the values they get.
    """

    label: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """One thing that varies: its name and its arms, in the order given."""

    name: str
    arms: tuple[Arm, ...]

    def __post_init__(self) -> None:
        """Refuse an axis without arms, or with one twice."""
        labels = [arm.label for arm in self.arms]
        if not labels:
            raise UserError(f"sweep: {self.name} has no values, so there are no cells")
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise UserError(f"sweep: {self.name} has the value {twice} twice; give it once")


def values_axis(name: str, key: str, text: str, read: Callable[[str], Any] | None = None) -> Axis:
    """Read ``a,b,c`` into an axis over one config key.

    Args:
        name: The axis's name.
        key: The dotted config key.
        text: Values between commas; each is TOML, or text where it is not TOML.
        read: Turns one value's text into the setting, instead of TOML.

    Raises:
        UserError: No values, one twice, or one that ``read`` refuses.
    """
    return Axis(name, tuple(Arm(each, {key: (read or toml_value)(each)}) for each in parts(text)))


def parts(text: str) -> list[str]:
    """Return the values between commas, stripped; empty ones are left out."""
    return [part.strip() for part in text.split(",") if part.strip()]


def toml_value(text: str) -> Any:
    """Return a value written in TOML, or the text itself where it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def number_or_none(text: str) -> Any:
    """Return a value written in TOML, or None for ``none``."""
    return None if text == "none" else toml_value(text)


def stochasticity_axis(text: str) -> Axis:
    """Read percent levels such as ``0,20,50%``; 0.5 means half a percent.

    Raises:
        UserError: A level that is no number, or outside 0 to 100.
    """

    def arm(level: str) -> Arm:
        number = _number("--stochasticity", level.removesuffix("%"))
        if not 0 <= number <= 100:
            raise UserError(f"--stochasticity: {level} is not between 0 and 100 percent")
        return Arm(f"{number:g}", {"env.stochasticity": number})

    return Axis("stochasticity", tuple(arm(level) for level in parts(text)))


def filter_axis(text: str) -> Axis:
    """Read filter strategies, each with an optional value: ``top-p:0.9,top-k:0.5,resample,none``.

    Without a value the strategy takes ``filter.value`` of the config.

    Raises:
        UserError: A value that is not a number. Unknown strategies are refused with the config.
    """

    def arm(part: str) -> Arm:
        strategy, colon, value = part.partition(":")
        settings: dict[str, Any] = {"filter.strategy": strategy}
        if colon:
            settings["filter.value"] = _number("--filter", value)
        return Arm(part, settings)

    return Axis("filter", tuple(arm(part) for part in parts(text)))


def top_p_axis(text: str) -> Axis:
    """Read top-p values, ``none`` for no filter: ``1,0.9,0.8,none``.

    Raises:
        UserError: A value that is neither a number nor ``none``.
    """

    def arm(part: str) -> Arm:
        if part == "none":
            return Arm("none", {"filter.strategy": "none"})
        value = _number("--top-p", part)
        return Arm(f"{value:g}", {"filter.strategy": "top-p", "filter.value": value})

    return Axis("top-p", tuple(arm(part) for part in parts(text)))


def over_axis(text: str) -> Axis:
    """Read ``section.key=a,b,c`` for any config key; the key is checked with the cells.

    Raises:
        UserError: No ``=``, or no values.
    """
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--over: '{text}' is not section.key=a,b,c")
    return values_axis(key.strip(), key.strip(), values)


def seeds_of(text: str) -> list[int]:
    """Read ``--seeds``: a count (``5`` is 0 to 4) or a list (``3,7,11``; ``3,`` is seed 3 alone).

    Raises:
        UserError: Not whole numbers from 0, no seed, or one twice.
    """
    given = parts(text)
    if not given or not all(part.isdecimal() for part in given):
        raise UserError(f"--seeds: '{text}' is neither a count nor a list of whole numbers")
    seeds = [int(part) for part in given]
    return checked_seeds(range(seeds[0]) if "," not in text else seeds)


def checked_seeds(seeds: Sequence[int]) -> list[int]:
    """Return the seeds.

    Raises:
        UserError: None at all, more than ``MOST_SEEDS``, or one twice: copies would pretend to be
            independent runs.
    """
    if not seeds:
        raise UserError("--seeds: no seeds, so there are no cells")
    if len(seeds) > MOST_SEEDS:
        raise UserError(f"--seeds: {len(seeds):,} are more than the {MOST_SEEDS:,} of a sweep")
    twice, times = Counter(seeds).most_common(1)[0]
    if times > 1:
        raise UserError(f"--seeds: seed {twice} is there twice; give every seed once")
    return list(seeds)


def sweep_table(table: Mapping[str, Any]) -> tuple[list[Axis], list[int] | None, bool]:
    """Read the ``[sweep]`` table of a TOML file: its axes, seeds (None: not said) and ``zip``.

    ``over`` maps a dotted key to a list of values; ``arms`` maps an axis's name to a table of
    labels, each with the (nested or dotted) settings of that arm.

    Raises:
        UserError: An unknown key, or something of the wrong shape.
    """
    for key in table:
        if key not in _SWEEP_KEYS:
            raise UserError(f"sweep.{key}: unknown key{did_you_mean(key, _SWEEP_KEYS)}")
    over, arms = table.get("over", {}), table.get("arms", {})
    if not isinstance(over, Mapping) or not isinstance(arms, Mapping):
        raise UserError("sweep: over and arms are tables")
    axes = []
    for key, values in flat(over).items():
        if not isinstance(values, list):
            raise UserError(f"sweep.over.{key}: give a list of values")
        axes.append(Axis(key, tuple(Arm(_label(value), {key: value}) for value in values)))
    for name, labeled in arms.items():
        if not isinstance(labeled, Mapping) or not all(
            isinstance(settings, Mapping) for settings in labeled.values()
        ):
            raise UserError(f"sweep.arms.{name}: give a table of settings for each label")
        axes.append(Axis(name, tuple(Arm(label, flat(tree)) for label, tree in labeled.items())))
    zipped = table.get("zip", False)
    if not isinstance(zipped, bool):
        raise UserError(f"sweep.zip is true or false, not {zipped!r}")
    return axes, _table_seeds(table.get("seeds")), zipped


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested table as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _table_seeds(seeds: Any) -> list[int] | None:
    if seeds is None:
        return None
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        return checked_seeds(range(seeds))
    if isinstance(seeds, list) and all(isinstance(seed, int) for seed in seeds):
        return checked_seeds(seeds)
    raise UserError("sweep.seeds: give a count or a list of whole numbers")


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{flag}: '{text}' is not a number") from None
