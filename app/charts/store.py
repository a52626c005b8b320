"""The metrics of one run as NumPy columns that grow with the run's files."""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from labkit.run_directory.metrics import (
    damaged_rows,
    evaluations_path,
    evaluations_that_count,
    own_test_step,
)
from labkit.run_directory.reader import AXES, Floats, MetricsReader, Table, columns_of
from labkit.run_directory.rows import ResumePoint, RowReader

__all__ = ["MAX_METRICS", "SPLITS", "Curve", "CurveStore", "Floats", "Memo", "Snapshot"]

SPLITS = ("train", "validation", "test")
MAX_METRICS = 100  # a program that adds a new name at every step must not fill the page

MOST_BYTES = 1 << 27
Made = TypeVar("Made")


class Memo:
    """Values by their key, up to ``most_bytes`` together: the ones used longest ago are forgotten first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._values: dict[Hashable, tuple[Any, int]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the value of ``key``, which ``make`` computes unless it is known.

        Two sessions that ask at once may both compute it.
        """
        with self._lock:
            if key in self._values:
                self._values[key] = self._values.pop(key)
                found: Made = self._values[key][0]
                return found
        made = make()
        size = _bytes_of(made)
        with self._lock:
            self._bytes += size - self._values.pop(key, (None, 0))[1]
            self._values[key] = (made, size)
            while self._bytes > self._most_bytes and len(self._values) > 1:
                self._bytes -= self._values.pop(next(iter(self._values)))[1]
        return made


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
    duration: float | None = None  # seconds of training, without the pauses between two sessions

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
        """Return the first ``MAX_METRICS`` metrics that a row of one of ``splits`` has, as first recorded."""
        tables = [self.tables[split] for split in splits if split in self.tables]
        names = (name for table in tables for name, present in table.present.items() if present.any())
        return [name for name in dict.fromkeys(names) if name not in AXES][:MAX_METRICS]

    def leaves_out_metrics(self) -> bool:
        """Return whether a split has more metrics than ``MAX_METRICS``."""
        return any(len(table.columns) > MAX_METRICS + len(AXES) for table in self.tables.values())

    def last_step(self) -> int:
        """Return the last recorded training step; 0 before the first."""
        last = self.curve("train", "loss")
        return int(last.step[-1]) if len(last) and np.isfinite(last.step[-1]) else 0


class CurveStore:
    """Follows ``metrics.jsonl`` and ``evaluations.jsonl`` of a run. Several sessions may poll at once."""

    def __init__(self, path: Path) -> None:
        self._reader = MetricsReader(path)
        self._beside = RowReader(evaluations_path(path))
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        self._snapshot = Snapshot({}, (), 0, -1)

    def poll(self) -> Snapshot:
        """Read what was appended and return the current metrics. Raises OSError for an unreadable file."""
        with self._lock:
            self._reader.poll()
            beside = self._beside
            beside.poll()
            seen = (self._reader.version, beside.generation, len(beside.rows), beside.damaged_lines)
            if seen != self._seen:
                self._seen = seen
                self._snapshot = self._made(self._snapshot.version + 1)
            return self._snapshot

    def _made(self, version: int) -> Snapshot:
        reader, beside = self._reader, self._beside
        rows, points = reader.evaluations, reader.resume_points
        rows += evaluations_that_count(beside.rows, points, rows)
        tables = {"train": reader.train.view()} if len(reader.train) else {}
        for split in SPLITS[1:]:
            chosen = [row for row in rows if row.get("split") == split]
            if chosen:
                table = Table()
                table.extend(len(chosen), columns_of(chosen))
                tables[split] = table.ordered()
        return Snapshot(
            tables,
            tuple(points),
            reader.damaged_lines + beside.damaged_lines + damaged_rows(beside.rows),
            version,
            own_test_step=own_test_step(reader.evaluations),
            duration=reader.duration,
        )


def _bytes_of(value: Any) -> int:
    """Return the size of bytes, of arrays, and of those in a list or in an object with arrays."""
    if isinstance(value, bytes):
        return len(value)
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "__dict__"):
        value = list(vars(value).values())
    return sum(map(_bytes_of, value)) if isinstance(value, list | tuple) else 0
