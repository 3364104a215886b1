"""An episode as lines of text: what was seen, thought, answered and earned."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ragen2_cli.commands.literal import visible

if TYPE_CHECKING:
    from ragen2_cli.records import Episode, Turn

Line = tuple[str, str]
"""A line and its style on a terminal; pipes get the line alone."""


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.3g}"


def _kept(kept: bool | None) -> str:
    return {True: "kept", False: "dropped", None: "not filtered"}[kept]


def group_line(group: int, returns: Sequence[float | None], successes: int, kept: bool) -> Line:
    """Return the heading of a prompt group: its returns, its successes, kept or dropped."""
    listed = " ".join(_number(value) for value in returns[:32])
    more = f" and {len(returns) - 32} more" if len(returns) > 32 else ""
    text = f"group {group}: {successes} of {len(returns)} succeed, returns {listed}{more}"
    return text, "bold" if kept else "bold dim"


def episode_lines(episode: "Episode") -> list[Line]:
    """Return one episode, its text literal and cut."""
    parts = [
        f"step {episode.step}  group {episode.group}  rollout {episode.rollout}",
        f"seed {episode.seed}",
        episode.status + ("" if episode.success == (episode.status == "success") else " (goal)"),
        f"return {_number(episode.episode_return)}",
        f"outcome {_number(episode.outcome)}",
        f"advantage {_number(episode.advantage, '+')}",
        _kept(episode.kept),
    ]
    if episode.silent:
        parts.append("silenced prompt")
    lines: list[Line] = [("  ".join(parts), "green" if episode.success else "yellow")]
    for number, turn in enumerate(episode.turns, start=1):
        lines += _turn_lines(number, turn)
    return lines


def _turn_lines(number: int, turn: "Turn") -> list[Line]:
    ran = ", ".join(turn.actions) if turn.actions else "nothing"
    penalty = f"  penalty {_number(turn.penalty)}" if turn.penalty else ""
    validity = "" if turn.valid else "  invalid"
    result = f"ran {visible(ran, 200)}  reward {_number(turn.reward)}{penalty}{validity}"
    return [
        (f"  turn {number}", "bold"),
        *_block("saw", turn.observation, ""),
        *_block("thought", turn.reasoning, "italic"),
        *_block("answered", turn.answer, "cyan"),
        *_block("result", result, "" if turn.valid else "red"),
    ]


def _block(label: str, text: str, style: str) -> list[Line]:
    first, *rest = visible(text).split("\n") if text else ["(nothing)"]
    indent = " " * 14
    return [(f"    {label:<10}{first}", style), *((f"{indent}{line}", style) for line in rest)]
