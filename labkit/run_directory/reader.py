"""``MetricsReader``: the rows of ``metrics.jsonl`` that count, those of training as columns."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from labkit.run_directory.columns import Row, Table, columns_of, training_columns
from labkit.run_directory.directory import RunDirectory
from labkit.run_directory.files import AppendedLines
from labkit.run_directory.metrics import (
    MOST_VALIDATED,
    SPARK_POINTS,
    MetricsSummary,
    chosen_step,
    clock_was_set,
    evaluations_path,
    evaluations_that_count,
    own_test_step,
)
from labkit.run_directory.rows import (
    ResumePoint,
    RowReader,
    is_row,
    number,
    parse_lines,
    restored,
    resume_point_of,
)

_Row = TypeVar("_Row", bound=Mapping[str, Any])
BLOCK_BYTES = 1 << 21  # parsed at a time: some 8,000 rows
BLOCK_ROWS = 4_096  # taken at a time where each row may have other names
# Lines with it are parsed at once if they have the same names; others one by one, to the same result.
TRAINING, RESUMED = b'"split": "train"', b'"resumed_at_step"'


class MetricsReader(AppendedLines):
    """Follows ``metrics.jsonl``: each poll reads only the bytes that were appended since the last one.

    Only rows that count are kept: after a resume point at step s, earlier rows with a step greater than s are
    dropped. Lines that aren't JSON objects, and rows without a split and a step, are skipped and counted in
    ``damaged_lines``.

    Attributes:
        train: the rows of training steps.
        evaluations: the rows of other splits, in the order written.
        resume_points: in the order written.
        damaged_lines: how many were skipped.
        duration: seconds of training, without the pauses between two sessions; None before the first row.
            Where the clock was set, a row counts as long as it says itself.
        version: grows with every change: equal versions mean equal contents.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.version = 0
        self._clear()

    def _clear(self) -> None:
        self.train = Table()
        self._evaluations: list[tuple[int, Row]] = []  # with the number of training rows before it
        self.resume_points: list[ResumePoint] = []
        self.damaged_lines = 0
        self.duration: float | None = None
        self._last_time: float | None = None

    def poll(self, max_bytes: int | None = None) -> bool:
        """Read what was appended since the last call. Returns whether anything was.

        A file that was replaced, rewritten or truncated is read from its beginning. A missing file has no
        rows; other errors are raised as OSError.

        Args:
            max_bytes: the most to read in one call, though a longer line is still read whole;
                ``caught_up`` then tells whether the end was reached. None reads to the end that the file has
                now: a writer that is quicker holds nobody up.
        """
        before, end = self.version, None
        while True:
            generation = self.generation
            lines = self.read(max_bytes or BLOCK_BYTES)
            end = self.size if end is None else end
            if self.generation != generation:
                self._clear()
                self.version += 1
            for part, mark in _sessions(lines):
                self._take(part)
                if mark:
                    self._resume(mark)
            if max_bytes is not None or self.caught_up or self.offset >= end:
                return self.version != before

    def _take(self, lines: bytes) -> None:
        if not lines:
            return
        self.version += 1
        others: list[tuple[int, bytes]] = []
        found = training_columns(lines) if TRAINING in lines[: lines.find(b"\n")] else None
        if found is None:  # perhaps there are evaluations between them
            training, others = _apart(lines)
            found = training_columns(training) if training else (0, {})
        evaluations, damaged = _objects([line for _, line in others])
        if found is None or any(row is not None and row.get("split") == "train" for row in evaluations):
            self._take_each(lines)
            return
        count, columns = found
        self.damaged_lines += damaged
        first, known = len(self.train), len(self._evaluations)
        self.train.extend(count, columns)
        for (place, _), row in zip(others, evaluations, strict=True):
            if row is not None:
                self._evaluations.append((first + place, row))
        self._count_time(first, known)

    def _take_each(self, lines: bytes) -> None:
        """Take lines of which some are otherwise than labkit writes them."""
        values, damaged = _objects(lines.split(b"\n"))
        self.damaged_lines += damaged
        first, known = len(self.train), len(self._evaluations)
        training: list[Row] = []
        for row in values:
            if row is not None and row["split"] == "train":
                training.append(row)
            elif row is not None:
                self._evaluations.append((first + len(training), row))
        for start in range(0, len(training), BLOCK_ROWS):
            part = training[start : start + BLOCK_ROWS]
            self.train.extend(len(part), columns_of(part))
        self._count_time(first, known)

    def _count_time(self, first: int, known: int) -> None:
        """Add the time of the rows that were just taken to ``duration``."""
        columns, size = self.train.columns, self.train.size
        when = columns["wall_time"][first:size]
        own = columns.get("seconds_per_step", np.full(size, np.nan))[first:size]
        places = [place - first for place, _ in self._evaluations[known:]]
        rows = [row for _, row in self._evaluations[known:]]
        when = np.insert(when, places, [_or_nan(row.get("wall_time")) for row in rows])
        own = np.insert(own, places, [_or_nan(row.get("seconds")) for row in rows])
        own, when = np.where(np.isfinite(own), own, 0.0)[np.isfinite(when)], when[np.isfinite(when)]
        if not len(when):
            return
        before = math.nan if self._last_time is None else self._last_time
        took = np.diff(when, prepend=before)
        took = np.where(np.isnan(took) | clock_was_set(took, own), own, took)
        self.duration = (self.duration or 0.0) + float(took.sum())
        self._last_time = float(when[-1])

    def _resume(self, mark: bytes) -> None:
        """Drop the rows that a resumed run has taken back."""
        [row] = parse_lines([mark.strip()]) or [None]
        point = resume_point_of(row) if isinstance(row, dict) and "resumed_at_step" in row else None
        self.version += 1
        if point is None:
            self.damaged_lines += 1
            return
        self.resume_points.append(point)
        self._last_time = number(point.wall_time)
        kept = np.cumsum(self.train.drop_after(point.step))
        self._evaluations = [
            (int(kept[place - 1]) if place else 0, row)
            for place, row in self._evaluations
            if row["step"] <= point.step
        ]

    @property
    def order(self) -> NDArray[np.int64]:
        """In which order the rows were written: places of ``train``, and behind them of ``evaluations``."""
        places = [place for place, _ in self._evaluations]
        count = len(self.train)
        return np.insert(np.arange(count), places, count + np.arange(len(places)))

    @property
    def evaluations(self) -> list[Row]:
        return [row for _, row in self._evaluations]

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order written."""
        rows = self.train.rows("train")
        for place, row in reversed(self._evaluations):
            rows.insert(place, row)
        return rows

    def split(self, name: str) -> list[Row]:
        """Return the rows of one split: ``train``, ``validation`` or ``test``."""
        if name == "train":
            return self.train.rows("train")
        return [row for row in self.evaluations if row["split"] == name]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


def read_metrics(run: RunDirectory) -> MetricsReader:
    """Return a reader that has read ``metrics.jsonl`` of a run to its end. Raises OSError as ``poll``."""
    reader = MetricsReader(run.metrics_path)
    reader.poll()
    return reader


def summary_of(reader: MetricsReader) -> MetricsSummary:
    """Return what a table of runs tells of the rows that a reader knows."""
    train = reader.train
    validations, tests = (last_of_each_step(reader.split(name)) for name in ("validation", "test"))
    losses = train.columns.get("loss", np.empty(0))[: len(train)]
    there = train.present.get("loss", np.empty(0, bool))[: len(train)]
    spread = losses[np.linspace(0, len(losses) - 1, min(SPARK_POINTS, len(losses))).astype(int)]
    accuracies = [found for row in validations if (found := number(row.get("accuracy"))) is not None]
    return MetricsSummary(
        file_bytes=reader.offset,
        last_step=int(train.columns["step"][len(train) - 1]) if len(train) else None,
        training_loss=float(losses[-1]) if len(losses) and there[-1] else None,
        duration=reader.duration,
        spark=tuple(spread[np.isfinite(spread)].tolist()),
        validation=max(reversed(validations), key=lambda row: row["step"]) if validations else None,
        best_accuracy=max(accuracies, default=None),
        validated=tuple(row["step"] for row in validations[-MOST_VALIDATED:]),
        chosen_step=chosen_step(validations),
        tests=tuple(tests),
        resume_points=tuple(reader.resume_points),
        damaged_lines=reader.damaged_lines,
    )


def last_of_each_step(rows: Iterable[_Row]) -> list[_Row]:
    """Return the row of each step that was written last: another program may evaluate one again."""
    return list({row["step"]: row for row in rows}.values())


def with_evaluations(reader: MetricsReader) -> list[Row]:
    """Return the rows of ``reader``, then those of ``evaluations.jsonl`` for other splits and steps."""
    return [*reader.rows, *evaluations_beside(reader)]


def evaluations_beside(reader: MetricsReader, *, of_train: bool = False) -> list[Row]:
    """Return the rows of ``evaluations.jsonl`` that count, for splits and steps that ``reader`` has not.

    ``of_train``: those of the training split count though the training has a row of their step.
    """
    rows = RowReader(evaluations_path(reader.path)).poll()
    more = evaluations_that_count(rows, reader.resume_points, reader.evaluations)
    steps = set() if of_train else set(reader.train.columns["step"][: len(reader.train)].tolist())
    return [row for row in more if row["split"] != "train" or row["step"] not in steps]


def own_test_step_of(run: RunDirectory) -> int | None:
    """Return ``own_test_step`` of a run, from its files."""
    return own_test_step(read_metrics(run).evaluations)


def _or_nan(value: Any) -> float:
    found = number(value)
    return math.nan if found is None else found


def _sessions(lines: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows up to each line that marks a resume point, with that line; at the end an empty one."""
    begin = 0
    while (at := lines.find(RESUMED, begin)) >= 0:
        start, end = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at) + 1 or len(lines)
        yield lines[begin:start], lines[start:end]
        begin = end
    yield lines[begin:], b""


def _apart(lines: bytes) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Return the rows of training, and the other lines, each with how many rows of training are before it."""
    training: list[bytes] = []
    others: list[tuple[int, bytes]] = []
    for line in lines.split(b"\n"):
        if TRAINING in line:
            training.append(line + b"\n")
        elif line.strip():
            others.append((len(training), line))
    return b"".join(training), others


def _objects(lines: list[bytes]) -> tuple[list[Row | None], int]:
    """Return the row of each line that isn't blank, and how many are damaged.

    None stands for a damaged line.
    """
    rows: list[Row | None] = []
    damaged = 0
    for value in parse_lines(lines):
        row = restored(value) if isinstance(value, dict) else None
        whole = row is not None and is_row(row)
        damaged += not whole
        rows.append(row if whole else None)
    return rows, damaged
