"""``ragen2 compare``: paired differences between two runs or two arms of a sweep."""

import math
from typing import Annotated

import typer

from ragen2_cli.errors import counted


def compare(
    a: Annotated[str, typer.Argument(help="RUN, SWEEP or SWEEP@axis=label,...", metavar="A")],
    b: Annotated[str, typer.Argument(help="What A is compared with.", metavar="B")],
    json_: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Show what A has more than B, over pairs of equal seeds, with intervals and n.

    Example: ragen2 compare sweeps/demo@filter=top-p sweeps/demo@filter=none
    """
    from ragen2_cli.sweeps.compare import compare as differences
    from ragen2_cli.sweeps.compare import differing_settings, pair_up, read_arm

    pairs, alone = pair_up(read_arm(a), read_arm(b))
    rows = differences(pairs)
    if json_:
        from dataclasses import asdict

        from ragen2_cli.runs.jsonl import dumps

        body = {
            "pairs": len(pairs),
            "unpaired": alone,
            "settings": differing_settings(pairs),
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
    if alone:
        left = "run without a partner is" if alone == 1 else "runs without a partner are"
        lines.append(f"{alone} {left} left out")
    if not matched:
        lines.append("the seeds differ, so boards and noise do too: this pair is not matched")
    typer.echo("\n".join(lines))


def _apart(settings: dict[str, tuple[str, str]]) -> str:
    """Say in which settings A and B differ; at most four by name."""
    if not settings:
        return "A and B have the same settings"
    named = [f"{key} ({a}, {b})" for key, (a, b) in list(settings.items())[:4]]
    rest = len(settings) - len(named)
    more = f" and {counted(rest, 'more setting')}" if rest else ""
    return f"A and B differ in {', '.join(named)}{more}"
