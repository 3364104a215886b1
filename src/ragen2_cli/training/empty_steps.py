"""A loss scaler (fp16) that lets an optimizer step without any gradient pass."""

from typing import Any

import torch
from torch.optim import Optimizer


class EmptyStepScaler(torch.amp.GradScaler):
    """``GradScaler`` for steps in which nothing may have been trained on.

    PyTorch's own asserts that gradients were looked at before every step. Here a step for which no
    parameter has a gradient changes neither weights nor optimizer nor scale, and does not count
    among the steps after which the scale grows.
    """

    _skipped = False

    @classmethod
    def like(cls, scaler: torch.amp.GradScaler, device: str) -> "EmptyStepScaler":
        """Return one with the state of ``scaler``, on a kind of device."""
        made = cls(device, enabled=scaler.is_enabled())
        made.load_state_dict(scaler.state_dict())
        return made

    def unscale_(self, optimizer: Optimizer) -> None:
        """Unscale the gradients, if there are any."""
        if _has_gradients(optimizer):
            super().unscale_(optimizer)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Step the optimizer unless a gradient overflowed; without any it has nothing to do."""
        self._skipped = not _has_gradients(optimizer)
        if self._skipped:
            done: float | None = optimizer.step(*args, **kwargs)
            return done
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Adapt the scale to the step before, if that had gradients."""
        if not self._skipped:
            super().update(new_scale)


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(one.grad is not None for group in optimizer.param_groups for one in group["params"])
