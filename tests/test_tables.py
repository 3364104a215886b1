"""Runs and sweeps as pandas tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from log_helpers import log, step, write, write_sweep
from ragen2_cli import run_table, step_table
from ragen2_cli.errors import UserError
from ragen2_cli.records import RunLog


def made(name: str, arm: str, seed: int, successes: int) -> RunLog:
    record = log(name, labels={"filter.strategy": arm}, seed=seed, successes=(10, successes))
    return replace(record, steps=(step(1, extra={"clip": 0.5}), step(2)))


def test_one_row_per_run_with_labels_and_success(tmp_path: Path) -> None:
    write_sweep(tmp_path / "s", [made("a", "top-p", 0, 40), made("b", "none", 0, 30)])
    table = run_table(tmp_path / "s")
    assert table["run"].tolist() == ["a", "b"]
    assert table["filter.strategy"].tolist() == ["top-p", "none"]
    assert table["success, final (share)"].tolist() == [0.4, 0.3]
    assert table["mi_estimate (nats)"].isna().all()
    means = table.pivot_table("success, final (share)", "seed", "filter.strategy")
    assert means.loc[0].to_dict() == {"none": 0.3, "top-p": 0.4}


def test_one_row_per_step_with_what_trl_logs_besides(tmp_path: Path) -> None:
    write_sweep(tmp_path / "s", [made("a", "top-p", 0, 40), made("b", "none", 3, 30)])
    table = step_table(str(tmp_path / "s"))
    assert list(zip(table["run"], table["seed"], table["step"], strict=True)) == [
        ("a", 0, 1),
        ("a", 0, 2),
        ("b", 3, 1),
        ("b", 3, 2),
    ]
    assert table["kept_groups"].tolist() == [5, 5, 5, 5]
    assert table["clip"].isna().tolist() == [False, True, False, True]


def test_what_is_no_run_is_one_line_and_an_unfinished_sweep_warns(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing"):
        run_table(tmp_path / "nothing")
    sweep = tmp_path / "s"
    write_sweep(sweep, [made("a", "top-p", 0, 40), made("b", "none", 0, 30)])
    (sweep / "runs" / "b" / "summary.json").unlink()
    with pytest.warns(UserWarning, match="left out: 1 of 2 cells"):
        assert run_table(sweep)["run"].tolist() == ["a"]
    write(tmp_path / "alone", made("alone", "none", 0, 5))
    assert len(step_table(tmp_path / "alone")) == 2
