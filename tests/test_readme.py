"""The README and docs say what is: commands parse, links and files exist, examples are the same."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from ragen2_cli.app import app
from ragen2_cli.records import Cell
from ragen2_cli.sweeps.plan import AXES, plan

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def fenced(text: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in fenced(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip().startswith("ragen2 "):
                    found.append((page.name, line.split("  #")[0].strip()))
    return found


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda value: value)
def test_every_command_parses(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command = typer.main.get_command(app)
    while "commands" in vars(command) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    assert "commands" not in vars(command), f"{page}: no such command: {line}"
    command.make_context("ragen2", words)


def sweeps() -> dict[str, list[Cell]]:
    """The cells of every sweep whose making is documented, by its folder."""
    pages = [*PAGES, ROOT / "Makefile", ROOT / "figures" / "README.md"]
    text = "\n".join(page.read_text() for page in pages)
    command = typer.main.get_command(app).commands["sweep"]
    found = {}
    for line in re.findall(r"ragen2 sweep ([^`&$\n]*--out sweeps/[\w-]+)", text):
        words = shlex.split(line)
        if not {"--config", "--seeds"} & {*words} or "NAME" in line:
            continue  # it goes on with one, or stands for several
        asked = command.make_context("sweep", words).params
        found[words[-1]] = plan(
            {name: asked[name.replace("-", "_")] for name in AXES},
            asked["over"] or [],
            asked["seeds"],
            file=asked["config"] and ROOT / asked["config"],
            flags={"steps": asked["steps"]},
            sets=asked["set_"] or [],
        )
    return found


def examples(command: typer.core.TyperCommand | typer.core.TyperGroup) -> list[str]:
    """The examples in the help of a command and of those below it."""
    found = re.findall(r"Example: (ragen2 .*)", command.help or "")
    for below in vars(command).get("commands", {}).values():
        found += examples(below)
    return found


def test_examples_on_a_sweep_fit_it() -> None:
    planned = sweeps()
    assert {"sweeps/demo", "sweeps/dead-share", "sweeps/remedies"} <= planned.keys()
    lines = [line for _, line in commands()] + examples(typer.main.get_command(app))
    named = [line for line in lines if " sweeps/" in line.replace('"', "") and "--out" not in line]
    assert len(named) > 5
    for line in named:
        for target in [word for word in shlex.split(line) if word.startswith("sweeps/")]:
            folder, _, arm = target.partition("@")
            assert folder in planned, f"no documented command makes {folder}: {line}"
            cells = planned[folder]
            for axis, _, label in (part.partition("=") for part in filter(None, arm.split(","))):
                assert any(cell.labels.get(axis) == label for cell in cells), line
            if line.startswith("ragen2 analyze correlations"):
                assert len(cells) >= 3, line
            if line.startswith("ragen2 plot separation"):
                assert any(cell.config["seal"]["coefficient"] for cell in cells), line


def test_every_remedy_is_a_flag_and_an_axis() -> None:
    text = (ROOT / "README.md").read_text()
    table = re.findall(r"^\|.*\| `(--[\w-]+) \S+` \| `([\w.]+)`", text, re.M)
    assert len(table) == 5
    assert {flag.removeprefix("--") for flag, _ in table} <= AXES.keys()
    given = {"filter": "top-p,none", "entropy-target": "0.2,none"}
    found = [cell.config["algorithm"]["entropy_target"] for cell in plan(given, [], None)]
    assert found == [0.2, None, 0.2, None]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_map_of_the_source_names_what_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    (block,) = [part for part in fenced(text) if part.startswith("src/ragen2_cli/")]
    folder = [ROOT]
    for line in block.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folder = [*folder[: depth + 1]]
        path = folder[-1] / name
        assert path.exists(), f"the README's map names {path.relative_to(ROOT)}"
        if name.endswith("/"):
            folder.append(path)
    listed = {line.split()[0].strip("/") for line in block.splitlines() if line.startswith("  ")}
    there = {
        path.name
        for path in (ROOT / "src" / "ragen2_cli").iterdir()
        if path.name not in {"__pycache__", "__init__.py", "__main__.py", "assets"}
    }
    assert there <= listed, there - listed


def test_the_library_example_is_the_one_that_is_run() -> None:
    readme, doc = ((ROOT / name).read_text() for name in ("README.md", "docs/library_example.md"))
    (example,) = [part for part in fenced(doc) if part.startswith("from datasets")]
    assert example in fenced(readme)


def test_changelog_items_are_short() -> None:
    for line in (ROOT / "CHANGELOG.md").read_text().splitlines():
        if line.startswith("- "):
            assert len(line.split()) <= 26, line
