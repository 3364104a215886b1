"""``ragen2 compare``: paired differences between two runs or two arms of a sweep."""

import math
from typing import Annotated

import typer


def compare(
    a: Annotated[str, typer.Argument(help="RUN, SWEEP or SWEEP@axis=label,...", metavar="A")],
    b: Annotated[str, typer.Argument(help="What A is compared with.", metavar="B")],
    json_: Annotated[bool, typer.Option("--json", help="Print the differences as JSON.")] = False,
) -> None:
    """Show what A has more than B, over pairs of equal seeds, with intervals and n.

    Example: ragen2 compare sweeps/demo@filter=top-p sweeps/demo@filter=none
    """
    from ragen2_cli.sweeps.compare import compare as differences
    from ragen2_cli.sweeps.compare import pair_up, read_arm

    pairs, alone = pair_up(read_arm(a), read_arm(b))
    rows = differences(pairs)
    if json_:
        from dataclasses import asdict

        from ragen2_cli.runs.jsonl import dumps

        body = {"pairs": len(pairs), "unpaired": alone, "rows": [asdict(row) for row in rows]}
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
    lines = [align(table), f"{len(pairs)} pairs of runs with equal seeds and settings"]
    if alone:
        lines.append(f"{alone} runs without a partner are left out")
    seeds = [(first.seed, second.seed) for first, second in pairs]
    if any(first != second for first, second in seeds):
        lines.append("the seeds differ, so boards and noise do too: this pair is not matched")
    typer.echo("\n".join(lines))
