"""What spreading the kept rows over processes saves when one process has all of them.

Two processes on the CPU, 64 rollouts each; the filter keeps groups of the first process only.
Prints the update time with spreading over the time without, last; at most 0.75 is expected. The
time is the CPU time of the busier process, which is what the other one waits for.

    python benchmarks/ddp_filter.py --json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROCESSES = 2


def launch() -> None:
    """Start this script once per process."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={PROCESSES}"]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, __file__, *sys.argv[1:]], env=environment, check=False
    )
    sys.exit(done.returncode)


def measure(rounds: int, beta: float) -> dict[str, float]:
    """Time both ways in turn; called in every process."""
    from accelerate.utils import gather_object
    from update_batch import Arm, alternate

    from ragen2_cli import GroupFilter, SnrGRPOTrainer

    class Uneven(SnrGRPOTrainer):
        rebalances = False

    arms = []
    with tempfile.TemporaryDirectory() as folder:
        for cls in (Uneven, SnrGRPOTrainer):
            keep = GroupFilter("top-p", 0.9)
            arm = Arm(cls, Path(folder), loss_type="dapo", beta=beta, group_filter=keep)
            if os.environ["RANK"] != "0":
                scores = arm.trainer.rollout_func.rows["score"]
                arm.trainer.rollout_func.rows["score"] = [1.0] * len(scores)
            arms.append(arm)
        alternate(arms, rounds)
    seconds = []
    for arm in arms:
        by_process = gather_object([arm.seconds])
        seconds.append(min(max(step) for step in zip(*by_process, strict=True)))
    first, second = (arm.gradient.vector for arm in arms)
    return {
        "kept_groups": len(arms[0].trainer.last_selection.kept),
        "uneven_seconds": seconds[0],
        "spread_seconds": seconds[1],
        "gradient_difference": float((first - second).norm() / first.norm()),
        "ratio": seconds[1] / seconds[0],
        "expected": 0.75,
    }


def main() -> None:
    """Measure, print a line and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        launch()
    row = measure(options.rounds, options.beta)
    if os.environ["RANK"] != "0":
        return
    if options.json:
        print(json.dumps(row))
        return
    print(
        "all {kept_groups} kept groups on one of two processes: busier process {uneven_seconds:.2f}"
        " s, spread {spread_seconds:.2f} s; gradients differ by {gradient_difference:.1e} of their"
        " norm".format(**row)
    )
    print(f"{row['ratio']:.2f}")


if __name__ == "__main__":
    main()
