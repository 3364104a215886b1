"""Which column of a log is what: by flag, else by stated rules; what was inferred is said."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ragen2_cli.errors import UserError, did_you_mean
from ragen2_cli.logs.files import TRUTH

PROMPT = ("prompt", "input", "prompts", "query", "question")
COMPLETION = ("completion", "output", "completions", "response", "generation")
REWARD = ("reward", "score", "return", "episode_return")
STEP = ("step", "global_step", "global_steps", "training_step")
GROUP = ("group", "group_id", "uid", "prompt_id", "prompt_uid")
MODE = ("mode", "split")
ADVANTAGE = ("advantage", "advantages")
ROLES = ("prompt", "completion", "reward", "step", "group", "mode")


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user said about a log; empty means "find out".

    Attributes:
        columns: Role to column name (``--columns``).
        rewards: Reward columns (``--reward``), summed.
        weights: Their weights (``--reward-weights``); empty: all 1.
        group_size: Rows of a group (``--group-size``).
        mode: ``train``, ``eval`` or ``all``.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    rewards: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    group_size: int | None = None
    mode: str = "train"


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a log by role, and how they were found (``said``, one line each)."""

    prompt: str
    completion: str
    rewards: tuple[tuple[str, float], ...]
    step: str | None
    group: str | None
    mode: str | None
    said: tuple[str, ...]

    @property
    def names(self) -> set[str]:
        """All columns that are needed."""
        optional = {self.step, self.group, self.mode} - {None}
        return {self.prompt, self.completion, *(n for n, _ in self.rewards), *map(str, optional)}


def find_layout(
    kinds: Mapping[str, str],
    choice: Choice,
    sample: Sequence[Mapping[str, Any]] = (),
    *,
    texts_alone: bool = False,
) -> Layout:
    """Decide which column is what.

    Prompt, completion, step, group and mode go by their usual names. Rewards: ``--reward``; else a
    column with a usual name (reward, score, return), of numbers or else of booleans. Else, with an
    advantage column as TRL writes it, float columns between completion and advantage: reward
    functions come first, extra columns after them, so the longest leading part whose sum explains
    the logged advantages of the sample (within a group they are proportional), or all of them when
    none does, and that is said. Else every numeric column with "reward" in its name.
    "advantage" is never a reward.

    Args:
        kinds: Column to kind, in file order (see ``files.columns``), over all files.
        choice: What the user said.
        sample: Some rows of the log, in order.
        texts_alone: No reward is needed and none is looked for.

    Raises:
        UserError: A column that was named is missing, or a needed one cannot be found; the
            message lists the columns seen.
    """
    seen = ", ".join(kinds) or "none"
    named = {role: _named(role, choice.columns, kinds) for role in ROLES}
    prompt = named["prompt"] or _usual(PROMPT, kinds)
    completion = named["completion"] or _usual(COMPLETION, kinds)
    for role, column in (("prompt", prompt), ("completion", completion)):
        if column is None:
            raise UserError(
                f"no {role} column; columns seen: {seen}; say which: --columns {role}=NAME"
            )
    assert prompt is not None
    assert completion is not None
    chosen = choice.rewards or ((named["reward"],) if named["reward"] else ())
    rewards: tuple[str, ...] = ()
    rule = "as told"
    if not texts_alone:
        rewards = tuple(chosen)
        if not rewards:
            rewards, rule = _rewards(kinds, prompt, completion, sample)
    for name in rewards:
        if name not in kinds:
            raise UserError(f"no column '{name}'{did_you_mean(name, kinds)}; columns seen: {seen}")
        if name in ADVANTAGE:
            raise UserError(f"'{name}' is not a reward: advantages are zero on average in a group")
    if not (rewards or texts_alone):
        raise UserError(f"no reward column; columns seen: {seen}; say which: --reward NAME")
    weights = choice.weights or (1.0,) * len(rewards)
    if len(weights) != len(rewards) and not texts_alone:
        raise UserError(
            f"{len(weights)} reward weights for {len(rewards)} reward columns "
            f"({', '.join(rewards)}): give as many"
        )
    step, group = named["step"] or _usual(STEP, kinds), named["group"] or _usual(GROUP, kinds)
    weighted = tuple(zip(rewards, weights, strict=True)) if rewards else ()
    terms = (n if w == 1 else f"{w:g} x {n}" for n, w in weighted)
    said = [f"reward = {' + '.join(terms)} ({rule})"] if weighted else []
    if step is None:
        said.append("steps are taken from file names")
    return Layout(
        prompt=prompt,
        completion=completion,
        rewards=weighted,
        step=step,
        group=group,
        mode=named["mode"] or _usual(MODE, kinds),
        said=tuple(said),
    )


