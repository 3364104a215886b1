"""What the figures' log and README quote follows from the numbers beside the figures."""

import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

import pytest

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "figures"
T_975_4 = 2.7764451051977987  # Student's t, 4 degrees of freedom
SUCCESS, MI, ENTROPY = "success, final (share)", "mi_estimate (nats)", "sampling entropy (nats)"
CONDITIONAL = "conditional_entropy (nats)"


def runs() -> dict[tuple[str, str, str, str], dict[str, str]]:
    """The flagship's runs by silent share, regularizer, filter and seed."""
    with (FIGURES / "dead-share.runs.csv").open() as file:
        return {
            (r["env.dead_share"], r["regularizer"], r["filter.strategy"], r["seed"]): r
            for r in csv.DictReader(file)
        }


def values(share: str, regularizer: str, strategy: str, quantity: str) -> list[float]:
    found = runs()
    return [float(found[share, regularizer, strategy, str(k)][quantity]) for k in range(5)]


def effect(share: str, regularizer: str, quantity: str) -> list[float]:
    """Top-p minus no filter, seed by seed."""
    with_, without = (values(share, regularizer, s, quantity) for s in ("top-p", "none"))
    return [a - b for a, b in zip(with_, without, strict=True)]


def interval(differences: list[float]) -> tuple[float, float, float]:
    mean = fmean(differences)
    half = T_975_4 * stdev(differences) / math.sqrt(len(differences))
    return mean, mean - half, mean + half


def quoted(cell: str) -> tuple[float, ...]:
    return tuple(float(number) for number in re.findall(r"[-+]?\d+\.\d+", cell))


def rows(text: str, first: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if re.match(first, line):
            yield [cell.strip(" *") for cell in line.strip("|").split("|")]


def test_the_flagships_table_follows_from_its_runs() -> None:
    text = (FIGURES / "README.md").read_text()
    table = list(rows(text, r"\| (0|75) % \| (none|entropy|KL)"))
    assert len(table) == 8
    for percent, regularizer, none, top_p, points, information, conditional in table:
        share = {"0 %": "0", "75 %": "0.75"}[percent]
        for strategy, cell in (("none", none), ("top-p", top_p)):
            mean = 100 * fmean(values(share, regularizer, strategy, SUCCESS))
            assert mean == pytest.approx(quoted(cell)[0], abs=0.051)
        success = [100 * d for d in effect(share, regularizer, SUCCESS)]
        assert interval(success) == pytest.approx(quoted(points), abs=0.051)
        for cell, quantity in ((information, MI), (conditional, CONDITIONAL)):
            found = interval(effect(share, regularizer, quantity))
            assert found == pytest.approx(quoted(cell), abs=0.0051)


def test_the_readme_quotes_the_same_table() -> None:
    log = {
        row[1].removeprefix("entropy "): row[2:6]
        for row in rows((FIGURES / "README.md").read_text(), r"\| 75 % \| (none|entropy|KL)")
    }
    found = list(rows((ROOT / "README.md").read_text(), r"\| (none|entropy bonus|KL 0\.1) .*\["))
    assert len(found) == 4
    for regularizer, *cells in found:
        assert cells == log[regularizer.removeprefix("entropy bonus ")]


def test_what_the_filters_help_needs_follows_from_the_runs() -> None:
    text = (FIGURES / "README.md").read_text()
    (silence,) = rows(text, r"\| at 0\.05 without silent")
    (regularizer,) = rows(text, r"\| at 75 % without a reg")
    for row, less in ((silence, ("0", "entropy 0.05")), (regularizer, ("0.75", "none"))):
        for cell, quantity, factor in (
            (row[1], SUCCESS, 100),
            (row[2], MI, 1),
            (row[3], ENTROPY, 1),
        ):
            full, part = effect("0.75", "entropy 0.05", quantity), effect(*less, quantity)
            found = interval([factor * (a - b) for a, b in zip(full, part, strict=True)])
            assert found == pytest.approx(quoted(cell), abs=0.051 if factor == 100 else 0.0051)


def test_every_figure_has_its_numbers() -> None:
    figures = sorted(FIGURES.glob("*.png"))
    assert len(figures) > 10
    for figure in figures:
        assert figure.with_suffix(".csv").is_file(), figure.name
        if figure.stem != "regimes-default":  # drawn by diagnose, which writes no such file
            assert figure.with_suffix(".json").is_file(), figure.name


def test_the_long_runs_quote_follows_from_them() -> None:
    with (FIGURES / "dead-share-long.runs.csv").open() as file:
        found = {(r["filter.strategy"], r["seed"]): r for r in csv.DictReader(file)}
    expected = {}
    for quantity, factor in ((SUCCESS, 100), (MI, 1), (CONDITIONAL, 1)):
        arms = [
            [factor * float(found[arm, str(k)][quantity]) for k in range(5)]
            for arm in ("none", "top-p")
        ]
        differences = [b - a for a, b in zip(*arms, strict=True)]
        expected[quantity] = (*map(fmean, arms), *interval(differences))
    for text in ((ROOT / "README.md").read_text(), (FIGURES / "README.md").read_text()):
        (success,) = rows(text, r"\| (held-out )?success \| 22")
        (information,) = rows(text, r"\| (information \(MI\)|MI), nats a token \|")
        (conditional,) = rows(text, r"\| conditional entropy, nats a token \| 0")
        for row, quantity in ((success, SUCCESS), (information, MI), (conditional, CONDITIONAL)):
            cells = [number for cell in row[1:] for number in quoted(cell)]
            assert cells == pytest.approx(
                expected[quantity], abs=0.051 if quantity == SUCCESS else 0.0051
            )
