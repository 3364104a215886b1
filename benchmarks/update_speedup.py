"""How much faster the update is than plain TRL's, on the same batch and without a filter.

Length-sorted micro-batches, trimmed padding and log-probabilities of completion tokens only, with
the same gradient. Prints the ratio last; at least 1.4 is expected on a CPU.

    python benchmarks/update_speedup.py --json
"""

import argparse
import json
import tempfile
from pathlib import Path

from update_batch import Arm, alternate

GLOBAL = ["dapo", "cispo", "vespo", "grpo"]
"""Loss types whose normalizer is global, and grpo, whose rows all weigh the same in equal parts."""


def measure(loss_type: str, rounds: int, beta: float) -> dict[str, float | str]:
    """Time one loss type side by side."""
    from trl import GRPOTrainer

    from ragen2_cli import SnrGRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        plain, ours = (
            Arm(cls, Path(folder), loss_type=loss_type, beta=beta)
            for cls in (GRPOTrainer, SnrGRPOTrainer)
        )
        alternate([plain, ours], rounds)
    expected, actual = plain.gradient.vector, ours.gradient.vector
    return {
        "loss_type": loss_type,
        "plain_seconds": plain.best(),
        "ours_seconds": ours.best(),
        "speedup": plain.best() / ours.best(),
        "gradient_difference": float((expected - actual).norm() / expected.norm()),
    }


def main() -> None:
    """Measure, print a table and the smallest ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loss-types", nargs="+", default=["dapo", "grpo"], choices=GLOBAL)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    rows = [measure(name, options.rounds, options.beta) for name in options.loss_types]
    worst = min(float(row["speedup"]) for row in rows)
    if options.json:
        print(json.dumps({"rows": rows, "ratio": worst, "expected": 1.4}))
        return
    for row in rows:
        print(
            "{loss_type}: plain TRL {plain_seconds:.2f} s, ours {ours_seconds:.2f} s, gradients"
            " differ by {gradient_difference:.1e} of their norm".format(**row)
        )
    print(f"{worst:.2f}")


if __name__ == "__main__":
    main()
