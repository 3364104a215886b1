"""Two processes train policy and critic as one would, wherever the kept groups are (case 43)."""

from pathlib import Path

import pytest
import torch

from launched import TORCHRUN, script

SCRIPT = Path(__file__).parent / "two_processes_ppo.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rewards", "critic"),
    # Over all rows the rewards 9, 0, 0, 0 and 0, 1, 1, 0 have a standard deviation of 3.1, over
    # those of one process 4.5 or 0.6.
    [("1000/0000", "critic"), ("1000/0110", "critic"), ("9000/0110", "none")],
    ids=["one-sided", "both", "no-critic"],
)
def test_two_processes_end_with_the_weights_of_one(
    rewards: str, critic: str, tmp_path: Path
) -> None:
    script(SCRIPT, rewards, tmp_path, critic, launcher=TORCHRUN)
    script(SCRIPT, rewards, tmp_path, critic)
    alone, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    for part in ("policy", "critic"):
        assert torch.equal(first[part], second[part])
        torch.testing.assert_close(first[part], alone[part], rtol=0, atol=1e-5)
    assert first["logged"] == pytest.approx(alone["logged"], rel=1e-5)
