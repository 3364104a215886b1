"""What a run ends with: the content of ``summary.json``."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ragen2_cli.runs import RunDirectory


def summarize(run: RunDirectory, ends: Mapping[str, Any]) -> dict[str, Any]:
    """Sum up a run from its records and from what only its last session knows.

    Args:
        run: The run, with every step and evaluation written.
        ends: ``steps``, ``before``, ``after``, ``start_at_matched_entropy``, ``empty_steps``,
            ``stopped``, ``session_seconds`` (wall time of this process, from the first evaluation
            to the end) and ``session_from_step`` (where it began; 0 without ``--resume``).

    Returns:
        ``ends`` with what all sessions share: ``seconds`` are those of all steps and evaluations
        in the records, so neither loading nor work that a crash lost, and a resumed run counts the
        same as one in one go.
    """
    rows, evaluations = run.read_steps(), run.read_evaluations()
    groups = max(sum(row.groups for row in rows), 1)
    sampled = [row for row in evaluations if row.decoding == "sampled"]
    best = max(sampled, key=lambda row: row.success, default=None)
    seconds = sum(row.step_seconds for row in rows) + sum(row.seconds for row in evaluations)
    return {
        "run": str(run.path),
        "seconds": seconds,
        "tokens": sum(row.tokens for row in rows),
        "best": asdict(best) if best else None,
        "kept_ratio": sum(row.kept_groups for row in rows) / groups,
        "dead_ratio": sum(row.dead_groups for row in rows) / groups,
        "adapter": str(run.adapter),
        **ends,
    }
