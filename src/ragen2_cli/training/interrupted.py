"""What an interrupted run says, where it goes on, and up to which step."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ragen2_cli.config import Config
from ragen2_cli.errors import UserError, counted
from ragen2_cli.runs import RunDirectory
from ragen2_cli.runs.claim import CONFIG
from ragen2_cli.training import checkpoints
from ragen2_cli.training.progress import Progress


@contextmanager
def saying_how_to_go_on(path: Path, steps: int | None = None) -> Iterator[None]:
    """Give a ``KeyboardInterrupt`` inside the block the text of :func:`how_to_go_on`.

    Args:
        path: The run's folder, which is there.
        steps: The number of steps that was asked for, when it was.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(str(interrupt) or how_to_go_on(path, steps)) from None


def how_to_go_on(path: Path, steps: int | None = None) -> str:
    """Return what is saved of a run, and the command that continues it.

    ``steps`` is repeated there as long as the run does not have it in its config.
    """
    run = RunDirectory.open(path)
    found, _ = checkpoints.newest(run.checkpoints)
    saved = "before the first checkpoint; start again"
    if found is not None:
        saved = f"state saved at step {checkpoints.step_of(found)}; go on"
    command = f"ragen2 train --resume --out {shlex.quote(str(path))}"
    if steps not in (None, run.read_config()["config"].get("steps")):
        command += f" --steps {steps}"
    return f"interrupted: {saved} with\n  {command}"


def newest_checkpoint(run: RunDirectory, config: Config, progress: Progress) -> Path | None:
    """Return where to go on (None: at the beginning); say which checkpoints were skipped and why.

    Raises:
        UserError: Every checkpoint is damaged, or nothing is left to do.
    """
    found, skipped = checkpoints.newest(run.checkpoints)
    for name, reason in skipped:
        progress.note(f"skipping checkpoint {name}: {reason}")
    if found is None and skipped:
        raise UserError(f"{run.path}: no complete checkpoint to resume from")
    if found is None:
        progress.note(f"{run.path} has no checkpoint yet; starting from the beginning")
        return None
    step = checkpoints.step_of(found)
    if step > config.steps or (step == config.steps and run.finished):
        state = "done, at" if run.finished else "already at"
        done = counted(step, "step")
        raise UserError(f"{run.path}: it is {state} {done}; ask for more with --steps")
    progress.note(f"resuming {run.path} from step {step}")
    return found


def remember_steps(run: RunDirectory, steps: int) -> None:
    """Write another number of steps into the run's config; ``earlier_steps`` lists the old ones.

    So the run goes on up to it when it is resumed without naming it again.
    """
    content = run.read_config()
    before = content["config"].get("steps")
    if before != steps:
        content["config"]["steps"] = steps
        content["earlier_steps"] = [*content.get("earlier_steps", []), before]
        run.write_json(CONFIG, content)
