"""A long default run: resident memory and step time per window of 50 steps.

Starts ``ragen2 train`` as a process of its own and watches it from outside; what it saw goes into
``soak.jsonl`` beside the run. Called again with more steps it resumes the run. Prints the most
memory seen in the last window over the most in the first, last; below 1.05 is expected over 500
steps. The most, because a process that has just started has not yet met its largest batches.

    python benchmarks/soak.py --out runs/soak --json
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ragen2_cli.runs import RunDirectory


def resident(process: int) -> float:
    """Return the resident memory of a process in MB; 0 when it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return 0.0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    return int(found[0]) / 1024 if found else 0.0


def command(out: Path, steps: int, episodes: int) -> list[str]:
    """Return the command that trains up to ``steps``."""
    words = [sys.executable, "-m", "ragen2_cli", "train", "--out", str(out), "--quiet"]
    rest = ["--resume"] if out.exists() else ["--eval-episodes", str(episodes)]
    return [*words, "--steps", str(steps), *rest]


def watch(out: Path, steps: int, window: int, episodes: int) -> list[dict[str, Any]]:
    """Train, and note memory (the most and the median of a window) and step times per window."""
    done = len(RunDirectory.open(out).read_steps()) if out.exists() else 0
    process = subprocess.Popen(command(out, steps, episodes))
    rows: list[dict[str, Any]] = []
    samples: list[float] = []
    edge = done + window
    while True:
        running = process.poll() is None
        seen = RunDirectory.open(out).read_steps() if (out / "config.json").exists() else []
        if running and len(seen) > done:
            samples.append(resident(process.pid))
        times = [row.step_seconds for row in seen[edge - window : edge]]
        # What follows the last step (its evaluation) belongs to no window.
        if times and samples and (len(seen) >= edge or not running):
            rows.append(
                {
                    "process": process.pid,
                    "step": seen[-1].step,
                    "resident_mb": max(samples),
                    "median_mb": statistics.median(samples),
                    "step_seconds": statistics.median(times),
                }
            )
            samples, edge = [], edge + window
        if not running:
            break
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit(process.returncode)
    return rows


def main() -> None:
    """Watch, print a table and the growth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--window", type=int, default=50)
    parser.add_argument("--eval-episodes", type=int, default=512)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    rows = watch(options.out, options.steps, options.window, options.eval_episodes)
    log = options.out.with_name("soak.jsonl")
    with log.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    first, last = rows[0]["resident_mb"], rows[-1]["resident_mb"]
    if options.json:
        print(json.dumps({"rows": rows, "growth": last / first, "expected": 1.05}))
        return
    for row in rows:
        print(
            "step {step}: at most {resident_mb:.0f} MB, median {median_mb:.0f} MB, "
            "{step_seconds:.2f} s a step".format(**row)
        )
    print(f"{last / first:.3f}")


if __name__ == "__main__":
    main()
