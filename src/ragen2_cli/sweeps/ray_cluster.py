"""A Ray cluster as a place where cells are trained: one cell is one Ray task.

The cluster is not started here. Its nodes need ragen2 installed, and the sweep's folder must lie on
storage that all of them share with this machine: runs are written there, nothing travels through
Ray but a cell's config and how it ended.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ragen2_cli.errors import UserError, counted
from ragen2_cli.sweeps.workers import ONE_THREAD

PORT = 6379
"""Where a Ray head listens unless told otherwise."""


@dataclass(frozen=True)
class Ended:
    """A cell whose task is over.

    Attributes:
        cell: Its name.
        answer: ``status``, ``reason`` and ``seconds``; None when the worker or its node was lost.
        reason: What was lost, in one line.
    """

    cell: str
    answer: dict[str, Any] | None
    reason: str = ""


@dataclass(frozen=True)
class Resources:
    """What one cell occupies."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __str__(self) -> str:
        """Return ``1 CPU and 0.5 GPUs``, in words."""
        cpus = f"{self.cpus:g} CPU{'' if self.cpus == 1 else 's'}"
        gpus = f"{self.gpus:g} GPU{'' if self.gpus == 1 else 's'}"
        return f"{cpus} and {gpus}" if self.gpus else cpus


class RayCluster:
    """A connection to a running cluster."""

    def __init__(self, address: str, resources: Resources) -> None:
        """Connect.

        Args:
            address: ``auto`` (the cluster of this machine), ``HOST``, ``HOST:PORT`` or a
                ``ray://`` address.
            resources: What every cell occupies.

        Raises:
            UserError: Ray is not installed, there is no cluster, or no node that is large enough.
        """
        if find_spec("ray") is None:
            raise UserError("--executor ray: Ray is not installed; pip install 'ragen2[ray]'")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address != "auto":
            address = address if ":" in address.removeprefix("ray://") else f"{address}:{PORT}"
            _require_listener(address)
        import ray

        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, TimeoutError, ValueError, RuntimeError) as error:
            reason = next((line for line in str(error).splitlines() if line), "no answer")
            raise _no_cluster(address, reason[:160]) from None
        self._resources = resources
        self._train = ray.remote(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_retries=0,  # retried by the engine, which counts and tells
            runtime_env={"env_vars": ONE_THREAD},
        )(train_on_node)
        self._cells: dict[Any, str] = {}
        nodes, slots = len(self._nodes()), self.slots()
        if not slots:
            self.close()
            raise UserError(
                f"--ray-address {address}: none of its {counted(nodes, 'node')} has {resources}"
                " for a cell; ask for less with --cpus and --gpus"
            )

    def slots(self) -> int:
        """Return how many cells the nodes that are alive can train at once."""
        found = 0
        for node in self._nodes():
            fits = [node.get("CPU", 0) // self._resources.cpus] if self._resources.cpus else []
            if self._resources.gpus:
                fits.append(node.get("GPU", 0) / self._resources.gpus)
            found += int(min(fits, default=1))
        return found

    def _nodes(self) -> list[Mapping[str, float]]:
        import ray

        return [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def submit(self, cell: str, config: Mapping[str, Any], out: Path) -> None:
        """Hand a cell over; Ray starts it where there is room."""
        self._cells[self._train.remote(dict(config), str(out.resolve()))] = cell

    def poll(self, seconds: float) -> list[Ended]:
        """Wait up to so many seconds for cells to end; return those that did."""
        import ray

        if not self._cells:
            return []
        ready, _ = ray.wait(list(self._cells), num_returns=1, timeout=seconds)
        return [self._ended(reference) for reference in ready]

    def _ended(self, reference: Any) -> Ended:
        import ray

        cell = self._cells.pop(reference)
        try:
            return Ended(cell, ray.get(reference))
        except ray.exceptions.TaskCancelledError:
            return Ended(cell, {"status": "interrupted", "reason": "", "seconds": None})
        except ray.exceptions.RayTaskError as error:
            last = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = last[-1] if last else "the task raised"
            return Ended(cell, {"status": "failed", "reason": reason[:300], "seconds": None})
        except ray.exceptions.RayError as error:  # a worker or node that is gone, out of memory
            first = [line.strip() for line in str(error).splitlines() if line.strip()]
            return Ended(cell, None, (first[0] if first else type(error).__name__)[:200])

    def cancel(self, seconds: float) -> list[Ended]:
        """Ask every cell to save its state and end; wait up to so many seconds for them."""
        import ray

        for reference in self._cells:
            ray.cancel(reference, force=False)
        if self._cells:
            ray.wait(list(self._cells), num_returns=len(self._cells), timeout=seconds)
        ready, _ = ray.wait(list(self._cells), num_returns=len(self._cells), timeout=0)
        return [self._ended(reference) for reference in ready]

    def close(self) -> None:
        """Leave the cluster; it goes on without us."""
        import ray

        ray.shutdown()


def _require_listener(address: str) -> None:
    """Refuse an address where nobody listens at once; Ray itself would try for minutes."""
    import socket

    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> UserError:
    return UserError(
        f"--ray-address {address}: no Ray cluster there ({reason}); start one with"
        " `ray start --head`"
    )


def train_on_node(config: dict[str, Any], out: str) -> dict[str, Any]:
    """Train one cell on the node that Ray chose; runs there, not here.

    Returns:
        As ``worker.train_free``, which waits for a process that does not know its node is lost.
    """
    from socket import gethostname

    from ragen2_cli.runs.kinds import is_sweep
    from ragen2_cli.sweeps.worker import train_free

    path = Path(out)
    if not is_sweep(path.parent.parent):
        reason = f"{path.parent.parent} is not on {gethostname()}: sweeps need shared storage"
        return {"status": "failed", "reason": reason, "seconds": None}
    return train_free(config, path)
