"""Two processes train as one would, wherever the kept groups are (case 43)."""

from pathlib import Path

import pytest
import torch

from launched import TORCHRUN, script

SCRIPT = Path(__file__).parent / "two_processes.py"
ONE_SIDED = "1000/0000"
BOTH = "1000/0110"
NONE = "0000/1111"
UNEQUAL = "100n/0000"  # three rows with a score: two for one process, one for the other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rewards", "loss_type"),
    [(ONE_SIDED, "grpo"), (BOTH, "bnpo"), (NONE, "dapo"), (UNEQUAL, "grpo")],
)
def test_two_processes_end_with_the_weights_of_one(tmp_path, rewards, loss_type):
    script(SCRIPT, rewards, loss_type, tmp_path, launcher=TORCHRUN)
    script(SCRIPT, rewards, loss_type, tmp_path)
    alone, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=0, atol=1e-6)
    assert torch.equal(first["head"], second["head"])
    torch.testing.assert_close(first["head"], alone["head"], rtol=0, atol=1e-6)
    for other in (first, second):
        assert other["accuracy"] == alone["accuracy"]
        assert other["separation"] == pytest.approx(alone["separation"], abs=1e-5, nan_ok=True)
        for key in ("kept", "tokens", "empty_steps"):
            assert other[key] == alone[key]
    assert alone["empty_steps"] == (rewards == NONE)
