"""A diagnosis as text for people, JSON for machines, CSV for spreadsheets."""

import csv
import io
import json
from dataclasses import asdict
from math import isfinite
from typing import Any

from ragen2_cli.commands.diagnosis import Report
from ragen2_cli.commands.literal import visible
from ragen2_cli.commands.tables import align
from ragen2_cli.errors import counted

SHOWN_STEPS = 6
METRICS = (
    ("reward_mean", "reward, mean"),
    ("reward_std", "reward spread within groups"),
    ("dead_ratio", "dead groups"),
    ("reward_f_ratio", "reward F ratio (about 1: no dependence)"),
    ("reward_f_pvalue", "  its permutation p"),
    ("mi_estimate", "mutual information, nats a token"),
    ("mi_seq_estimate", "mutual information, nats a reasoning"),
    ("mi_zscore", "MI-ZScore"),
    ("mi_zscore_ema", "MI-ZScore-EMA"),
    ("retrieval_accuracy", "retrieval accuracy"),
    ("retrieval_chance", "  by chance"),
    ("conditional_entropy", "conditional entropy, nats a token"),
    ("reasoning_entropy", "reasoning entropy, nats a token"),
    ("prefix_mi", "first-words information, nats"),
    ("prefix_mi_zscore", "  deviations above shuffled prompts"),
    ("prefix_conditional_entropy", "first-words entropy given prompt"),
    ("unique_prefix_rate", "unique first words"),
    ("response_length", "response length"),
    ("valid_reasoning", "valid reasoning"),
    ("truncated", "truncated"),
    ("sentence_duplication", "repeated sentences"),
    ("repeated_5gram_mass", "repeated 5-grams"),
    ("unique_token_ratio", "unique words"),
    ("ungrounded_facts", "facts that nothing read mentions, at most"),
    ("think_missing", "think tag missing"),
    ("think_unclosed", "  not closed"),
    ("think_repeated", "  repeated"),
)
_SHARES = {"dead_ratio", "valid_reasoning", "truncated", "unique_prefix_rate", "ungrounded_facts"}
_SHARES |= {"think_missing", "think_unclosed", "think_repeated"}


def as_text(report: Report) -> str:
    """Return the report as lines of plain text: source, verdict, table, what it rests on."""
    verdict = report.verdict
    steps = report.steps
    lines = [
        f"{visible(report.path)}: {counted(report.rows_read, 'row')}, {counted(len(steps), 'step')}"
        f" ({steps[0]['step']} to {steps[-1]['step']})"
    ]
    lines += [f"  {visible(said)}" for said in report.said]
    lines += [f"  left out: {count:,} {reason}" for reason, count in report.skipped.items()]
    lines += [
        "",
        f"verdict: {verdict['regime']}  ({verdict['basis']}, "
        f"{counted(verdict['measurements'], 'measurement')}, "
        f"n = {counted(verdict['rows'], 'row')} in the last)",
    ]
    lines += [f"  {reason}" for reason in verdict["reasons"]]
    lines += [f"warning: {visible(warning)}" for warning in report.warnings]
    lines += [
        "",
        align(_table(report)),
        "",
        *_notes(report),
        "",
        "next:",
        f"  {verdict['next_step']}",
    ]
    return "\n".join(lines)


def _table(report: Report) -> list[list[str]]:
    count = len(report.steps)
    shown = min(SHOWN_STEPS, count)
    picked = sorted({round(i * (count - 1) / max(1, shown - 1)) for i in range(shown)})
    scored = [i for i, row in enumerate(report.steps) if row.get("mi_estimate") is not None]
    if scored:  # show steps that were cross-scored where there are some
        last = len(scored) - 1
        few = min(SHOWN_STEPS, len(scored))
        picked = sorted({scored[round(i * last / max(1, few - 1))] for i in range(few)})
    rows = [report.steps[index] for index in picked]
    table = [["step", *(str(row["step"]) for row in rows)]]
    for name, label in METRICS:
        values = [row.get(name) for row in rows]
        if any(value is not None for value in values):
            unit = f", {report.length_unit}" if name == "response_length" else ""
            table.append([label + unit, *(_cell(name, value) for value in values)])
    return table


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0%}" if name in _SHARES else f"{value:.3g}"


def _notes(report: Report) -> list[str]:
    notes = ["- means undefined or not measured."]
    failed = [row for row in report.steps if row.get("cross_scoring", "done") != "done"]
    if failed:
        notes.append(
            f"Cross-scoring was not possible at {counted(len(failed), 'step')}; "
            f"at step {failed[-1]['step']}: "
            f"{visible(failed[-1]['cross_scoring'])}"
        )
    scored = [row for row in report.steps if row.get("mi_estimate") is not None]
    if not scored:
        notes.append("The first-words figures are proxies; --model adds cross-scoring.")
        return notes
    last = scored[-1]
    notes.append(
        f"Cross-scoring: {counted(last['reasonings'], 'reasoning')} "
        f"under {counted(int(last['columns']), 'prompt')}, "
        f"{last['marginal']} marginal, {last['sampling']}, temperature {last['temperature']:g}, "
        f"upper bound log P = {last['mi_upper_bound']:.2f} nats."
    )
    notes.append("Small negative information is noise around zero, not an error.")
    return notes


def as_json(report: Report) -> str:
    """Return the whole report as strict JSON; what is undefined is null."""
    return json.dumps(_finite(asdict(report)), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def as_csv(report: Report) -> str:
    """Return one line per step with every metric that any step has."""
    names = list(dict.fromkeys(name for row in report.steps for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(report.steps)
    return text.getvalue()
