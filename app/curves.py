"""The metrics of one run as growing NumPy columns, following its files by byte offset."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.run_directory.metrics import MetricsReader, ResumePoint, evaluations_path, evaluations_that_count

__all__ = ["SPLITS", "Curve", "CurveStore", "Snapshot"]

SPLITS = ("train", "validation", "test")
AXES = ("step", "epoch", "wall_time")
VALUES = ("loss", "accuracy", "top5_accuracy", "learning_rate", "examples_per_second", "input_wait_fraction")
COLUMNS = (*AXES, *VALUES)

# Bytes parsed at a time: some 14,000 rows, which take about 12 MB as dicts.
BLOCK_BYTES = 1 << 22

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Points of one value of one split in order of step: ``float64 [points]`` each.

    ``y`` may hold NaN and ±Infinity: they are what the run wrote. ``wall_time`` is in seconds since
    the epoch.
    """

    step: Floats
    epoch: Floats
    wall_time: Floats
    y: Floats

    def __len__(self) -> int:
        return len(self.y)

    def last(self) -> float | None:
        """Return the newest value, None where there is none."""
        return float(self.y[-1]) if len(self.y) else None


@dataclass(frozen=True)
class Snapshot:
    """What a run's metrics were at one poll; later polls don't change it."""

    tables: dict[str, "_Table"]
    resume_points: tuple[ResumePoint, ...]
    damaged_lines: int
    version: int  # grows with every change, so that equal versions mean equal contents

    def curve(self, split: str, value: str) -> Curve:
        """Return the points of ``value`` in ``split``; rows that don't have the value are left out."""
        table = self.tables.get(split)
        if table is None:
            return Curve(*(np.empty(0) for _ in range(4)))
        present = table.present[value]
        columns = [table.columns[name] for name in (*AXES, value)]
        if not present.all():
            columns = [column[present] for column in columns]
        return Curve(*columns)

    def last_step(self) -> int:
        """Return the last completed training step that was written, 0 before the first."""
        last = self.curve("train", "loss")
        return int(last.step[-1]) if len(last) and np.isfinite(last.step[-1]) else 0


@dataclass
class _Table:
    """Rows of one split. The buffers grow by doubling; what was handed out is never written again."""

    columns: dict[str, Floats] = field(default_factory=lambda: {name: np.empty(0) for name in COLUMNS})
    present: dict[str, NDArray[np.bool_]] = field(
        default_factory=lambda: {name: np.empty(0, bool) for name in COLUMNS}
    )
    size: int = 0

    def extend(self, rows: list[dict[str, Any]]) -> None:
        end = self.size + len(rows)
        for name in COLUMNS:
            values, present = _column(rows, name)
            self.columns[name] = _append(self.columns[name], self.size, values)
            self.present[name] = _append(self.present[name], self.size, present)
        self.size = end

    def drop_after(self, step: int) -> None:
        """Forget rows beyond ``step``; copies, so that views handed out before stay what they were."""
        kept = self.columns["step"][: self.size] <= step
        self.columns = {name: column[: self.size][kept] for name, column in self.columns.items()}
        self.present = {name: column[: self.size][kept] for name, column in self.present.items()}
        self.size = int(kept.sum())

    def view(self) -> "_Table":
        return self._rows(slice(self.size))

    def ordered_with(self, rows: list[dict[str, Any]]) -> "_Table":
        """Return another table that holds ``rows`` too, in order of step."""
        table = self.view()  # its buffers are full, so that what is added goes into new ones
        table.extend(rows)
        return table._rows(np.argsort(table.columns["step"][: table.size], kind="stable"))

    def _rows(self, places: Any) -> "_Table":
        columns = {name: column[places] for name, column in self.columns.items()}
        present = {name: column[places] for name, column in self.present.items()}
        return _Table(columns, present, len(columns["step"]))


def _append(buffer: NDArray[Any], size: int, values: NDArray[Any]) -> NDArray[Any]:
    end = size + len(values)
    if end > len(buffer):
        grown = np.empty(max(end, 2 * len(buffer), 64), buffer.dtype)
        grown[:size] = buffer[:size]
        buffer = grown
    buffer[size:end] = values
    return buffer


def _column(rows: list[dict[str, Any]], name: str) -> tuple[Floats, NDArray[np.bool_]]:
    try:
        return np.array([row[name] for row in rows], np.float64), np.ones(len(rows), bool)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass  # some row lacks the value, or holds something else there
    numbers = [_number(row.get(name)) for row in rows]
    values = np.array([np.nan if number is None else number for number in numbers], np.float64)
    return values, np.array([number is not None for number in numbers], bool)


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


class CurveStore:
    """Follows one ``metrics.jsonl`` and the evaluations beside it; several sessions may poll at once."""

    def __init__(self, path: Path) -> None:
        self._reader = MetricsReader(path, keep_rows=False)
        self._evaluations = MetricsReader(evaluations_path(path))
        self._lock = threading.Lock()
        self._tables = {split: _Table() for split in SPLITS}
        self._generation = 0
        self._resume_points_seen = 0
        self._version = 0
        self._merged: tuple[int, dict[str, _Table]] = (-1, {})

    def poll(self) -> Snapshot:
        """Read what was appended and return all that counts now. Raises OSError for an unreadable file."""
        with self._lock:
            while True:
                self._take(self._reader.poll(BLOCK_BYTES))
                if self._reader.caught_up:
                    break
            generation = self._evaluations.generation
            if self._evaluations.poll() or self._evaluations.generation != generation:
                self._version += 1
            if self._merged[0] != self._version:
                self._merged = (self._version, self._merge())
            return Snapshot(
                self._merged[1],
                tuple(self._reader.resume_points),
                self._reader.damaged_lines + self._evaluations.damaged_lines,
                self._version,
            )

    def _merge(self) -> dict[str, _Table]:
        """Return what counts now: the rows of the training first, then those beside it for other steps."""
        tables = {split: table.view() for split, table in self._tables.items() if table.size}
        beside = evaluations_that_count(self._evaluations.rows, self._reader.resume_points)
        for split in SPLITS[1:]:  # the first one's curve is that of the training's own batches
            known = set(tables[split].columns["step"].tolist()) if split in tables else set()
            rows = [
                row for row in beside if row.get("split") == split and _number(row.get("step")) is not None
            ]
            rows = [row for row in rows if row["step"] not in known]
            if rows:
                tables[split] = tables.get(split, _Table()).ordered_with(rows)
        return tables

    def _take(self, rows: list[dict[str, Any]]) -> None:
        if self._reader.generation != self._generation:
            self._generation = self._reader.generation
            self._tables = {split: _Table() for split in SPLITS}
            self._resume_points_seen = 0
            self._version += 1
        for resume_point in self._reader.resume_points[self._resume_points_seen :]:
            for table in self._tables.values():
                table.drop_after(resume_point.step)
            self._version += 1
        self._resume_points_seen = len(self._reader.resume_points)
        for split, table in self._tables.items():
            part = [row for row in rows if row.get("split") == split and _number(row.get("step")) is not None]
            if part:
                table.extend(part)
                self._version += 1
