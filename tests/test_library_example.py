"""The library's example in the docs runs as it stands."""

import re
from pathlib import Path

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
    assert "of 2 groups were trained on first" in capsys.readouterr().out
