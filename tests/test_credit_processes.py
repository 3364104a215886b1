"""Two processes train policy and critic as one would, wherever the kept groups are (case 43)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "two_processes_ppo.py"


def run(command: list[str], rewards: str, folder: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *command, str(SCRIPT), rewards, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("rewards", ["1000/0000", "1000/0110"], ids=["one-sided", "both"])
def test_two_processes_end_with_the_weights_of_one(rewards: str, tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    run(launcher, rewards, tmp_path)
    run([], rewards, tmp_path)
    alone, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    for part in ("policy", "critic"):
        assert torch.equal(first[part], second[part])
        torch.testing.assert_close(first[part], alone[part], rtol=0, atol=1e-5)
    assert first["logged"] == pytest.approx(alone["logged"], rel=1e-5)
