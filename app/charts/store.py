"""The metrics of one run as NumPy columns that grow with its files, and the axes they are drawn over."""

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from labkit.config.config import recorded_config
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.columns import AXES as POSITIONS
from labkit.run_directory.columns import Floats, Table, columns_of
from labkit.run_directory.layers import LayerReader
from labkit.run_directory.metrics import (
    clock_was_set,
    damaged_rows,
    evaluations_path,
    evaluations_that_count,
    own_test_step,
)
from labkit.run_directory.reader import MetricsReader
from labkit.run_directory.rows import ResumePoint, RowReader

SPLITS = ("train", "validation", "test")
MAX_METRICS = 100  # a program that adds a new name at every step must not fill the page

MOST_BYTES = 1 << 27
BLOCK_BYTES = 1 << 22  # parsed at a time
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


@st.cache_resource(max_entries=64, show_spinner=False)
def store_of(kind: type[Made], path: Path) -> Made:
    """Return what all sessions follow a file or a folder with: a ``kind`` of store, made once for a path."""
    return kind(path)  # type: ignore[call-arg]


def follow(
    reader: RowReader | LayerReader, take: Callable[[list[Any]], object], forget: Callable[[], object]
) -> bool:
    """Hand what was appended to a file to ``take``, after ``forget`` where the file was started over.

    Returns whether there was anything. Raises OSError for an unreadable file.
    """
    generation, changed = reader.generation, False
    while True:
        rows = reader.poll(BLOCK_BYTES)
        if reader.generation != generation:
            generation, changed = reader.generation, True
            forget()
        if rows:
            changed = True
            take(rows)
        if reader.caught_up:
            return changed


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

    def latest(self, step: Floats) -> NDArray[np.intp]:
        """Return the index of the last point up to each of ``step``, [n]; -1 before the first point."""
        return np.searchsorted(self.step, step, "right") - 1


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
    examples_per_step: float = np.nan

    def curve(self, split: str, value: str) -> Curve:
        """Return the metric ``value`` of ``split``. Rows that don't have it are left out."""
        table = self.tables.get(split)
        if table is None or value not in table.columns:
            return Curve(*(np.empty(0) for _ in range(4)))
        present = table.present[value]
        columns = [table.columns[name] for name in (*POSITIONS, value)]
        if not present.all():
            columns = [column[present] for column in columns]
        return Curve(*columns)

    def metrics(self, splits: Sequence[str] = SPLITS) -> list[str]:
        """Return the first ``MAX_METRICS`` metrics that a row of one of ``splits`` has, as first recorded."""
        tables = [self.tables[split] for split in splits if split in self.tables]
        names = (name for table in tables for name, present in table.present.items() if present.any())
        # Half of a surrogate pair, which JSON can escape, is no text that a page can hold.
        known = (name for name in dict.fromkeys(names) if name.encode(errors="ignore").decode() == name)
        return [name for name in known if name not in POSITIONS][:MAX_METRICS]

    def full_names(self) -> dict[str, tuple[str, str]]:
        """Return split and metric of each ``SPLIT/METRIC``, those of the training first."""
        return {f"{split}/{name}": (split, name) for split in SPLITS for name in self.metrics([split])}

    def leaves_out_metrics(self) -> bool:
        """Return whether a split has more metrics than ``MAX_METRICS``."""
        return any(len(table.columns) > MAX_METRICS + len(POSITIONS) for table in self.tables.values())

    def last_step(self) -> int:
        """Return the last recorded training step; 0 before the first."""
        last = self.curve("train", "loss")
        return int(last.step[-1]) if len(last) and np.isfinite(last.step[-1]) else 0


class CurveStore:
    """Follows ``metrics.jsonl`` and ``evaluations.jsonl`` of a run. Several sessions may poll at once."""

    def __init__(self, path: Path) -> None:
        self._run = RunDirectory(path.parent)
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
            examples_per_step=_examples_per_step(self._run),
        )


def _examples_per_step(run: RunDirectory) -> float:
    """Return how many examples a step trains on; NaN where the configuration doesn't tell."""
    try:
        return float(recorded_config(run).data.images_per_step)
    except InputError:
        return np.nan


def _bytes_of(value: Any) -> int:
    """Return the size of bytes, of arrays, and of those in a list or in an object with arrays.

    A view counts nothing: it is of a column of the run, which is there anyway.
    """
    if isinstance(value, bytes):
        return len(value)
    if hasattr(value, "nbytes"):
        return int(value.nbytes) if value.base is None else 0
    if hasattr(value, "__dict__"):
        value = list(vars(value).values())
    return sum(map(_bytes_of, value)) if isinstance(value, list | tuple) else 0


# The name of each axis in the URL, its label in the controls, and its title below the charts.
AXES = {
    "step": ("Step", "Step"),
    "epoch": ("Epoch", "Epoch"),
    "examples": ("Examples", "Examples trained on"),
    "training": ("Training time", "Time spent training, without pauses"),
    "clock": ("Wall clock", "Wall clock"),
}


