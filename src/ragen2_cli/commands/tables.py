"""Plain-text tables of results: aligned on a terminal, one row per line when piped."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ragen2_cli.errors import counted


def align(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as left-aligned columns, two blanks apart; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def success_cell(row: Mapping[str, Any] | None) -> str:
    """Return ``45.1% [40.8%, 49.4%]`` of an evaluation, or ``-`` where there is none."""
    if row is None:
        return "-"
    return f"{row['success']:.1%} [{row['ci_low']:.1%}, {row['ci_high']:.1%}]"


def train_summary(summary: Mapping[str, Any]) -> str:
    """Return the table a training run ends with, and what to try next."""
    lines = []
    before, after = summary["before"], summary["after"]
    if after:
        n = next(iter(after.values()))["episodes"]
        table = [["held-out success", "before", "after", "change"]]
        for decoding, last in after.items():
            first = before.get(decoding)
            change = f"{100 * (last['success'] - first['success']):+.1f} points" if first else "-"
            label = "greedy" if decoding == "greedy" else f"sampled, T = {last['temperature']:g}"
            table.append([label, success_cell(first), success_cell(last), change])
        lines += [align(table), f"n = {n} held-out prompts; 95 % Wilson intervals"]
    matched = summary.get("start_at_matched_entropy")
    if matched:
        lines.append(
            f"start policy at T = {matched['temperature']:.2f} (the final policy's entropy, "
            f"{matched['entropy']:.2f} nats): {success_cell(matched)}; "
            "what exceeds it was learned, not sharpened"
        )
    lines += [
        "",
        f"groups kept {summary['kept_ratio']:.0%}, dead {summary['dead_ratio']:.0%}, "
        f"steps without an update {summary['empty_steps']}",
        f"{counted(summary['steps'], 'step')} in {summary['seconds']:.0f} s{_sessions(summary)}, "
        f"{summary['tokens']:,} sampled tokens",
    ]
    if summary.get("stopped"):
        lines.append(f"stopped: {summary['stopped']}")
    run = shlex.quote(summary["run"])
    lines += [
        f"everything is in {summary['run']}",
        "",
        "next:",
        f"  ragen2 show {run} --limit 3",
        f"  ragen2 evaluate {run}",
        f"  ragen2 diagnose {run}",
    ]
    return "\n".join(lines)


def _sessions(summary: Mapping[str, Any]) -> str:
    """Say what the seconds count where a run was resumed."""
    first = summary["session_from_step"]
    if not first:
        return ""
    own = f"{summary['session_seconds']:.0f} s since step {first}"
    return f" (steps and evaluations of all sessions; this session: {own})"
