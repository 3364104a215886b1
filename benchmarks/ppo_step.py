"""A step of PPO with a critic over a step of GRPO, on the same rollouts: time and peak memory.

Both arms are runs of the embedded policy with the default filter, in processes of their own, in
turn. The learning rate is next to nothing, so that both meet the same boards and sample the same
tokens in every step. Times are CPU seconds of one thread for a whole step (rollouts, critic,
update), the fastest of all rounds per step, so that what else runs on the machine does not count.
Prints the ratio of times last; at most 1.5 is expected, and at most 1.3 for memory.

    python benchmarks/ppo_step.py --json
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHILD = """
import json, resource, sys, time
time.perf_counter = time.process_time
from pathlib import Path
from ragen2_cli.config import load_config
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training.run import start
algorithm, steps, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
flags = {
    "algorithm.name": algorithm, "steps": steps, "optimizer.lr": 1e-12,
    "optimizer.schedule": "constant", "evaluation.episodes": 0, "diagnostics.every": 0,
}
start(load_config(flags=flags), out, quiet=True)
rows = RunDirectory.open(out).read_steps()
print(json.dumps({
    "seconds": [row.step_seconds for row in rows],
    "tokens": [row.tokens for row in rows],
    "kept": [row.kept_groups for row in rows],
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""


def measure(algorithm: str, steps: int) -> dict[str, Any]:
    """Run one arm once in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, algorithm, str(steps), str(Path(folder) / "run")],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure both arms in turn and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5, help="the first one warms up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    rounds = [
        {name: measure(name, options.steps) for name in ("grpo", "ppo")}
        for _ in range(options.rounds)
    ]
    first = rounds[0]
    for key in ("tokens", "kept"):
        if first["grpo"][key] != first["ppo"][key]:
            sys.exit(f"the arms did not meet the same rollouts: {key} differ")
    seconds, memory = {}, {}
    for name in ("grpo", "ppo"):
        steps = zip(*(one[name]["seconds"][1:] for one in rounds), strict=True)
        seconds[name] = sum(min(step) for step in steps) / (options.steps - 1)
        memory[name] = max(one[name]["megabytes"] for one in rounds)
    result = {
        "grpo_seconds": seconds["grpo"],
        "ppo_seconds": seconds["ppo"],
        "grpo_megabytes": memory["grpo"],
        "ppo_megabytes": memory["ppo"],
        "memory_ratio": memory["ppo"] / memory["grpo"],
        "ratio": seconds["ppo"] / seconds["grpo"],
    }
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"a step: GRPO {seconds['grpo']:.2f} s, PPO {seconds['ppo']:.2f} s; peak memory"
        f" {memory['grpo']:.0f} and {memory['ppo']:.0f} MB, {result['memory_ratio']:.2f} x"
    )
    print(f"{result['ratio']:.2f}")


if __name__ == "__main__":
    main()
