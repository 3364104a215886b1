"""The rollout benchmark itself: at least 1.4 x, and the gain rises with the number of turns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "rollout_throughput.py"


@pytest.mark.slow
def test_cache_across_turns_pays_more_the_longer_the_episode():
    command = [sys.executable, str(SCRIPT), "--rounds", "2", "--groups", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["ratio"] == result["default"] >= 1.4
    assert result["2_turns"] < result["5_turns"] < result["10_turns"]
