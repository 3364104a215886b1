"""``ragen2 compare``: paired differences between two runs or two arms of a sweep."""

import math
from typing import TYPE_CHECKING, Annotated

import typer

from ragen2_cli.errors import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ragen2_cli.sweeps.results import Ending


def compare(
    a: Annotated[str, typer.Argument(help="RUN, SWEEP or SWEEP@axis=label,...", metavar="A")],
    b: Annotated[str, typer.Argument(help="What A is compared with.", metavar="B")],
    json_: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Show what A has more than B, over pairs of equal seed, with intervals and n (seeds).

    Example: ragen2 compare sweeps/demo@filter.strategy=top-p sweeps/demo@filter.strategy=none
    """
    from ragen2_cli.sweeps.compare import compare as differences
    from ragen2_cli.sweeps.compare import differing_settings, pair_up, read_arm
    from ragen2_cli.sweeps.results import ending

    pairs, alone = pair_up(read_arm(a), read_arm(b))
    rows = differences(pairs)
    if json_:
        from dataclasses import asdict

        from ragen2_cli.runs.jsonl import dumps

        body = {
            "pairs": len(pairs),
            "unpaired": alone,
            "settings": differing_settings(pairs),
            "runs": [{"a": asdict(ending(a)), "b": asdict(ending(b))} for a, b in pairs],
            "rows": [asdict(row) for row in rows],
        }
        typer.echo(dumps(body))
        return
    from ragen2_cli.commands.tables import align

    table = [["", "A", "B", "A - B", "95 % interval", "n", "over"]]
    for row in rows:
        found = row.difference
        bare = math.isnan(found.ci_low)
        interval = "-" if bare else f"[{found.ci_low:+.4g}, {found.ci_high:+.4g}]"
        table.append(
            [
                row.quantity,
                f"{row.a:.4g}",
                f"{row.b:.4g}",
                f"{found.mean:+.4g}",
                interval,
                str(found.n),
                row.interval or "-",
            ]
        )
    matched = all(first.seed == second.seed for first, second in pairs)
    lines = [align(table), counted(len(pairs), "pair") + " of runs" + " of equal seed" * matched]
    lines.append(_apart(differing_settings(pairs)))
    lines += _lengths([(ending(first), ending(second)) for first, second in pairs])
    if alone:
        left = "run without a partner is" if alone == 1 else "runs without a partner are"
        lines.append(f"{alone} {left} left out")
    if not matched:
        lines.append("the seeds differ, so boards and noise do too: this pair is not matched")
    typer.echo("\n".join(lines))


def _lengths(pairs: "Sequence[tuple[Ending, Ending]]") -> list[str]:
    """Say at which steps the runs were evaluated last, and what is not equal about that."""
    sides = dict(zip("AB", zip(*pairs, strict=True), strict=True))
    steps = {name: _range([one.step for one in ends]) for name, ends in sides.items()}
    tries = {name: _range([one.evaluations for one in ends]) for name, ends in sides.items()}
    lines = [f"last evaluation at step {steps['A']} in A, {steps['B']} in B"]
    for name, ends in sides.items():
        for how in ("unfinished", "stopped early"):
            runs = [one.run for one in ends if one.ended == how]
            shown = ", ".join(runs[:4]) + ", ..." * (len(runs) > 4)
            lines += [f"{name}: {counted(len(runs), 'run')} {how} ({shown})"] * bool(runs)
    apart = sum(first.step != second.step for first, second in pairs)
    if apart:
        lines.append(
            f"warning: in {counted(apart, 'pair')} these steps differ, so trainings of different"
            " length are compared"
        )
    if any(first.evaluations != second.evaluations for first, second in pairs):
        lines.append(
            f"warning: the best checkpoint is the best of {tries['A']} in A, of {tries['B']} in B;"
            " of more, the best is higher by chance alone"
        )
    return lines


def _range(values: "Sequence[int | None]") -> str:
    known = sorted({value for value in values if value is not None})
    if not known:
        return "-"
    return f"{known[0]}" if len(known) == 1 else f"{known[0]} to {known[-1]}"


def _apart(settings: dict[str, tuple[str, str]]) -> str:
    """Say in which settings A and B differ; at most four by name."""
    if not settings:
        return "A and B have the same settings"
    named = [f"{key} ({a}, {b})" for key, (a, b) in list(settings.items())[:4]]
    rest = len(settings) - len(named)
    more = f" and {counted(rest, 'more setting')}" if rest else ""
    return f"A and B differ in {', '.join(named)}{more}"
