"""The ``ragen2`` command: mounts the command groups on one app and turns errors into exit codes."""

import os
import sys

import typer

from ragen2_cli.commands import analyze, compare, diagnose, envs, evaluate, models, plot, show, sweep, train
from ragen2_cli.errors import CollapseStop, UserError

app = typer.Typer(
    name="ragen2",
    help="Train LLM agents with SNR-aware group filtering and see when their reasoning collapses.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
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
    130 interrupted.
    """
    try:
        app()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except CollapseStop as stop:
        sys.stderr.write(f"stopped: {stop}\n")
        sys.exit(3)
    except BrokenPipeError:
        # The reader closed the pipe (for example `| head`): nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
