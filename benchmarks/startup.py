"""How long `ragen2 --help` and `ragen2 train --help` take against a bare Typer app of equal shape.

The bare app is generated: the same commands with the same options and help texts, empty bodies, one
file. Both sides are whole processes that take turns; the ratio of medians comes last.

    python benchmarks/startup.py [--runs 15] [--json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ARGUMENTS = (["--help"], ["train", "--help"])


def bare_app(command: Any) -> str:
    """Return the source of a Typer app with the commands and options of ``command``."""
    lines = ["from typing import Annotated", "", "import typer", ""]
    lines.append("app = typer.Typer(rich_markup_mode=None, add_completion=False)")
    for name, child in command.commands.items():
        if "commands" in vars(child):
            group = f"group_{name.replace('-', '_')}"
            lines += [f"{group} = typer.Typer()", f"app.add_typer({group}, name={name!r})"]
            for leaf, inner in child.commands.items():
                lines += function(group, leaf, inner)
        else:
            lines += function("app", name, child)
    return "\n".join([*lines, "app()", ""])


def function(app: str, name: str, command: Any) -> list[str]:
    """Return one command's source lines."""
    lines = ["", "", f"@{app}.command({name!r})", f"def {app}_{name.replace('-', '_')}("]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            lines.append(f"    {parameter.name}: Annotated[str | None, typer.Argument()] = None,")
            continue
        kind = "bool" if parameter.is_flag else "str | None"
        default = "False" if parameter.is_flag else "None"
        option = f"typer.Option({parameter.opts[-1]!r}, help={parameter.help!r})"
        lines.append(f"    {parameter.name}: Annotated[{kind}, {option}] = {default},")
    return [*lines, ") -> None:", f"    {(command.help or '.')!r}"]


def seconds(command: list[str]) -> float:
    """Return the wall time of one process."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()

    import typer

    from ragen2_cli.app import app

    result: dict[str, Any] = {"runs": chosen.runs}
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(bare_app(typer.main.get_command(app)))
        for arguments in ARGUMENTS:
            sides = {
                "ragen2": [sys.executable, "-m", "ragen2_cli", *arguments],
                "bare": [sys.executable, str(bare), *arguments],
            }
            times: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(chosen.runs + 1):
                for side, command in sides.items():
                    times[side].append(seconds(command))
            medians = {side: statistics.median(values[1:]) for side, values in times.items()}
            ratio = medians["ragen2"] / medians["bare"]
            result[" ".join(arguments)] = {**medians, "ratio": ratio}
    if chosen.json:
        print(json.dumps(result))
        return
    for arguments in ARGUMENTS:
        row = result[" ".join(arguments)]
        print(f"ragen2 {' '.join(arguments)}: {row['ragen2']:.3f} s, bare {row['bare']:.3f} s")
    worst = max(result[" ".join(arguments)]["ratio"] for arguments in ARGUMENTS)
    print(f"ratio {worst:.2f}")


if __name__ == "__main__":
    main()
