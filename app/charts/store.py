"""The metrics of one run as NumPy columns that grow with the run's files."""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app.charts import column_copy
from app.charts.columns import AXES, MAX_COLUMNS, SPLITS, Floats, Table, parse_block
from app.charts.memo import Memo
from labkit.run_directory.digest import own_test_step
from labkit.run_directory.files import AppendedLines
from labkit.run_directory.metrics import (
    MetricsReader,
    ResumePoint,
    evaluations_path,
    evaluations_that_count,
    resume_point_of,
)

__all__ = ["SPLITS", "Curve", "CurveStore", "Floats", "Snapshot"]

BLOCK_BYTES = 1 << 22  # parsed at a time: some 15,000 rows

RESUME_MARK = b'"resumed_at_step"'


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

    tables: dict[str, Table]
    resume_points: tuple[ResumePoint, ...]
    damaged_lines: int
    version: int  # grows with every change: equal versions mean equal contents
    memo: Memo = field(default_factory=Memo)
    own_test_step: int | None = None  # of the test result that the run reported; None: the newest one

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


class CurveStore:
    """Follows ``metrics.jsonl`` and ``evaluations.jsonl`` of a run. Several sessions may poll at once."""

    def __init__(self, path: Path) -> None:
        self._lines = AppendedLines(path)
        self._evaluations = MetricsReader(evaluations_path(path))
        self._lock = threading.Lock()
        self._version = 0
        self._merged: tuple[int, dict[str, Table]] = (-1, {})
        self._memo = Memo()
        self._restart()

    def poll(self) -> Snapshot:
        """Read what was appended and return the current metrics. Raises OSError for an unreadable file."""
        with self._lock:
            if self._lines.place.offset == 0:
                self._recall()
            self._take(self._lines.read(BLOCK_BYTES))
            while not self._lines.caught_up:
                self._take(self._lines.read(BLOCK_BYTES))
            self._keep()
            generation = self._evaluations.generation
            if self._evaluations.poll() or self._evaluations.generation != generation:
                self._version += 1
            if self._merged[0] != self._version:
                self._merged = (self._version, self._merge())
                self._memo = Memo()
            return Snapshot(
                self._merged[1],
                tuple(self._resume_points),
                self._damaged_lines + self._evaluations.damaged_lines,
                self._version,
                self._memo,
                own_test_step(_evaluation_rows(self._tables)),
            )

    def _restart(self) -> None:
        self._restarts = self._lines.restarts
        self._tables = {split: Table() for split in SPLITS}
        self._resume_points: list[ResumePoint] = []
        self._damaged_lines = 0
        self._copied_bytes = 0
        self._version += 1

    def _recall(self) -> None:
        """Take over the copy that another server made of the rows, if there is one."""
        if copy := column_copy.recall(self._lines.path):
            self._lines.go_on_at(copy.place)
            self._tables |= copy.tables
            self._resume_points = list(copy.resume_points)
            self._damaged_lines = copy.damaged_lines
            self._copied_bytes = copy.place.offset

    def _keep(self) -> None:
        """Have the rows copied if many have come since the last copy."""
        place = self._lines.place
        if place.offset - self._copied_bytes > max(column_copy.MIN_BYTES, self._copied_bytes // 2):
            self._copied_bytes = place.offset
            tables = {split: table.view() for split, table in self._tables.items()}
            points = tuple(self._resume_points)
            column_copy.keep(
                self._lines.path, column_copy.ColumnCopy(place, tables, points, self._damaged_lines)
            )

    def _take(self, lines: bytes) -> None:
        if self._lines.restarts != self._restarts:
            self._restart()
        for part, mark in _sessions(lines):
            if part:
                block = parse_block(part)
                self._damaged_lines += block.damaged_lines
                for split, count in block.counts.items():
                    self._tables[split].extend(count, block.columns[split])
                self._version += 1
            if mark:
                self._resume(mark)

    def _resume(self, mark: bytes) -> None:
        """Drop the rows that a resumed run has taken back."""
        try:
            point = resume_point_of(json.loads(mark))
        except (ValueError, KeyError, TypeError, RecursionError):
            point = None
        self._version += 1
        if point is None:
            self._damaged_lines += 1
            return
        self._resume_points.append(point)
        for table in self._tables.values():
            table.drop_after(point.step)

    def _merge(self) -> dict[str, Table]:
        """Return the rows of ``metrics.jsonl``, and those of ``evaluations.jsonl`` for other steps."""
        tables = {split: table.view() for split, table in self._tables.items() if table.size}
        beside = evaluations_that_count(self._evaluations.rows, self._resume_points)
        for split in SPLITS[1:]:  # training rows are only in metrics.jsonl
            known = set(tables[split].columns["step"].tolist()) if split in tables else set()
            rows = [row for row in beside if row.get("split") == split and _is_new(row.get("step"), known)]
            if rows:
                tables[split] = tables.get(split, Table()).ordered_with(rows)
        return tables


def _evaluation_rows(tables: dict[str, Table]) -> Iterator[dict[str, Any]]:
    """Yield what ``own_test_step`` needs of the evaluations of the training itself."""
    for split in SPLITS[1:]:
        columns = tables[split].view().columns if tables[split].size else {}
        names = [name for name in ("step", "accuracy", "f1_micro") if name in columns]
        for values in zip(*(columns[name].tolist() for name in names), strict=True):
            yield {"split": split, **dict(zip(names, values, strict=True))}


def _is_new(step: Any, known: set[float]) -> bool:
    return type(step) in (int, float) and step not in known


def _sessions(lines: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows up to each line that marks a resume point, with that line; at the end an empty one."""
    begin = 0
    while (at := lines.find(RESUME_MARK, begin)) >= 0:
        start, end = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at) + 1
        yield lines[begin:start], lines[start:end]
        begin = end
    yield lines[begin:], b""