@dataclass(frozen=True)
class Timeline:
    """When the training steps of a run were made, float64 [steps] each.

    ``seconds`` counts from the first row, and leaves out the pauses before the run was resumed. ``clock``
    never goes back: if it ``was_set_back``, earlier rows are moved, and the last ones stand where they were
    made. ``metrics``: of the run, whose values are axes, too.
    """

    step: Floats
    epoch: Floats
    seconds: Floats
    clock: Floats
    was_set_back: bool = False
    metrics: Snapshot = field(default_factory=lambda: Snapshot({}, (), 0, -1))

    def on(self, axis: str) -> Floats:
        """Return where the steps are on an axis: a key of ``AXES``, or a metric such as ``train/loss``."""
        return self.x(Curve(self.step, self.epoch, self.clock, self.step), axis)

    def x(self, curve: Curve, axis: str) -> Floats:
        """Return the horizontal positions of a curve of the run; NaN where they are unknown.

        They ascend on all of ``AXES``, but not on a metric that goes up and down.
        """
        if axis == "step":
            return curve.step
        if axis == "epoch":
            return curve.epoch
        if axis == "examples":
            return curve.step * self.metrics.examples_per_step
        if axis not in ("training", "clock"):  # a metric: its last value up to each step
            split, _, name = axis.partition("/")
            found = self.metrics.curve(split, name)
            latest = found.latest(curve.step)
            return np.where(latest >= 0, np.append(found.y, np.nan)[latest], np.nan)
        if axis == "clock" and not self.was_set_back:
            return steady(curve.wall_time)
        if not len(self.step):
            return np.full(len(curve), np.nan)
        return np.interp(curve.step, self.step, self.clock if axis == "clock" else self.seconds)

    def convert(self, window: tuple[float, float], axis: str, to: str) -> tuple[float, float] | None:
        """Return the part of axis ``to`` that shows the steps of ``window``; None if there are none."""
        if not len(self.step):
            return None
        here, there = self.on(axis), self.on(to)
        if axis in AXES and to in AXES:
            low, high = np.interp(window, here, there)
        else:
            inside = there[(here >= window[0]) & (here <= window[1]) & np.isfinite(there)]
            low, high = inside.min(initial=np.inf), inside.max(initial=-np.inf)
        return (float(low), float(high)) if high > low else None


def timeline_of(metrics: Snapshot) -> Timeline:
    """Return the timeline of a run. It is made once for each change of the metrics."""
    return metrics.memo.get("timeline", lambda: _timeline(metrics))


def _timeline(metrics: Snapshot) -> Timeline:
    table = metrics.tables.get("train")
    if table is None:
        empty = np.empty(0)
        return Timeline(empty, empty, empty, empty)
    step, wall_time = table.columns["step"], _known(table.columns["wall_time"])
    own = np.nan_to_num(table.columns.get("seconds_per_step", np.zeros(len(step))), posinf=0.0, neginf=0.0)
    seconds = _seconds(step, wall_time, own, metrics.resume_points)
    set_back = bool((np.diff(wall_time) < 0).any())
    known = replace(metrics, memo=Memo())  # without the one that keeps this timeline
    return Timeline(step, table.columns["epoch"], seconds, steady(wall_time, own), set_back, known)


def steady(wall_time: Floats, own: Floats | float = 0.0) -> Floats:
    """Return the times of rows, which never go back. Rows before the clock was set back are moved.

    Args:
        wall_time: float64 [rows]; NaN where it is unknown, which becomes the time of the row before.
        own: seconds that a row took itself: its distance from the row before, if the clock was set back.
    """
    wall_time = _known(wall_time)
    took = np.diff(wall_time, prepend=wall_time[:1])
    back = took < 0
    if not back.any():
        return wall_time
    missing = np.where(back, own - took, 0.0)  # by how much the rows before it are moved
    return wall_time - (missing.sum() - np.cumsum(missing))


def _known(wall_time: Floats) -> Floats:
    """Return the times with those that aren't known replaced by the one before. Leading ones stay NaN."""
    finite = np.isfinite(wall_time)
    if finite.all():
        return wall_time
    before = np.maximum.accumulate(np.where(finite, np.arange(len(wall_time)), 0))
    return np.where(np.isfinite(wall_time[before]), wall_time[before], np.nan)


def _seconds(step: Floats, wall_time: Floats, own: Floats, resume_points: Sequence[ResumePoint]) -> Floats:
    took = np.diff(wall_time, prepend=wall_time[:1])
    took = np.where(np.isfinite(took), np.where(clock_was_set(took, own), own, took), 0.0)
    for point in resume_points:
        first = int(np.searchsorted(step, point.step, "right"))
        if 0 < first < len(took):  # the first step after a pause counts as long as the second
            took[first] = took[first + 1] if first + 1 < len(took) else 0.0
    return np.where(np.isfinite(wall_time), np.cumsum(took), np.nan)
