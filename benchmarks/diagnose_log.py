"""``ragen2 diagnose`` on a generated log of 200,000 episodes: seconds and peak memory.

    python benchmarks/diagnose_log.py [--rows 200000] [--rows-per-step 128]

The file is a TRL completions table as parquet: 16 prompts x 8 rollouts a step, reasoning of 30 to
90 words that depends on the prompt less and less.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP = 8


def write(path: Path, rows: int, per_step: int) -> None:
    """Write the log, one row group per step."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(400)])
    steps = rows // per_step
    writer = None
    for step in range(1, steps + 1):
        prompts = np.repeat(rng.integers(0, 100_000, per_step // GROUP), GROUP)
        shared = 1 - step / steps
        completions = []
        for prompt in prompts:
            length = rng.integers(30, 90)
            own = (prompt * 31 + np.arange(length)) % 400
            free = rng.integers(0, 400, length)
            text = " ".join(words[np.where(rng.random(length) < shared, own, free)])
            completions.append(f"<think>{text}</think><answer>Up</answer>")
        table = pa.table(
            {
                "step": [step] * per_step,
                "prompt": [f"Board {prompt}: find the way." for prompt in prompts],
                "completion": completions,
                "success_reward": rng.integers(0, 2, per_step).astype(float),
                "advantage": rng.normal(size=per_step),
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def main() -> None:
    """Generate, diagnose in a process of its own, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rows-per-step", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "completions.parquet"
        write(path, options.rows, options.rows_per_step)
        size = path.stat().st_size / 1e6
        start = time.perf_counter()
        command = [sys.executable, "-m", "ragen2_cli", "diagnose", str(path), "--json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{options.rows:,} episodes ({size:.0f} MB): {wall:.1f} s, "
            f"{used.ru_utime + used.ru_stime:.1f} processor seconds, "
            f"peak {used.ru_maxrss / 1024:.0f} MB"
        )


if __name__ == "__main__":
    main()
