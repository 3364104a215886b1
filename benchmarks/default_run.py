"""`ragen2 train` with its defaults: held-out success before and after, wall time, peak memory.

Each seed is one run of the command in a process of its own, one after the other. Expected of each:
sampled success rises by 15 points or more and the 95 % intervals are apart, greedy success falls
by 3 points at most, the whole command takes 5 minutes on two quiet cores at most, and its process
1.5 GB (10^9 bytes). Prints the worst of each over the seeds last.

    python benchmarks/default_run.py --seeds 0 1 2 --json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

POINTS, GREEDY_POINTS, SECONDS, GIGABYTES = 15.0, -3.0, 300.0, 1.5


def run(seed: int, extra: list[str]) -> dict[str, Any]:
    """Train once; return what the summary and the system say."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "run", Path(folder) / "log"
        command = [sys.executable, "-m", "ragen2_cli", "train", "--seed", str(seed), *extra]
        start = time.perf_counter()
        with log.open("w") as file:
            process = subprocess.Popen(
                [*command, "--out", str(out), "--quiet"], stdout=file, stderr=file
            )
            _, status, usage = os.wait4(process.pid, 0)  # of this process alone
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(log.read_text())
        summary = json.loads((out / "summary.json").read_text())
    before, after = summary["before"], summary["after"]
    sampled, greedy = (
        100 * (after[decoding]["success"] - before[decoding]["success"])
        for decoding in ("sampled", "greedy")
    )
    return {
        "seed": seed,
        "before": before["sampled"]["success"],
        "after": after["sampled"]["success"],
        "episodes": after["sampled"]["episodes"],
        "points": sampled,
        "apart": after["sampled"]["ci_low"] > before["sampled"]["ci_high"],
        "greedy_points": greedy,
        "seconds": seconds,
        "gigabytes": usage.ru_maxrss * 1024 / 1e9,
    }


def main() -> None:
    """Run all seeds and print the worst of each figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="another number, for a trial")
    parser.add_argument("--episodes", type=int, help="another number, for a trial")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    extra: list[str] = []
    for flag, value in (("--steps", options.steps), ("--eval-episodes", options.episodes)):
        extra += [] if value is None else [flag, str(value)]
    runs = [run(seed, extra) for seed in options.seeds]
    worst = {
        "points": min(one["points"] for one in runs),
        "apart": all(one["apart"] for one in runs),
        "greedy_points": min(one["greedy_points"] for one in runs),
        "seconds": max(one["seconds"] for one in runs),
        "gigabytes": max(one["gigabytes"] for one in runs),
    }
    if options.json:
        print(json.dumps({"runs": runs, **worst}))
        return
    for one in runs:
        print(
            f"seed {one['seed']}: {one['before']:.1%} to {one['after']:.1%} (n ="
            f" {one['episodes']}), greedy {one['greedy_points']:+.1f} points,"
            f" {one['seconds']:.0f} s, {one['gigabytes']:.2f} GB"
        )
    print(
        f"{worst['points']:+.1f} points (expected {POINTS:+g} or more), intervals"
        f" {'apart' if worst['apart'] else 'not apart'}; greedy {worst['greedy_points']:+.1f}"
        f" ({GREEDY_POINTS:+g} or more); {worst['seconds']:.0f} s (at most {SECONDS:g});"
        f" {worst['gigabytes']:.2f} GB (at most {GIGABYTES:g})"
    )


if __name__ == "__main__":
    main()
