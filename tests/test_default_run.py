"""What the default run promises: it learns, and greedy play does not suffer."""

from pathlib import Path

import pytest

from ragen2_cli.config import load_config
from ragen2_cli.training.run import start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_default_run_learns(tmp_path: Path) -> None:
    # Everything as `ragen2 train` has it, but 256 held-out boards in place of 512: intervals of
    # at most +-6 points (1.96 sqrt(0.25 / 256)), so that a rise of 15 points keeps them apart.
    summary = start(load_config(flags={"evaluation.episodes": 256}), tmp_path / "run", quiet=True)
    before, after = summary["before"], summary["after"]
    assert summary["steps"] == 100
    assert after["sampled"]["ci_low"] > before["sampled"]["ci_high"]
    assert after["sampled"]["success"] >= before["sampled"]["success"] + 0.15
    assert after["greedy"]["success"] >= before["greedy"]["success"] - 0.03
