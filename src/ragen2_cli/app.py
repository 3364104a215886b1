"""The ``ragen2`` command: mounts the command groups on one app and turns errors into exit codes."""

import errno
import os
import sys
from typing import Annotated, NoReturn

import typer

from ragen2_cli.commands import (
    analyze,
    compare,
    diagnose,
    envs,
    evaluate,
    models,
    plot,
    show,
    sweep,
    train,
)
from ragen2_cli.commands.streams import OutputFault, guard, leave
from ragen2_cli.errors import CollapseStop, UserError

# TRL and the hub's client report their use unless told not to, before they are imported.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

app = typer.Typer(
    name="ragen2",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        from ragen2_cli import __version__

        typer.echo(f"ragen2 {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Train LLM agents with SNR-aware group filtering and see when their reasoning collapses."""


app.command("train")(train.train)
app.command("diagnose")(diagnose.diagnose)
app.command("evaluate")(evaluate.evaluate)
app.command("show")(show.show)
app.command("sweep", cls=sweep.SweepCommand)(sweep.sweep)
app.command("compare")(compare.compare)
app.command("plot")(plot.plot)
app.add_typer(analyze.app, name="analyze")
app.add_typer(envs.app, name="envs")
app.add_typer(models.app, name="models")


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 1 internal error, 2 wrong use or wrong input, 3 stopped by a collapse rule,
    4 a sweep with failed cells, 130 interrupted, 141 when the reader of stdout left.
    """
    guard()
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error))
    except _UsageError as error:
        _fail_usage(error)
    except typer.Abort:
        sys.exit(130)  # the end of the input at a question
    except CollapseStop as stop:
        sys.stderr.write(f"stopped: {stop}\n")
        sys.exit(3)
    except OutputFault as fault:
        leave(fault)
    except OSError as error:
        if error.errno not in _WRONG_PATH or error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror}")
    sys.exit(code or 0)


_WRONG_PATH = {errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES}
"""What the system says of a path that a user gave and no command can have checked."""
_UsageError: type[typer.BadParameter] = typer.BadParameter.__bases__[0]
"""What Typer raises on a wrong command line; its public name is that of a subclass."""


def _fail(message: str) -> NoReturn:
    """Print one line, whatever control characters the message holds, and exit with 2."""
    from ragen2_cli.commands.literal import visible

    sys.stderr.write(f"error: {visible(' '.join(message.split()))}\n")
    sys.exit(2)


def _fail_usage(error: typer.BadParameter) -> NoReturn:
    """Print what is wrong with the command line, or the help of a group without a command."""
    message = error.format_message().replace("Value error, ", "")  # pydantic's, about a choice
    if message.startswith("Usage:"):
        sys.stderr.write(f"{message}\n")
        sys.exit(2)
    where = error.ctx.command_path if error.ctx is not None else "ragen2"
    _fail(f"{message.rstrip('.')}; see {where} --help")
