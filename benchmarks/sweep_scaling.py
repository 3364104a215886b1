"""What a second worker is worth: the same sweep of equal cells with one worker and with two.

Every worker has one thread. Cells differ in nothing but their seed. Wall time is measured from the
call to the last finished cell, the start of the workers included. Prints the ratio of two workers'
time to one's last; at most 0.65 is expected on two idle cores.

    python benchmarks/sweep_scaling.py --cells 8 --steps 10
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from ragen2_cli.sweeps.engine import run_sweep
from ragen2_cli.sweeps.folder import SweepDirectory
from ragen2_cli.sweeps.plan import plan
from ragen2_cli.sweeps.progress import SilentSweep


def measure(folder: Path, cells: int, steps: int, workers: int) -> float:
    """Return the seconds that a sweep takes."""
    flags = {
        "steps": steps,
        "filter.strategy": "none",
        "evaluation.episodes": 0,
        "diagnostics.every": 0,
    }
    sweep = SweepDirectory.create(folder, plan({}, [], str(cells), flags=flags))
    start = time.perf_counter()
    outcome = run_sweep(sweep, workers=workers, retry=False, progress=SilentSweep())
    seconds = time.perf_counter() - start
    sweep.close()
    if outcome.done != cells:
        reasons = {cell.reason for cell in sweep.cells.values() if cell.reason}
        raise SystemExit(f"{outcome.failed} of {cells} cells failed: {reasons}")
    return seconds


def main() -> None:
    """Measure both, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for workers in (1, 2):
            out = Path(folder) / f"workers-{workers}"
            seconds[workers] = measure(out, options.cells, options.steps, workers)
    ratio = seconds[2] / seconds[1]
    if options.json:
        print(json.dumps({"one": seconds[1], "two": seconds[2], "ratio": ratio, "expected": 0.65}))
        return
    print(f"{options.cells} cells: one worker {seconds[1]:.0f} s, two {seconds[2]:.0f} s")
    print(f"{ratio:.2f}")


if __name__ == "__main__":
    main()
