"""The house has one direction: imports follow the module map; heavy ones stay in their rooms."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "ragen2_cli"

# Who may import whom: at the top of a file / additionally inside function bodies.
MAY_IMPORT = {
    "errors": (set(), set()),
    "records": (set(), set()),
    "core": ({"errors"}, set()),
    "config": ({"errors"}, {"core", "envs"}),
    "sandbox": ({"errors"}, set()),
    "envs": ({"errors", "records", "sandbox"}, set()),
    "rollout": ({"errors", "records", "envs"}, set()),
    "runs": ({"errors", "records"}, {"config"}),
    "logs": ({"errors", "records", "core"}, {"runs", "envs"}),
    "plots": ({"errors", "records", "core"}, set()),
    "sweeps": ({"errors", "records", "core", "config", "runs"}, {"training"}),
    "training": (
        {"errors", "records", "core", "envs", "rollout", "config", "runs", "logs"},
        {"plots"},
    ),
    "commands": (
        {"errors", "commands"},
        {"config", "runs", "records", "training", "rollout", "plots", "core", "envs", "logs"}
        | {"sandbox", "sweeps"},
    ),
    "app": ({"commands", "errors"}, set()),
    "__main__": ({"app"}, set()),
    "__init__": (set(), set()),
}
# Third-party names and the only places that may import them (anywhere / at the top of a file).
ROOMS = {
    "trl": {"training"},
    "peft": {"training"},
    "matplotlib": {"plots"},
    "torch": {"training", "rollout"},
    "transformers": {"training", "rollout"},
    "ray": {"sweeps"},
}
TOP_LEVEL_ONLY_IN = {
    "pandas": set(),
    "scipy": set(),
    "datasets": set(),
    "pyarrow": set(),
    "torch": {"training", "rollout"},
    "transformers": {"training", "rollout"},
    "trl": {"training"},
    "peft": {"training"},
    "matplotlib": {"plots"},
    "ray": set(),
}


def unit(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[str, bool]]:
    """Return (module, at the top of the file?) for each import that runs (not type checking)."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, top: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            top = False
        if isinstance(node, ast.Import):
            found.extend((name.name, top) for name in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, top))
        for child in ast.iter_child_nodes(node):
            visit(child, top)

    visit(ast.parse(path.read_text(encoding="utf-8")), True)
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    here = unit(path)
    top_allowed, inner_allowed = MAY_IMPORT[here]
    for module, top in imports(path):
        if not module.startswith("ragen2_cli."):
            continue
        there = module.split(".")[1]
        allowed = {here} | top_allowed | (set() if top else inner_allowed)
        assert there in allowed, f"{path.name} imports {module} ({'top' if top else 'inside'})"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_stay_in_their_rooms(path: Path) -> None:
    here = unit(path)
    for module, top in imports(path):
        library = module.split(".")[0]
        if library in ROOMS:
            assert here in ROOMS[library], f"{path.name} imports {module}"
        if top and library in TOP_LEVEL_ONLY_IN:
            assert here in TOP_LEVEL_ONLY_IN[library], f"{path.name} imports {module} at the top"


def test_the_map_knows_every_room() -> None:
    rooms = {unit(path) for path in FILES}
    assert rooms <= set(MAY_IMPORT), rooms - set(MAY_IMPORT)


# Extras, and what an option alone asks for, naming the package that lacks.
OPTIONAL = {"ray", "spacy"}


def test_what_is_imported_is_declared_and_nothing_else() -> None:
    found = {module.split(".")[0] for path in FILES for module, _ in imports(path)}
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=\[]", line)[0] for line in project["dependencies"]}
    assert found - set(sys.stdlib_module_names) - {"ragen2_cli"} - OPTIONAL == declared
