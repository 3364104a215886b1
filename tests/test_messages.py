"""What the commands say: numbers that agree with their nouns, hints that fit, no jargon of ours."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from log_helpers import log, write
from ragen2_cli.commands.compare import compare
from ragen2_cli.commands.diagnosis import Scoring, _next_step, diagnose_path
from ragen2_cli.commands.tables import train_summary
from ragen2_cli.config.load import known_keys, parse_set
from ragen2_cli.core.regimes import Thresholds
from ragen2_cli.errors import counted
from ragen2_cli.logs import Choice
from ragen2_cli.sweeps.compare import differing_settings
from test_cli import COMMANDS, run

GRADIENTS = ["train", "--dry-run", "--gradient-analysis-every", "5"]


def test_counted() -> None:
    assert [counted(n, "run") for n in (0, 1, 2, 12_000)] == [
        "0 runs",
        "1 run",
        "2 runs",
        "12,000 runs",
    ]


def test_no_docstring_marks_reach_a_reader() -> None:
    shown = [run(*command, "--help").stdout for command in COMMANDS] + [run("envs", "list").stdout]
    for text in shown:
        assert "``" not in text
    assert max(map(len, shown[-1].splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plot", "foo"], "error: Invalid value for 'kind': 'foo' is not one of 'all', 'curves'"),
        (["analyze", "gradients", "--per", "x"], "Invalid value for '--per': 'x' is not one of"),
        (["train", "--set", "foo"], "'foo' is not section.key=value; sections: schema_version"),
        (["train", "--set", "filter.valu"], "(did you mean 'filter.value'?)"),
        (["train", "--set", "prompts=4"], "unknown config key (did you mean 'rollout.prompts'?)"),
        (["train", "--dry-run", "--model", "./none"], "--model ./none: no such folder or file"),
        (["train", "--dry-run", "--env", "sokobann"], "did you mean 'sokoban"),
        (["train", "--dry-run", "--kind", "slipp"], "env.kind"),
        (
            [*GRADIENTS, "--set", "algorithm.loss_type=cispo"],
            "--gradient-analysis-every: no analysis for the loss 'cispo'; use one of grpo, dapo",
        ),
        (
            [*GRADIENTS, "--set", "trl.top_entropy_quantile=0.5"],
            "--gradient-analysis-every: no analysis of a run with trl.top_entropy_quantile 0.5",
        ),
        ([*GRADIENTS, "--full", "--kl", "0.01"], "give --kl 0, train an adapter with --lora"),
        (
            ["train", "--dry-run", "--env", "countdown", "--stochasticity", "5", "--kind", "slip"],
            "countdown",
        ),
    ],
)
def test_wrong_use_names_what_there_is(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Value error" not in done.stderr


def test_known_keys_are_settable() -> None:
    assert {"seed", "filter.value", "rollout.prompts", "env.options"} <= set(known_keys())
    assert parse_set(" filter.value = 0.5") == {"filter": {"value": 0.5}}


def said_by_compare(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(compare)
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False).stdout


def test_compare_names_what_differs(tmp_path: Path) -> None:
    first = write(tmp_path / "a", log(config={"filter": {"strategy": "top-p"}}))
    other = write(
        tmp_path / "b", log(config={"filter": {"strategy": "none"}, "env": {"kind": "action"}})
    )
    text = said_by_compare(str(first.path), str(other.path))
    assert "\n1 pair of runs of equal seed\n" in text
    assert "A and B differ in env.kind (slip, action), filter.strategy (top-p, none)" in text
    same = said_by_compare(str(first.path), str(first.path))
    assert "A and B have the same settings" in same
    write(tmp_path / "c", log(seed=1))
    assert "of equal seed" not in said_by_compare(str(first.path), str(tmp_path / "c"))
    body = json.loads(said_by_compare(str(first.path), str(other.path), "--json"))
    assert body["settings"]["filter.strategy"] == ["top-p", "none"]


def test_settings_that_differ_within_an_arm_are_joined() -> None:
    # Two pairs: steps 5 against 6 and 5 against 7.
    def at(steps: int) -> Any:
        found = log()
        return replace(found, config=found.config | {"steps": steps})

    pairs = [(at(5), at(6)), (at(5), at(7))]
    assert differing_settings(pairs) == {"steps": ("5", "6|7")}


@pytest.mark.parametrize(
    ("finished", "said"),
    [(True, "ragen2 evaluate {path}  #"), (False, "ragen2 diagnose {path} --watch  #")],
)
def test_the_next_hint_fits_the_run(tmp_path: Path, finished: bool, said: str) -> None:
    from test_runs import an_episode

    def measured(step: int) -> dict[str, Any]:
        return {
            "step": step,
            "mi_estimate": 1.0,
            "scored_rows": 64,
            "retrieval_accuracy": 1.0,
            "retrieval_chance": 0.1,
            "conditional_entropy": 0.3,
            **dict.fromkeys(("mi_seq_estimate", "marginal_std", "marginal_std_seq"), 1.0),
        }

    record = log(diagnostics=tuple(measured(step) for step in (1, 2, 3)))
    made = write(tmp_path / "a run", replace(record, summary=record.summary if finished else None))
    for step in (1, 2, 3):
        made.write_rollouts(step, [an_episode(step, group, 0) for group in (0, 1)])
    report = diagnose_path(made.path, Choice(), Scoring(), Thresholds())
    assert report.verdict["regime"] == "diverse"
    assert report.verdict["next_step"].startswith(said.format(path=f"'{made.path}'"))


@pytest.mark.parametrize(("finished", "final"), [(True, 0), (False, "STEP")])
def test_an_unfinished_run_has_no_final_adapter_to_advise(
    tmp_path: Path, finished: bool, final: int | str
) -> None:
    record = log()
    made = write(tmp_path / "run", replace(record, summary=record.summary if finished else None))
    little = {"regime": "not enough data", "basis": "text", "measurements": 2}
    said = _next_step(little, made.path, own_run=True)
    assert said.startswith(f"ragen2 diagnose {made.path} --checkpoint {final}  #")
    said = _next_step({"regime": "compressed"}, made.path, own_run=True)
    step = "" if finished else " --checkpoint STEP"
    assert said.startswith(f"ragen2 evaluate {made.path}{step}  #")


def test_seconds_say_what_they_count_after_a_resume() -> None:
    summary = {
        "before": {},
        "after": {},
        "kept_ratio": 0.5,
        "dead_ratio": 0.5,
        "empty_steps": 0,
        "steps": 1,
        "seconds": 12.0,
        "tokens": 10,
        "run": "r",
        "session_seconds": 4.0,
        "session_from_step": 0,
    }
    assert "1 step in 12 s, 10 sampled" in train_summary(summary)
    later = train_summary(summary | {"steps": 3, "session_from_step": 2})
    assert (
        "3 steps in 12 s (steps and evaluations of all sessions; "
        "this session: 4 s since step 2), 10 sampled"
    ) in later


def test_an_interrupted_start_of_a_resume_says_how_to_go_on(tmp_path: Path) -> None:
    made = write(tmp_path / "run", replace(log(), summary=None))
    # Ctrl-C while the heavy imports run: before anything of training is loaded.
    code = (
        "import sys, types\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'ragen2_cli.training.run': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from ragen2_cli.app import main\n"
        f"sys.argv = ['ragen2', 'train', '--resume', '--out', {str(made.path)!r}]\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 130
    said = (
        "interrupted: before the first checkpoint; start again with\n  ragen2 train --resume --out"
    )
    assert f"{said} {made.path}\n" in done.stderr
