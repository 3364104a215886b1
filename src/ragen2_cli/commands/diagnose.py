"""``ragen2 diagnose``: is the reasoning collapsing? A run folder, or anyone's logs."""

from pathlib import Path
from typing import Annotated, Any

import typer


def diagnose(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder, or parquet, jsonl, CSV or table JSON logs; the newest run by"
            " default."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Foreign columns: prompt=..,completion=..,reward=..,step=..,group=.."),
    ] = None,
    reward: Annotated[str | None, typer.Option(help="Reward columns, comma-separated.")] = None,
    reward_weights: Annotated[
        str | None, typer.Option(help="Their weights, such as 1,0.5.")
    ] = None,
    group_size: Annotated[int | None, typer.Option(min=1, help="Rows of a prompt group.")] = None,
    mode: Annotated[str, typer.Option(help="Rows to read: train, eval or all.")] = "train",
    model: Annotated[
        str | None, typer.Option(help="Cross-score with this policy: name, folder, .gguf.")
    ] = None,
    adapter: Annotated[str | None, typer.Option(help="A PEFT adapter on it.")] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option(min=0, help="Cross-score with the run's own policy of this step; 0: final."),
    ] = None,
    step: Annotated[
        list[int] | None, typer.Option(help="Steps to cross-score; default: spread over the log.")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="Reasonings to cross-score per step.")] = 64,
    sampling: Annotated[
        str, typer.Option(help="first-turn, or trajectory (run folders).")
    ] = "first-turn",
    marginal: Annotated[str, typer.Option(help="token-mean or sequence.")] = "token-mean",
    low_share: Annotated[
        float, typer.Option(min=0, max=1, help="Low: below this share of the first steps.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Decides samples and shuffles.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    watch: Annotated[
        bool, typer.Option("--watch", help="Live view of a run or sweep in progress.")
    ] = False,
    plot: Annotated[
        str | None, typer.Option(metavar="PATH", help="Draw the regime plane into this PNG.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the metrics by step into a CSV.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Tell which of four regimes a run or a log is in, with the numbers behind it.

    Example: ragen2 diagnose runs/mine --plot regimes.png
    """
    target = path if path is not None else _newest(quiet)
    if watch:
        from ragen2_cli.commands.watch import watch_run

        _alone(context, "watch", "path")
        watch_run(target)
        return
    from ragen2_cli.commands.diagnosis import Scoring, diagnose_path
    from ragen2_cli.commands.plot import figure_file
    from ragen2_cli.core.regimes import Thresholds
    from ragen2_cli.logs import Choice
    from ragen2_cli.logs.layout import parse_columns

    choice = Choice(
        columns=parse_columns(columns or ""),
        rewards=tuple(_listed(reward)),
        weights=tuple(_number(weight) for weight in _listed(reward_weights)),
        group_size=group_size,
        mode=_one_of("--mode", mode, ("train", "eval", "all")),
    )
    scoring = Scoring(
        model=model,
        adapter=adapter,
        checkpoint=checkpoint,
        device=device,
        steps=tuple(step or ()),
        samples=samples,
        sampling=_one_of("--sampling", sampling, ("first-turn", "trajectory")),
        marginal=_one_of("--marginal", marginal, ("token-mean", "sequence")),
        seed=seed,
    )
    _refuse_unread(context, target)
    limits = Thresholds(share=low_share)
    with _Progress(shown=not quiet and not json_) as progress:
        report = diagnose_path(
            target, choice, scoring, limits, say=progress.say, progress=progress.update
        )
    figure = None if plot is None else figure_file("regimes", target, plot)
    _write(report, plot=figure, csv=csv, json_=json_, quiet=quiet)


def _given(context: typer.Context) -> dict[str, str]:
    """Return the parameters of the command line: name to flag."""
    return {
        parameter.name or "": parameter.opts[0]
        for parameter in context.command.params
        if str(context.get_parameter_source(parameter.name or "")).endswith("COMMANDLINE")
    }


def _alone(context: typer.Context, *together: str) -> None:
    """Refuse options of the command line beside a live view, which knows none of them."""
    from ragen2_cli.errors import UserError

    given = [flag for name, flag in _given(context).items() if name not in together]
    if given:
        raise UserError(f"--watch is a live view of the run and takes no {', '.join(given)}")


_OF_SCORING = ("step", "samples", "sampling", "marginal", "device")
_OF_LOGS = ("columns", "reward", "reward_weights", "group_size", "mode")


def _refuse_unread(context: typer.Context, target: Path) -> None:
    """Refuse options of the command line that nothing would read."""
    from ragen2_cli.errors import UserError
    from ragen2_cli.runs.kinds import is_run

    given = _given(context)
    names, own_run = given.keys(), is_run(target)
    by_turn = context.params["sampling"] == "first-turn"
    rules = [
        ({"model", "checkpoint"} <= names, ("checkpoint",), "and --model name two policies"),
        ("model" not in names, ("adapter",), "goes with --model"),
        (not names & {"model", "checkpoint"}, _OF_SCORING, "needs --model or --checkpoint"),
        (own_run, _OF_LOGS, f"is for logs; {target} is a run, whose files say it"),
        (
            not (own_run or by_turn),
            ("sampling",),
            "trajectory is for runs; in logs first turns count",
        ),
    ]
    for applies, unread, why in rules:
        flags = [given[name] for name in unread if applies and name in given]
        if flags:
            raise UserError(f"{flags[0]} {why}")


def _write(report: Any, *, plot: Path | None, csv: Path | None, json_: bool, quiet: bool) -> None:
    from ragen2_cli.commands.diagnosis_text import as_csv, as_json, as_text
    from ragen2_cli.commands.literal import printable
    from ragen2_cli.errors import UserError
    from ragen2_cli.runs.atomic import reported

    if csv is not None:
        with reported(f"cannot write {csv}"):
            csv.parent.mkdir(parents=True, exist_ok=True)
            csv.write_text(as_csv(report), encoding="utf-8")
    if plot is not None:
        from ragen2_cli.plots.regimes import draw

        figure = draw(report.steps, report.verdict)
        with reported(f"cannot write {plot}"):
            plot.parent.mkdir(parents=True, exist_ok=True)
            try:
                figure.savefig(plot, dpi=120)
            except ValueError as error:
                raise UserError(f"--plot {plot}: {str(error).splitlines()[0]}") from None
    typer.echo(as_json(report) if json_ else printable(as_text(report)))
    if not (json_ or quiet):
        for written in filter(None, (csv, plot)):
            typer.echo(f"wrote {written}", err=True)


def _newest(quiet: bool) -> Path:
    from ragen2_cli.runs import find

    return find(None, lambda text: None if quiet else typer.echo(text, err=True)).path


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _number(text: str) -> float:
    from math import isfinite

    from ragen2_cli.errors import UserError

    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise UserError(f"--reward-weights: '{text}' is not a number")
    return value


def _one_of(flag: str, value: str, known: tuple[str, ...]) -> str:
    from ragen2_cli.errors import UserError, did_you_mean

    if value not in known:
        raise UserError(f"{flag} {value}{did_you_mean(value, known)}: use {', '.join(known)}")
    return value


class _Progress:
    """A bar on stderr when a person watches; silent otherwise."""

    def __init__(self, *, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._said = shown
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self._task = self._bar.add_task("reading", total=None)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, done: int, total: int, what: str) -> None:
        self._bar.update(self._task, completed=done, total=total, description=what[:40])

    def say(self, text: str) -> None:
        if self._said:
            typer.echo(text, err=True)
