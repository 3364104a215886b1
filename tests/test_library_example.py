"""The library's example in the docs runs as it stands."""

import re
from pathlib import Path

from ragen2_cli.core.alarm import WARMUP
from tiny_trl import saved_model

DOCUMENT = Path(__file__).parents[1] / "docs" / "library_example.md"


def test_the_example_runs_as_written(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    saved_model(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    exec(compile(example, str(DOCUMENT), "exec"), names)
    trainer = names["trainer"]
    assert trainer.state.global_step == 3
    assert len(trainer.last_selection.dead_P) == 2
    assert "loss" in trainer.state.log_history[0]  # a row of a step, not the summary at the end
    kept, said = capsys.readouterr().out.splitlines()[-1].split(" ", 1)
    assert float(kept) in (0, 1, 2)
    assert said == "of 2 groups were trained on first"


def test_entropy_is_logged_often_enough_for_the_alarm_of_the_monitors_example():
    # 64 prompts of 8 rollouts in batches of 16 rows: 2 prompts a step, 32 steps an epoch, 3 epochs.
    text = (DOCUMENT.parent / "collapse_monitor.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (every,) = re.findall(r"logging_steps=(\d+)", example)
    assert 96 / int(every) >= WARMUP
