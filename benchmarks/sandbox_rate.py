"""Gradings per second in the sandbox beside bare bubblewrap starts, in the same minutes.

    python benchmarks/sandbox_rate.py

The bare start is ``bwrap --unshare-all`` with an interpreter that prints one number, one after the
other; the sandbox grades the same number of trivial programs with two workers. The last line is the
ratio of the medians.
"""

import statistics
import subprocess
import time

from ragen2_cli.sandbox import Pool, Program, detect
from ragen2_cli.sandbox.confine import python_files

COUNT, ROUNDS = 60, 5


def main() -> None:
    """Measure in turn and print both rates of every round."""
    bwrap = detect().bubblewrap
    if bwrap is None:
        raise SystemExit("bubblewrap is not installed")
    python = str(python_files()[0])
    command = [bwrap, "--ro-bind", "/", "/", "--unshare-all", python, "-c", "print(42)"]
    programs = [Program("print(int(input()) * 2)", ("21",))] * COUNT
    bare, ours = [], []
    with Pool() as pool:
        pool.map(programs[:4])
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for _ in range(COUNT):
                subprocess.run(command, capture_output=True, check=True)
            middle = time.perf_counter()
            pool.map(programs)
            bare.append(COUNT / (middle - began))
            ours.append(COUNT / (time.perf_counter() - middle))
            print(f"bare {bare[-1]:.1f}/s  sandbox {ours[-1]:.1f}/s")
    ratio = statistics.median(ours) / statistics.median(bare)
    print(f"sandbox / bare = {ratio:.2f} (medians {statistics.median(ours):.1f}/s)")


if __name__ == "__main__":
    main()