def _named(role: str, columns: Mapping[str, str], kinds: Mapping[str, str]) -> str | None:
    name = columns.get(role)
    if name is not None and name not in kinds:
        raise UserError(
            f"--columns {role}={name}: no such column{did_you_mean(name, kinds)}; "
            f"columns seen: {', '.join(kinds)}"
        )
    return name


def _usual(names: Iterable[str], kinds: Mapping[str, str]) -> str | None:
    return next((name for name in names if name in kinds), None)


def _rewards(
    kinds: Mapping[str, str], prompt: str, completion: str, sample: Sequence[Mapping[str, Any]]
) -> tuple[tuple[str, ...], str]:
    known = {*PROMPT, *COMPLETION, *STEP, *GROUP, *MODE, *ADVANTAGE, prompt, completion}
    numeric = [n for n, kind in kinds.items() if kind in ("float", "int") and n not in known]
    for wanted in (("float", "int"), ("bool",)):
        usual = next((name for name in REWARD if kinds.get(name) in wanted), None)
        if usual:
            return (usual,), "by its name"
    order = list(kinds)
    advantage = _usual(ADVANTAGE, kinds)
    if advantage is not None:
        between = order[order.index(completion) + 1 : order.index(advantage)]
        floats = tuple(name for name in between if name in numeric and kinds[name] == "float")
        for count in range(len(floats), 0, -1):
            if _explains(floats[:count], sample, prompt, advantage):
                return floats[:count], "float columns whose sum explains the logged advantages"
        if floats:
            return floats, (
                "all float columns between completion and advantage, though their sum does not "
                "explain the logged advantages; use --reward and --reward-weights if it is wrong"
            )
    worded = tuple(name for name in numeric if "reward" in name.lower())
    return worded, "columns with 'reward' in their name"


def _explains(
    names: Sequence[str], sample: Sequence[Mapping[str, Any]], prompt: str, advantage: str
) -> bool:
    """Whether summed rewards, centered in each run of one prompt, go with the advantages."""
    explained = 0
    for _, run in groupby(sample, key=lambda row: str(row.get(prompt))):
        pairs = []
        for row in run:
            value = total([finite_number(row.get(name)) for name in names])
            target = finite_number(row.get(advantage))
            if not (math.isnan(target) or math.isnan(value)):
                pairs.append((value, target))
        if len(pairs) < 2:
            continue
        mean_r = sum(r for r, _ in pairs) / len(pairs)
        mean_a = sum(a for _, a in pairs) / len(pairs)
        together = sum((r - mean_r) * (a - mean_a) for r, a in pairs)
        run_r = sum((r - mean_r) * (r - mean_r) for r, _ in pairs)  # ** raises where * overflows
        run_a = sum((a - mean_a) * (a - mean_a) for _, a in pairs)
        # Scaling differs between groups, so each group is judged by its own correlation.
        if run_r > 1e-12 or run_a > 1e-12:
            if run_r <= 1e-12 or run_a <= 1e-12 or together < 0.99 * math.sqrt(run_r * run_a):
                return False
            explained += 1
    return explained > 0


def finite_number(value: Any) -> float:
    """Return a finite number, or NaN for anything else (text, lists, booleans, null)."""
    if value is None or isinstance(value, bool):
        return math.nan
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return result if math.isfinite(result) else math.nan


def reward_number(value: Any) -> float:
    """Return ``finite_number``, and 1 or 0 for a boolean or the word that a CSV writes for it."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value.lower() in TRUTH:
        return TRUTH[value.lower()]
    return finite_number(value)


def total(values: Sequence[float]) -> float:
    """Return the sum of the numbers among the values, NaN where there is none or it overflows."""
    scored = [value for value in values if not math.isnan(value)]
    try:
        return finite_number(math.fsum(scored)) if scored else math.nan
    except OverflowError:
        return math.nan


def parse_columns(text: str) -> dict[str, str]:
    """Read ``prompt=..,completion=..,reward=..`` into role to column.

    Raises:
        UserError: Not of this form, or an unknown role.
    """
    columns: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        role, sign, name = part.partition("=")
        if not sign or not name.strip():
            raise UserError(f"--columns '{part}': write role=column, for example prompt=question")
        if role.strip() not in ROLES:
            raise UserError(
                f"--columns: unknown role '{role.strip()}'{did_you_mean(role.strip(), ROLES)}; "
                f"roles are {', '.join(ROLES)}"
            )
        columns[role.strip()] = name.strip()
    return columns
