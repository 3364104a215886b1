"""ragen2: train LLM agents with SNR-aware group filtering and see when their reasoning collapses.

The library names are loaded on first use, so that importing the package stays light and needs no
particular TRL version.
"""

from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "CollapseMonitor": "ragen2_cli.training.collapse_monitor",
    "GroupFilter": "ragen2_cli.core.filters",
    "SealLoss": "ragen2_cli.training.seal_loss",
    "SnrGRPOTrainer": "ragen2_cli.training.snr_trainer",
    "run_table": "ragen2_cli.sweeps.tables",
    "step_table": "ragen2_cli.sweeps.tables",
}

__all__ = [
    "CollapseMonitor",
    "GroupFilter",
    "SealLoss",
    "SnrGRPOTrainer",
    "__version__",
    "run_table",
    "step_table",
]


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)
