"""The embedded policy takes part in a smoke run of every registered environment."""

import json

import pytest
from typer.testing import CliRunner

from ragen2_cli.app import app
from ragen2_cli.envs import REGISTRY

TINY = "--steps 1 --prompts 2 --group-size 2 --eval-episodes 2 --diagnose-every 0 --quiet"


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
def test_one_step_of_training(name, tmp_path):
    out = tmp_path / "run"
    result = CliRunner().invoke(app, ["train", "--env", name, *TINY.split(), "--out", str(out)])
    assert result.exit_code == 0, result.output
    config = json.loads((out / "config.json").read_text())
    assert name in json.dumps(config)
    (line,) = (out / "metrics.jsonl").read_text().splitlines()
    step = json.loads(line)
    assert (step["step"], step["groups"]) == (1, 2)
    assert (out / "summary.json").exists()
