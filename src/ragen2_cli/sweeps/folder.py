"""A sweep's folder: ``cells.jsonl`` and one run folder per cell below ``runs/``.

``cells.jsonl`` is only ever appended to; the newest line of a cell counts. So a killed sweep loses
nothing but the status of the cells that were running, and those resume.
"""

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ragen2_cli.config.load import build_config
from ragen2_cli.errors import UserError
from ragen2_cli.records import Cell
from ragen2_cli.runs import RunDirectory, claim, jsonl
from ragen2_cli.runs.atomic import reported
from ragen2_cli.runs.kinds import CELLS, is_sweep
from ragen2_cli.sweeps.grid import refuse_copies


@dataclass
class SweepDirectory:
    """A sweep's folder, made by ``create`` (to write) or ``open`` (to read).

    Attributes:
        path: The folder.
        cells: Every cell by name, in the order of planning, with its newest status.
    """

    path: Path
    cells: dict[str, Cell] = field(default_factory=dict)
    _lock: int | None = field(default=None, repr=False)

    @classmethod
    def create(
        cls, path: Path | None, planned: Iterable[Cell], *, root: Path | str = "sweeps"
    ) -> Self:
        """Make a sweep's folder, or take up the one that is there and add cells it lacks.

        Args:
            path: The folder; None for a new name ``<root>/sweep-<yyyymmdd>-<n>``.
            planned: The cells that this sweep should have.
            root: Where automatic names live.

        Raises:
            UserError: No cells; the folder holds something else, or a cell of the same name with
                another config, or the same run under another name; it cannot be written; another
                sweep is running in it.
        """
        planned = list(planned)
        if not planned:
            raise UserError("sweep: there are no cells; give at least one value and one seed")
        if path is None:
            path = claim.new_named(Path(root), "sweep")
        with reported(f"cannot create the sweep folder {path}"):
            path.mkdir(parents=True, exist_ok=True)
            others = [entry.name for entry in os.scandir(path) if entry.name != claim.LOCK]
        if others and CELLS not in others:
            raise UserError(f"{path} exists and is not a sweep; give another folder with --out")
        sweep = cls(path, _read(path))
        sweep._lock = claim.lock(path)
        try:
            sweep._add(planned)
        except UserError:
            sweep.close()
            raise
        return sweep

    def _add(self, planned: list[Cell]) -> None:
        """Record the cells that are new, once nothing speaks against any."""
        added = []
        for cell in planned:
            before = self.cells.get(cell.name)
            if before is None:
                added.append(cell)
                continue
            known, wanted = _as_now(before).config, _as_now(cell).config
            if known != wanted:
                key = _first_difference(known, wanted)
                raise UserError(
                    f"{self.path} holds the cell {cell.name} with another {key}; give another "
                    "folder with --out, or the settings it was made with"
                )
        if added:
            refuse_copies([*map(_as_now, self.cells.values()), *added])
        for cell in added:
            self.record(cell)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a sweep for reading.

        Raises:
            UserError: No sweep there, or damaged or newer lines.
        """
        path = Path(path)
        if not is_sweep(path):
            raise UserError(f"no sweep at {path}: {CELLS} is missing")
        return cls(path, _read(path))

    @classmethod
    def newest(cls, root: Path | str = "sweeps") -> Self:
        """Return the sweep under ``root`` that was changed last.

        Raises:
            UserError: There is none.
        """
        found = [(entry.stat().st_mtime_ns, entry) for entry in Path(root).glob(f"*/{CELLS}")]
        if not found:
            raise UserError(f"no sweep under {Path(root)}/; give the sweep's folder")
        return cls.open(max(found)[1].parent)

    def record(self, cell: Cell, **changes: Any) -> Cell:
        """Append a cell's new status and return the changed cell."""
        changed = dataclasses.replace(cell, **changes)
        jsonl.append(self.path / CELLS, dataclasses.asdict(changed))
        self.cells[changed.name] = changed
        return changed

    def run_path(self, cell: Cell) -> Path:
        """Return the folder of a cell's run, which may not exist yet."""
        return self.path / "runs" / cell.name

    def finished(self, cell: Cell) -> bool:
        """Whether a cell's run came to its end, whatever its status line says."""
        return RunDirectory(self.run_path(cell)).finished

    def close(self) -> None:
        """Let another process write to the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _read(path: Path) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for number, row in enumerate(jsonl.read(path / CELLS), start=1):
        cell = jsonl.record(Cell, row, f"{path / CELLS}: line {number}")
        cells[cell.name] = cell
    return cells


def _as_now(cell: Cell) -> Cell:
    """A stored cell as this version plans it: a setting that came later has its default."""
    return dataclasses.replace(cell, config=build_config(cell.config).model_dump(mode="json"))


def _first_difference(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> str:
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            return _first_difference(old, new, f"{prefix}{key}.")
        return f"{prefix}{key} ({old} there, {new} here)"
    return "config"
