"""Commands on a run of 10,000 prompts x 16 rollouts against one of a tenth: peak memory.

A step has 100 prompts. Each command reads in a process of its own. Prints the largest ratio of
peak memories last; what reads in constant memory is near 1.

    python benchmarks/load.py --json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ragen2_cli.config import load_config
from ragen2_cli.records import Episode, Step, Turn
from ragen2_cli.runs import RunDirectory

PER_STEP, GROUP = 100, 16


def episodes(step: int) -> Iterator[Episode]:
    """Generate one step: two turns of forty words, 160 tokens."""
    rng = np.random.default_rng(step)
    words = [f"word{index}" for index in range(400)]
    for group in range(PER_STEP):
        board = "\n".join("".join(rng.choice(list("_OPG"), 8)) for _ in range(8))
        for rollout in range(GROUP):
            said = [" ".join(words[i] for i in rng.integers(0, 400, 40)) for _ in range(2)]
            turns = tuple(Turn(board, text, "Up", ("Up",), 0.0, 0.0, True, {}) for text in said)
            ids = tuple(rng.integers(3, 300, 160).tolist())
            won = bool(rng.integers(2))
            yield Episode(
                step=step, group=group, rollout=rollout, seed=group, prompt=board, turns=turns,
                episode_return=float(won), outcome=float(won), success=won,
                status="success" if won else "turn_cap", prompt_ids=ids[:60],
                completion_ids=ids, loss_mask=(1,) * 160, turn_spans=((0, 80), (80, 160)),
                advantage=0.0, kept=True,
            )  # fmt: skip


def generate(path: Path, prompts: int) -> int:
    """Write a run of so many prompts; returns its bytes."""
    run = RunDirectory.create(path, load_config().model_dump(mode="json"))
    for step in range(1, prompts // PER_STEP + 1):
        run.write_rollouts(step, episodes(step))
        numbers = {name: 1.0 for name in Step.__dataclass_fields__ if name != "extra"}
        counts = {"step": step, "groups": PER_STEP, "kept_groups": 60, "dead_groups": 10}
        run.append_step(replace(Step(**numbers), **counts, tokens=160 * PER_STEP * GROUP))
    run.close()
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def peak(arguments: list[str]) -> tuple[float, float]:
    """Run one command; return its peak memory in MB and its seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "ragen2_cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"ragen2 {' '.join(arguments)} failed")
    return used.ru_maxrss / 1024, time.perf_counter() - start


def main() -> None:
    """Generate, run every command on both, print a table and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sizes = [max(PER_STEP, options.prompts // 10), options.prompts]
        runs = [Path(folder) / str(size) for size in sizes]
        volume = [generate(run, size) for run, size in zip(runs, sizes, strict=True)]
        for name, arguments in {
            "show": ["show", "--limit", "5"],
            "diagnose": ["diagnose", "--json"],
            "plot curves": ["plot", "curves", "-o", f"{folder}/curves.png"],
            "plot filter": ["plot", "filter", "-o", f"{folder}/filter.png"],
        }.items():
            command, *rest = arguments
            where = [command, rest[0]] if command == "plot" else [command]
            others = rest[1:] if command == "plot" else rest
            few, many = (peak([*where, str(run), *others]) for run in runs)
            rows.append({"command": name, "few_mb": few[0], "many_mb": many[0], "many_s": many[1]})
    ratio = max(row["many_mb"] / row["few_mb"] for row in rows)
    if options.json:
        print(json.dumps({"rows": rows, "prompts": sizes, "bytes": volume, "ratio": ratio}))
        return
    print(f"{sizes[1] * GROUP:,} episodes ({volume[1] / 1e6:.0f} MB) against {sizes[0] * GROUP:,}")
    for row in rows:
        print("{command}: {few_mb:.0f} MB, {many_mb:.0f} MB, {many_s:.1f} s".format(**row))
    print(f"{ratio:.2f}")


if __name__ == "__main__":
    main()
