"""One process trains on one GPU; the others are hidden from it before CUDA starts.

Transformers' trainer would spread a single process over every GPU that it sees, which TRL refuses,
and it always takes the first one.
"""

import os

from ragen2_cli.training.processes import count

VISIBLE = "CUDA_VISIBLE_DEVICES"
_BEFORE = "RAGEN2_VISIBLE_GPUS"
_ALL = "all"


def show_one(device: str) -> None:
    """Leave only the GPU of ``auto``, ``cuda`` or ``cuda:N`` visible, among those that were.

    With a launcher, on other devices, and for a number that is not there, nothing changes. Has to
    be called before CUDA starts; children inherit the choice and may make another one.
    """
    kind, _, number = device.partition(":")
    if count() > 1 or kind not in ("auto", "cuda"):
        return
    before = os.environ.setdefault(_BEFORE, os.environ.get(VISIBLE, _ALL))
    index = int(number or 0)
    if before == _ALL:
        os.environ[VISIBLE] = str(index)
        return
    names = before.split(",")
    os.environ[VISIBLE] = names[index] if index < len(names) else before


def as_seen(device: str) -> str:
    """Return ``cuda:N`` under the name that it has after :func:`show_one`, which is ``cuda:0``."""
    hidden = os.environ.get(_BEFORE, os.environ.get(VISIBLE)) != os.environ.get(VISIBLE)
    return "cuda:0" if hidden and device.startswith("cuda:") else device
