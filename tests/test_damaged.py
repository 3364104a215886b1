"""Damaged runs, adapters and models on the whole command: one line, exit 2, nothing written."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_files import write as write_gguf
from ragen2_cli import app
from ragen2_cli.config import load_config
from ragen2_cli.runs import RunDirectory
from ragen2_cli.training.run import start

Command = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("damaged") / "run"
    flags = {
        "steps": 1,
        "rollout.prompts": 2,
        "rollout.group_size": 4,
        "evaluation.episodes": 0,
        "diagnostics.every": 0,
    }
    start(load_config(flags=flags), out, quiet=True)
    return out


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process; return its one line of complaint."""
    monkeypatch.setattr(app, "guard", lambda: None)  # the streams here are pytest's

    def call(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["ragen2", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            app.main()
        out, err = capfd.readouterr()
        assert stop.value.code == 2, err
        assert out == ""
        assert err.startswith("error: ")
        assert len(err.splitlines()) == 1, err
        return err

    return call


def edited(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return edit


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda _: "", "not valid JSON"),
        (lambda _: "[1]", "expected a JSON object, found list"),
        (lambda _: "{}", "no valid 'schema_version'"),
        (lambda _: '{"schema_version": 1}', "no 'config' table"),
        (edited('"steps": 1,', '"steps": "x",'), "steps: Input should be a valid integer"),
        (edited('"steps": 1,', '"stepz": 1,'), "stepz: unknown config key"),
        (edited('"strategy": "top-p"', '"strategy": "top"'), "filter.strategy"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "diagnose --checkpoint 0", "train --resume --out"])
def test_a_damaged_config_is_named(
    copy: Path, refused: Command, damage: Callable[[str], str], says: str, command: str
) -> None:
    file = copy / "config.json"
    file.write_text(damage(file.read_text()))
    said = refused(*command.split(), copy)
    assert f"{file}: " in said
    assert says in said


def test_a_run_without_its_config_or_metrics_is_no_model(copy: Path, refused: Command) -> None:
    (copy / "metrics.jsonl").unlink()
    (copy / "config.json").write_text("{")
    assert "config.json: not valid JSON" in refused("evaluate", copy)
    (copy / "config.json").unlink()
    assert "config.json is missing" in refused("evaluate", copy)


def test_a_damaged_config_does_not_make_the_command_wait(copy: Path) -> None:
    # Without HF_HUB_OFFLINE, in a process of its own: no hub is asked about a damaged run.
    (copy / "config.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-m", "ragen2_cli", "evaluate", str(copy)],
        capture_output=True,
        text=True,
        timeout=120,
        env={key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"},
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


ADAPTER = "adapter/adapter_model.safetensors"


@pytest.mark.parametrize("size", [0, 5, 1000, -1])
@pytest.mark.parametrize(
    "command",
    [
        "evaluate RUN --quiet",
        "diagnose RUN --checkpoint 0 --quiet",
        "analyze gradients RUN --groups 2",
        "models export RUN --out OUT",
        "train --adapter RUN/adapter --steps 1 --quiet --out OUT",
    ],
)
def test_a_truncated_adapter_is_refused(
    copy: Path, refused: Command, size: int, command: str
) -> None:
    file = copy / ADAPTER
    file.write_bytes(file.read_bytes()[:size])
    out = copy.parent / "out"
    words = [word.replace("RUN", str(copy)).replace("OUT", str(out)) for word in command.split()]
    assert f"--adapter {copy}/adapter: does not load onto this model" in refused(*words)
    assert not out.exists()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"peft_type": "FOO"}'])
def test_a_damaged_adapter_config_is_refused(copy: Path, refused: Command, content: str) -> None:
    (copy / "adapter" / "adapter_config.json").write_text(content)
    assert "does not load onto this model" in refused("evaluate", copy, "--quiet")


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        ({"template": False}, "no chat template"),
        ({"pad": False, "end": False}, "no pad token and no end-of-text token"),
    ],
)
def test_an_incomplete_gguf_is_refused(
    tmp_path: Path, refused: Command, lacking: dict[str, bool], says: str
) -> None:
    pytest.importorskip("gguf")
    file = write_gguf(tmp_path / "policy.gguf", **lacking)
    out = tmp_path / "out"
    said = refused("train", "--model", file, "--steps", "1", "--quiet", "--out", out)
    assert f"--model {file}: " in said
    assert says in said
    assert not out.exists()


def test_a_gguf_is_no_reference_of_a_run_that_trains_every_weight(
    tmp_path: Path, refused: Command
) -> None:
    pytest.importorskip("gguf")
    file = write_gguf(tmp_path / "policy.gguf")
    words = ["train", "--model", file, "--full", "--kl", "0.01", "--out", tmp_path / "out"]
    said = refused(*words)
    assert f"--model {file}: a GGUF file cannot be the KL term's reference" in said
    assert "--kl 0" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.999])
def test_a_gguf_that_is_cut_is_refused(tmp_path: Path, refused: Command, share: float) -> None:
    pytest.importorskip("gguf")
    file = write_gguf(tmp_path / "policy.gguf")
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    said = refused("train", "--model", file, "--quiet", "--out", tmp_path / "out")
    assert f"--model {file}: cannot read this GGUF file" in said
    assert not (tmp_path / "out").exists()


def test_a_gguf_with_a_vocabulary_that_does_not_fit_is_refused(
    tmp_path: Path, refused: Command
) -> None:
    pytest.importorskip("gguf")
    file = write_gguf(tmp_path / "policy.gguf")
    content = file.read_bytes()
    assert content.count(b"a b") == 1  # the merge, whose result is a token
    file.write_bytes(content.replace(b"a b", b"a $"))
    said = refused("evaluate", file, "--quiet")
    assert f"--model {file}: cannot read this GGUF file" in said


def test_a_mistyped_variant_is_named(tmp_path: Path, refused: Command) -> None:
    said = refused("models", "build", "--variant", "gird", "--out", tmp_path / "policy")
    assert said == "error: --variant gird: use grid or words (did you mean 'grid'?)\n"


def test_a_damaged_tokenizer_is_refused(tmp_path: Path, refused: Command) -> None:
    from ragen2_cli.training.models import embedded_folder

    shutil.copytree(embedded_folder(), tmp_path / "policy")
    (tmp_path / "policy" / "tokenizer.json").write_text('{"version": "1.0", "model": {}}')
    said = refused("evaluate", tmp_path / "policy", "--quiet")
    assert "cannot load its tokenizer" in said


@pytest.mark.parametrize(
    "arguments", [["--resume", "--steps", "2"], ["--force", "--steps", "1"]], ids=" ".join
)
def test_a_second_writer_is_refused_by_name(
    copy: Path, refused: Command, arguments: list[str]
) -> None:
    writer = RunDirectory.create(copy, {}, resume=True)
    before = sorted(copy.rglob("*"))
    try:
        said = refused("train", "--out", copy, "--quiet", *arguments)
    finally:
        writer.close()
    assert f"another process is writing to {copy}; wait for it or stop it first" in said
    assert sorted(copy.rglob("*")) == before
