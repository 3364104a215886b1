"""``ragen2 envs doctor``: which layers isolate untrusted programs on this machine."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def doctor(json_: Json = False) -> None:
    """Say which sandbox layers hold here, and try to break out of them.

    Exits with 2 when nothing isolates a program or one of the tries gets through.

    Example: ragen2 envs doctor
    """
    from ragen2_cli.errors import UserError
    from ragen2_cli.sandbox import SandboxError, detect
    from ragen2_cli.sandbox.selftest import probe

    layers = detect()
    user = "an unused user id" if layers.root else "its own user namespace"
    start = "a fork of a warm interpreter into fresh namespaces per program"
    if not layers.warm:
        start = f"a start of bubblewrap per program: {layers.why_cold or 'no namespaces'}"
    rows = [
        ("bubblewrap", layers.bubblewrap is not None, layers.bubblewrap or layers.why_not),
        ("namespaces", layers.namespaces, layers.why_not or f"mount, pid, net, ipc; {user}"),
        ("warm start", layers.warm, start),
        ("Landlock", layers.landlock > 0, f"version {layers.landlock}" if layers.landlock else ""),
        ("seccomp", layers.seccomp, "system call filter"),
        ("resource limits", layers.rlimits, "CPU, memory, file size, processes"),
        ("wall clock", True, "outside the sandbox"),
    ]
    try:
        probes = probe(layers)
    except SandboxError as error:
        raise UserError(f"sandbox: {error}") from error
    holds = layers.isolation != "none" and all(item.stopped for item in probes)
    if json_:
        _print_json(layers.isolation, holds, rows, [(p.what, p.stopped) for p in probes])
    else:
        for name, there, note in rows:
            typer.echo(f"{'yes' if there else 'no':<4}{name:<18}{note}")
        typer.echo("\na program in the sandbox")
        first, *rest = probes
        typer.echo(f"{'yes' if first.stopped else 'NO':<8}{first.what}")
        for item in rest:
            typer.echo(f"{'stopped' if item.stopped else 'DONE':<8}{item.what}")
        typer.echo(
            f"\nisolation: {layers.isolation}; {'it holds' if holds else 'IT DOES NOT HOLD'}"
        )
    if not holds:
        raise typer.Exit(2)


def _print_json(
    isolation: str,
    holds: bool,
    rows: list[tuple[str, bool, str]],
    probes: list[tuple[str, bool]],
) -> None:
    import json

    found = {
        "isolation": isolation,
        "holds": holds,
        "layers": {name: {"there": there, "note": note} for name, there, note in rows},
        "works": probes[0][1],
        "stopped": dict(probes[1:]),
    }
    typer.echo(json.dumps(found))
