"""The metrics of one run as NumPy columns that grow with the run's files."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.run_directory.metrics import MetricsReader, ResumePoint, evaluations_path, evaluations_that_count

__all__ = ["SPLITS", "Curve", "CurveStore", "Snapshot"]

SPLITS = ("train", "validation", "test")
AXES = ("step", "epoch", "wall_time")
MAX_COLUMNS = 100  # of a split: a program that adds a new name at every step must not fill the memory

BLOCK_BYTES = 1 << 22  # parsed at a time: some 14,000 rows, which take about 12 MB as dicts

NUMBERS = frozenset({int, float})  # the types of JSON's numbers; bool is none of them

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One metric of one split in order of step, float64 [points] each.

    ``y`` may hold NaN and infinities, as the run wrote them. ``wall_time`` is in seconds since 1970.
    """

    step: Floats
    epoch: Floats
    wall_time: Floats
    y: Floats

    def __len__(self) -> int:
        return len(self.y)

    def last(self) -> float | None:
        """Return the value of the last step; None if there is none."""
        return float(self.y[-1]) if len(self.y) else None


@dataclass(frozen=True)
class Snapshot:
    """The metrics of a run at one poll. Later polls don't change it."""

    tables: dict[str, "_Table"]
    resume_points: tuple[ResumePoint, ...]
    damaged_lines: int
    version: int  # grows with every change: equal versions mean equal contents

    def curve(self, split: str, value: str) -> Curve:
        """Return the metric ``value`` of ``split``. Rows that don't have it are left out."""
        table = self.tables.get(split)
        if table is None or value not in table.columns:
            return Curve(*(np.empty(0) for _ in range(4)))
        present = table.present[value]
        columns = [table.columns[name] for name in (*AXES, value)]
        if not present.all():
            columns = [column[present] for column in columns]
        return Curve(*columns)

    def metrics(self, splits: Sequence[str] = SPLITS) -> list[str]:
        """Return the names of all metrics that a row of one of ``splits`` has, as first recorded."""
        tables = [self.tables[split] for split in splits if split in self.tables]
        names = (name for table in tables for name, present in table.present.items() if present.any())
        return [name for name in dict.fromkeys(names) if name not in AXES]

    def leaves_out_metrics(self) -> bool:
        """Return whether a split has more metrics than the ``MAX_COLUMNS`` columns that are kept."""
        return any(len(table.columns) >= MAX_COLUMNS for table in self.tables.values())

    def last_step(self) -> int:
        """Return the last recorded training step; 0 before the first."""
        last = self.curve("train", "loss")
        return int(last.step[-1]) if len(last) and np.isfinite(last.step[-1]) else 0


@dataclass
class _Table:
    """The rows of one split: a column for each name that a row has a number for.

    The buffers grow by doubling. Rows of a view are never overwritten.
    """

    columns: dict[str, Floats] = field(default_factory=lambda: {name: np.empty(0) for name in AXES})
    present: dict[str, NDArray[np.bool_]] = field(
        default_factory=lambda: {name: np.empty(0, bool) for name in AXES}
    )
    size: int = 0

    def extend(self, rows: list[dict[str, Any]]) -> None:
        end = self.size + len(rows)
        new = _columns(rows, self.columns)
        for name, (values, present) in new.items():
            if name not in self.columns:
                if len(self.columns) >= MAX_COLUMNS or not present.any():
                    continue
                self.columns[name], self.present[name] = _absent(self.size)
            self.columns[name] = _append(self.columns[name], self.size, values)
            self.present[name] = _append(self.present[name], self.size, present)
        self.size = end

    def drop_after(self, step: int) -> None:
        """Drop rows of later steps than ``step``. The buffers are copied, so earlier views don't change."""
        kept = self.columns["step"][: self.size] <= step
        self.columns = {name: column[: self.size][kept] for name, column in self.columns.items()}
        self.present = {name: column[: self.size][kept] for name, column in self.present.items()}
        self.size = int(kept.sum())

    def view(self) -> "_Table":
        return self._rows(slice(self.size))

    def ordered_with(self, rows: list[dict[str, Any]]) -> "_Table":
        """Return a new table that also holds ``rows``, in order of step."""
        table = self.view()  # its buffers are full, so ``extend`` makes new ones
        table.extend(rows)
        return table._rows(np.argsort(table.columns["step"][: table.size], kind="stable"))

    def _rows(self, indices: Any) -> "_Table":
        columns = {name: column[indices] for name, column in self.columns.items()}
        present = {name: column[indices] for name, column in self.present.items()}
        return _Table(columns, present, len(columns["step"]))


def _append(buffer: NDArray[Any], size: int, values: NDArray[Any]) -> NDArray[Any]:
    end = size + len(values)
    if end > len(buffer):
        grown = np.empty(max(end, 2 * len(buffer), 64), buffer.dtype)
        grown[:size] = buffer[:size]
        buffer = grown
    buffer[size:end] = values
    return buffer


def _absent(count: int) -> tuple[Floats, NDArray[np.bool_]]:
    return np.full(count, np.nan), np.zeros(count, bool)


def _columns(rows: list[dict[str, Any]], known: Iterable[str]) -> dict[str, tuple[Floats, NDArray[np.bool_]]]:
    """Return the values of each name in ``known`` or in ``rows``, and where they are numbers, [rows] each."""
    names = dict.fromkeys(known)
    if new := set().union(*rows).difference(names, ("split",)):
        names |= dict.fromkeys(name for row in rows for name in row if name in new)
    return {name: _column(rows, name) for name in names}


def _column(rows: list[dict[str, Any]], name: str) -> tuple[Floats, NDArray[np.bool_]]:
    try:
        values = list(map(itemgetter(name), rows))
        if NUMBERS.issuperset(map(type, values)):  # NumPy would also take "1.5", None and True
            return np.array(values, np.float64), np.ones(len(rows), bool)
    except (KeyError, OverflowError):
        pass  # some row lacks the value, or holds an integer beyond float64
    column, present = _absent(len(rows))
    for index, row in enumerate(rows):
        if name in row and (number := _number(row[name])) is not None:
            column[index], present[index] = number, True
    return column, present


def _number(value: Any) -> float | None:
    try:
        return float(value) if type(value) in NUMBERS else None
    except OverflowError:
        return None


class CurveStore:
    """Follows ``metrics.jsonl`` and ``evaluations.jsonl`` of a run. Several sessions may poll at once."""

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
        """Read what was appended and return the current metrics. Raises OSError for an unreadable file."""
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
        """Return the rows of ``metrics.jsonl``, and those of ``evaluations.jsonl`` for other steps."""
        tables = {split: table.view() for split, table in self._tables.items() if table.size}
        beside = evaluations_that_count(self._evaluations.rows, self._reader.resume_points)
        for split in SPLITS[1:]:  # training rows are only in metrics.jsonl
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
        parts: dict[Any, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        for row in rows:
            split = row.get("split")
            if type(split) is str and split in parts and _number(row.get("step")) is not None:
                parts[split].append(row)
        for split, part in parts.items():
            if part:
                self._tables[split].extend(part)
                self._version += 1
