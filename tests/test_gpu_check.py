"""The check of a GPU machine: refuses in one line without one; its small mode runs on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_check.py"


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_exits_with_2() -> None:
    done = check()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu_check: no CUDA GPU on this machine; --tiny tries it on the CPU\n"


@pytest.mark.slow
def test_the_tiny_mode_trains_every_arm_and_compares(tmp_path: Path) -> None:
    done = check("--tiny", "--steps", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    filtered, every = found["arms"]
    assert (filtered["filter"], every["filter"]) == ("top-p", "none")
    assert every["kept"] == 1.0
    assert 0 < filtered["kept"] < 1  # the policy's groups differ, so there is something to filter
    assert all(arm["tokens_per_second"] > 0 and len(arm["losses"]) == 2 for arm in found["arms"])
    ratio = filtered["update_seconds"] / every["update_seconds"]
    assert found["transformers_update_ratio"] == pytest.approx(ratio)
