"""Optimizers, schedulers and generators as JSON and tensors, bit for bit, without pickle."""

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ragen2_cli.errors import UserError

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def pack(value: Any, name: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Split nested Python values into JSON values and named tensors.

    Dicts (with keys of any JSON scalar type), lists, tuples, tensors, numpy arrays, numbers
    including NaN and infinities, text, booleans and None come back equal from ``unpack``.

    Args:
        value: What to split.
        name: Prefix of the tensors' names.

    Raises:
        TypeError: Anything else; the message says where it is.
    """
    tensors: dict[str, Tensor] = {}
    return _pack(value, name, tensors), tensors


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return _pack(value.item(), name, tensors)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Tensor | np.ndarray):
        key = name or "value"
        while key in tensors:
            key += "'"
        if isinstance(value, np.ndarray):
            tensors[key] = torch.from_numpy(value.copy())
            return {"$array": key}
        tensors[key] = value.detach()
        return {"$tensor": key}
    if isinstance(value, list | tuple):
        items = [_pack(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, Mapping):
        pairs = [[key, _pack(item, f"{name}.{key}", tensors)] for key, item in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
            return dict(pairs)
        if all(isinstance(key, str | int) for key, _ in pairs):
            return {"$items": pairs}
    raise TypeError(f"cannot store {type(value).__name__} at '{name}' in a checkpoint")


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo ``pack``.

    Raises:
        UserError: A tensor that is named is missing, or the values were not made by ``pack``.
    """
    try:
        return _unpack(value, tensors)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"checkpoint state is malformed ({error})") from None


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and next(iter(value)).startswith("$"):
        return _unpack_marked(*next(iter(value.items())), tensors)
    return {key: _unpack(item, tensors) for key, item in value.items()}


def _unpack_marked(mark: str, body: Any, tensors: Mapping[str, Tensor]) -> Any:
    if mark == "$float" and body in _FLOATS:
        return _FLOATS[body]
    if mark == "$tuple" and isinstance(body, list):
        return tuple(_unpack(item, tensors) for item in body)
    if mark == "$items" and isinstance(body, list):
        return {key: _unpack(item, tensors) for key, item in body}
    if mark in ("$tensor", "$array"):
        if body not in tensors:
            raise UserError(f"checkpoint state names tensor '{body}', which is missing")
        return tensors[body] if mark == "$tensor" else tensors[body].numpy()
    raise UserError(f"checkpoint state holds an unknown mark '{mark}'")


def generators() -> dict[str, Any]:
    """Return the states of all global generators: Python, numpy, torch on CPU, CUDA and MPS."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - transformers seeds and uses it
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
    }


def restore_generators(state: Mapping[str, Any]) -> None:
    """Put all global generators into the states that ``generators`` returned.

    Raises:
        UserError: The state was taken with another number of GPUs, or on another kind of device.
    """
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(state["cuda"]) != devices:
        raise UserError(
            f"the checkpoint was written with {len(state['cuda'])} GPUs visible, now there are"
            f" {devices}; make the same number visible to resume exactly"
        )
    if (state["mps"] is not None) != torch.backends.mps.is_available():
        raise UserError("the checkpoint was written on another kind of device; resume there")
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002 - the counterpart of get_state above
    torch.set_rng_state(state["torch"])
    if devices:
        torch.cuda.set_rng_state_all(state["cuda"])
    if state["mps"] is not None:
        torch.mps.set_rng_state(state["mps"])
