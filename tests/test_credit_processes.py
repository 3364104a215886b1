"""Two processes train policy and critic as one would, wherever the kept groups are (case 43)."""

from pathlib import Path

import pytest
import torch

from launched import TORCHRUN, script

SCRIPT = Path(__file__).parent / "two_processes_ppo.py"


@pytest.mark.slow
@pytest.mark.parametrize("rewards", ["1000/0000", "1000/0110"], ids=["one-sided", "both"])
def test_two_processes_end_with_the_weights_of_one(rewards: str, tmp_path: Path) -> None:
    script(SCRIPT, rewards, tmp_path, launcher=TORCHRUN)
    script(SCRIPT, rewards, tmp_path)
    alone, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    for part in ("policy", "critic"):
        assert torch.equal(first[part], second[part])
        torch.testing.assert_close(first[part], alone[part], rtol=0, atol=1e-5)
    assert first["logged"] == pytest.approx(alone["logged"], rel=1e-5)
