"""Where a model's weights live, and in which type."""

from typing import TYPE_CHECKING, Literal

from ragen2_cli.errors import UserError
from ragen2_cli.training.gpus import as_seen

if TYPE_CHECKING:
    import torch

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def resolve_device(device: str) -> str:
    """Return a torch device that exists.

    Raises:
        UserError: For an unknown device or one that this machine lacks.
    """
    import torch

    asked, device = device, as_seen(device)
    there = {"cpu": True, "cuda": torch.cuda.is_available()}
    there["mps"] = torch.backends.mps.is_available()
    if device == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if there[name])
    kind, _, number = device.partition(":")
    if kind not in there or (number and not number.isdigit()):
        raise UserError(f"--device {asked}: use auto, cpu, cuda, cuda:N or mps")
    if not there[kind] or (kind == "cuda" and int(number or 0) >= torch.cuda.device_count()):
        raise UserError(f"--device {asked}: not on this machine; use --device auto")
    return device


def resolve_dtype(dtype: Dtype, device: str) -> "torch.dtype":
    """Return the torch type of the weights on a device."""
    import torch

    if dtype == "auto":
        on_gpu = device.startswith("cuda") and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if on_gpu else torch.float32
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in named:
        raise UserError(f"--dtype {dtype}: use auto, {', '.join(named)}")
    return named[dtype]
