"""Several processes that train one run: who writes, and what all of them have to agree on.

``accelerate launch`` and ``torchrun`` start the same command once per process and say through the
environment which one it is. The first process writes the run's folder and talks to the user; the
others play and train their share. Without a launcher there is one process, which is the first.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from ragen2_cli.config import Config
from ragen2_cli.errors import UserError
from ragen2_cli.runs import RunDirectory
from ragen2_cli.runs.spectator import Spectator

Value = TypeVar("Value")

SHARDED = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}
"""What accelerate's launcher sets for engines that split the weights over processes."""

_LOST = ("connection closed by peer", "connection reset", "broken pipe", "timed out", "gloo")


def rank() -> int:
    """Return the index of this process, as its launcher says; 0 without one."""
    return int(os.environ.get("RANK", "0"))


def count() -> int:
    """Return how many processes train this run; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this process writes the run's folder and talks to the user."""
    return rank() == 0


def join(config: Config) -> None:
    """Connect the processes; with one there is nothing to do.

    Args:
        config: Its device: on ``cpu`` they talk through gloo, on GPUs through nccl, and each gets
            its own GPU. ``trl.ddp_timeout`` is how many seconds they wait for each other.

    Raises:
        UserError: The launcher asks for FSDP or DeepSpeed.
    """
    for variable, name in SHARDED.items():
        if os.environ.get(variable) == "true":
            raise UserError(
                f"{name}: `ragen2 train` samples with whole weights in each process; launch it with"
                " DDP, or use SnrGRPOTrainer in a script of your own (docs/scaling.md)"
            )
    if count() == 1:
        return
    import torch
    from accelerate import PartialState

    on_cpu = config.model.device == "cpu" or not torch.cuda.is_available()
    if on_cpu:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    PartialState(cpu=on_cpu, timeout=timedelta(seconds=config.trl.get("ddp_timeout", 1800)))


def gather(items: list[Value]) -> list[Value]:
    """Return the items of all processes, in the order of the processes, on every one of them."""
    if count() == 1:
        return items
    from accelerate.utils import gather_object

    gathered: list[Value] = gather_object(items)
    return gathered


def on_first(call: Callable[[], Value]) -> Value:
    """Call something in the first process alone and return its result in all of them.

    When it raises there, the first process ends, and the others with it (``ending_together``).
    """
    if count() == 1:
        return call()
    from accelerate.utils import broadcast_object_list

    result = [call() if is_first() else None]
    broadcast_object_list(result)
    return result[0]  # type: ignore[return-value]


def one_run(make: Callable[[], RunDirectory]) -> RunDirectory:
    """Open the run's folder for writing in the first process, as a ``Spectator`` in the others.

    Args:
        make: Creates or takes up the folder; called in the first process alone.
    """
    made: list[RunDirectory] = []

    def make_and_tell() -> Path:
        made.append(make())
        return made[0].path

    path = on_first(make_and_tell)
    return made[0] if made else Spectator(path)


def any_of(flag: bool) -> bool:
    """Whether the flag is set in one process at least."""
    return any(gather([flag]))


def share(items: list[Value]) -> list[Value]:
    """Return this process's part of a list; ``gather`` puts the parts together in order."""
    processes, index = count(), rank()
    return items[len(items) * index // processes : len(items) * (index + 1) // processes]


@contextmanager
def ending_together() -> Iterator[None]:
    """Turn the loss of another process into one line.

    The operating system closes a dead process's connections, so whoever waits for it learns of it
    at once.

    Raises:
        UserError: Another process ended; says so and how to go on.
    """
    try:
        yield
    except RuntimeError as error:
        if count() == 1 or not any(mark in str(error).lower() for mark in _LOST):
            raise
        raise UserError(
            f"process {rank()} of {count()}: another process of this run ended, so this one stops;"
            " see its message, then start all of them again with --resume"
        ) from error
