"""What SEAL costs: time of a step, time of an update and peak memory, with it over without it.

Short runs of the default settings in turn, in this process; a coefficient of 1e-12 leaves the
policy where it is, so both arms do the same work. A step's time is its fastest over the rounds:
what others do on the machine only adds to it. Peak memory is that of a process of its own per arm.
Also times the text patterns of `ragen2 analyze entropy` on 100,000 episodes of three turns. Prints
the ratio of step times last.

    python benchmarks/seal.py --json
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ARMS = {"without": 0.0, "with": 1e-12}
EPISODES = 100_000


def train(folder: Path, coefficient: float, steps: int) -> list[tuple[float, float]]:
    """Train; return seconds of the step and of its update, step by step."""
    from ragen2_cli.config import load_config
    from ragen2_cli.runs import RunDirectory
    from ragen2_cli.training.run import start

    flags = {
        "steps": steps,
        "seal.coefficient": coefficient,
        "evaluation.episodes": 0,
        "diagnostics.every": 0,
        "filter.strategy": "none",
        "checkpoints.every": steps,
    }
    start(load_config(flags=flags), folder, force=True, quiet=True)
    rows = RunDirectory.open(folder).read_steps()
    return [(row.step_seconds, row.update_seconds) for row in rows]


def measure(steps: int, rounds: int) -> dict[str, list[float]]:
    """Return the summed fastest step and update seconds of each arm."""
    seen: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "warm", 0.0, 2)
        for _ in range(rounds):
            for name, coefficient in ARMS.items():
                seen[name].append(train(Path(folder) / name, coefficient, steps))
    return {
        name: [
            sum(min(run[step][part] for run in runs) for step in range(steps)) for part in (0, 1)
        ]
        for name, runs in seen.items()
    }


def peak_memory(name: str, steps: int) -> float:
    """Return the peak of a process that trains one arm, in MiB."""
    command = [sys.executable, __file__, "--memory-of", name, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return float(done.stdout.split()[-1])


def pattern_seconds() -> float:
    """Return the CPU seconds that the pattern rates of the episodes take."""
    from ragen2_cli.core.courses import PatternRates, SpokenTurn

    draw = random.Random(0)
    spoken = (
        "the goal lies two steps to right of me and there is a hole below so I must first go down"
        " then around it Left Right 3 7 board wall box target push because next move safe path"
    )
    words = spoken.split()
    texts = [
        ". ".join(" ".join(draw.choices(words, k=12)) for _ in range(5)) + "." for _ in range(3000)
    ]
    board = "The board is 4 by 4.\nSFFF\nFHFH\nFFFH\nHFFG"
    rates = PatternRates()
    start = time.process_time()
    for index in range(EPISODES):
        turns = (texts[(3 * index + turn) % len(texts)] for turn in range(3))
        rates.add([SpokenTurn(board, text, False) for text in turns])
    return time.process_time() - start


def main() -> None:
    """Measure both arms side by side and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--memory-of", choices=list(ARMS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder) / "run", ARMS[options.memory_of], options.steps)
        status = Path("/proc/self/status").read_text(encoding="ascii")
        (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        print(int(peak) / 1024)
        return
    memory = {name: peak_memory(name, options.steps) for name in ARMS}
    seconds = measure(options.steps, options.rounds)
    result = {
        "step_seconds": {name: values[0] / options.steps for name, values in seconds.items()},
        "update_seconds": {name: values[1] / options.steps for name, values in seconds.items()},
        "peak_mib": memory,
        "update_ratio": seconds["with"][1] / seconds["without"][1],
        "memory_ratio": memory["with"] / memory["without"],
        "pattern_seconds": pattern_seconds(),
        "ratio": seconds["with"][0] / seconds["without"][0],
    }
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"update {result['update_ratio']:.3f}, peak memory {result['memory_ratio']:.3f}"
        f" ({memory['without']:.0f} MiB without); patterns of {EPISODES:,} episodes of three turns"
        f" in {result['pattern_seconds']:.0f} s; step, at most 1.08 wanted:"
    )
    print(f"{result['ratio']:.3f}")


if __name__ == "__main__":
    main()
