"""``MetricsReader``: the rows of ``metrics.jsonl`` that count, those of training as columns."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

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
    NOT_FINITE,
    ResumePoint,
    RowReader,
    is_row,
    number,
    parse_lines,
    restored,
    resume_point_of,
)

AXES = ("step", "epoch", "wall_time")
BLOCK_BYTES = 1 << 22  # parsed at a time: some 15,000 rows
BLOCK_ROWS = 4_096  # taken at a time where each row may have other names
MAX_COLUMNS = 1_000
MAX_CELLS = 1 << 27  # 1 GB: a program that adds a new name at every step must not fill the memory
# Lines with it are parsed at once if they have the same names; others one by one, to the same result.
TRAINING, RESUMED = b'"split": "train"', b'"resumed_at_step"'

Floats = NDArray[np.float64]
Row = dict[str, Any]


class Column(NamedTuple):
    """The values of a name, float64 [n]; which rows have one, bool [n]; whether all are whole numbers."""

    values: Floats
    present: NDArray[np.bool_]
    whole: bool


# ---- columns -----------------------------------------------------------------------------------------------


@dataclass
class Table:
    """Rows of one split: a column for each name that a row has a number for.

    The buffers grow by half. Rows of a view are never overwritten.
    """

    columns: dict[str, Floats] = field(default_factory=lambda: {name: np.empty(0) for name in AXES})
    present: dict[str, NDArray[np.bool_]] = field(
        default_factory=lambda: {name: np.empty(0, bool) for name in AXES}
    )
    whole: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(AXES, True))
    size: int = 0

    def __len__(self) -> int:
        return self.size

    def extend(self, count: int, new: Mapping[str, Column]) -> None:
        """Append ``count`` rows. Names that ``new`` lacks get no value in them."""
        end = self.size + count
        for name in dict.fromkeys([*self.columns, *new]):
            values, present, whole = new.get(name) or _absent(count)
            if name not in self.columns:
                full = len(self.columns) >= MAX_COLUMNS or (len(self.columns) + 1) * end > MAX_CELLS
                if full or not present.any():
                    continue
                self.columns[name], self.present[name], self.whole[name] = _absent(self.size)
            self.columns[name] = _append(self.columns[name], self.size, values)
            self.present[name] = _append(self.present[name], self.size, present)
            self.whole[name] &= whole
        self.size = end

    def drop_after(self, step: int) -> NDArray[np.bool_]:
        """Drop rows of later steps than ``step``; return which stay. Earlier views don't change."""
        kept = self.columns["step"][: self.size] <= step
        if not kept.all():
            self._take(lambda column: column[: self.size][kept])
            self.size = int(kept.sum())
        return kept

    def view(self) -> "Table":
        """Return the rows so far, which later calls don't change."""
        return self._copy(lambda column: column[: self.size])

    def ordered(self) -> "Table":
        """Return the rows in order of step."""
        return self.select(np.argsort(self.columns["step"][: self.size], kind="stable"))

    def select(self, places: NDArray[np.int64]) -> "Table":
        """Return the rows at ``places``, in their order."""
        return self._copy(lambda column: column[: self.size][places])

    def rows(self, split: str, start: int = 0) -> list[Row]:
        """Return the rows from the place ``start`` on, each with the numbers that it has."""
        made: list[Row] = [{"split": split} for _ in range(self.size - start)]
        for name, column in self.columns.items():
            values = column[start : self.size]
            there = self.present[name][start : self.size]
            for row, value, has in zip(made, values.tolist(), there.tolist(), strict=True):
                if has:
                    row[name] = int(value) if self.whole[name] else value
        return made

    def _copy(self, select: Callable[[Any], Any]) -> "Table":
        copy = Table(dict(self.columns), dict(self.present), dict(self.whole), self.size)
        copy._take(select)
        return copy

    def _take(self, select: Callable[[Any], Any]) -> None:
        self.columns = {name: select(column) for name, column in self.columns.items()}
        self.present = {name: select(column) for name, column in self.present.items()}


def _append(buffer: NDArray[Any], size: int, values: NDArray[Any]) -> NDArray[Any]:
    end = size + len(values)
    if end > len(buffer):
        grown = np.empty(max(end, len(buffer) * 3 // 2, 64), buffer.dtype)
        grown[:size] = buffer[:size]
        buffer = grown
    buffer[size:end] = values
    return buffer


def _absent(count: int) -> Column:
    return Column(np.full(count, np.nan), np.zeros(count, bool), True)


def columns_of(rows: list[Row]) -> dict[str, Column]:
    """Return the columns of rows, each over all of them; of ``MAX_COLUMNS`` names at the most."""
    names = list(dict.fromkeys(name for row in rows for name in row if name != "split"))[:MAX_COLUMNS]
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: list[Any]) -> Column:
    column, present, whole = _absent(len(values))
    for place, value in enumerate(values):
        if type(value) in (int, float):
            try:
                column[place], present[place] = value, True
            except OverflowError:  # a whole number beyond float64
                continue
            whole &= type(value) is int and abs(value) < 2**53
    return Column(column, present, whole)


def _training_columns(lines: bytes) -> tuple[int, dict[str, Column]] | None:
    """Return the number of ``lines`` and their columns; None unless each is a training row of one form."""
    try:
        names = tuple(json.loads(lines[: lines.index(b"\n")]))
        if not {"split", "step"} <= set(names):
            return None
        decode, split, broken, readers = _decoder(tuple(name for name in names if name != NOT_FINITE))
        rows = decode(lines)
    except (msgspec.DecodeError, ValueError, RecursionError):  # ValueError: not Unicode, or not a name
        return None
    if not _one_to_a_line(lines, len(rows)) or set(map(split, rows)) != {"train"}:
        return None
    columns = {name: _fast_column(list(map(read, rows))) for name, read in readers.items()}
    for place, words in enumerate(map(broken, rows)) if NOT_FINITE.encode() in lines else ():
        for name, word in (words or {}).items():
            if name in columns and word in ("NaN", "Infinity", "-Infinity"):
                columns[name].values[place], columns[name].present[place] = float(word), True
                columns[name] = columns[name]._replace(whole=False)
    step = columns["step"]
    return (len(rows), columns) if step.present.all() and step.whole and step.values.min() >= 0 else None


def _fast_column(values: list[int | float | None]) -> Column:
    try:
        column = np.array(values, np.float64)  # None becomes NaN
    except OverflowError:
        return _column(values)
    present = ~np.isnan(column)  # JSON has no NaN
    whole = type(values[0]) is int and set(map(type, values)) == {int} and np.abs(column).max() < 2**53
    return Column(column, present, bool(whole))


def _one_to_a_line(lines: bytes, count: int) -> bool:
    """Return whether there are ``count`` lines, each with braces at its ends: one whole object."""
    data = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    return bool(
        len(ends) == count
        and ends[-1] == len(data) - 1
        and (data[ends - 1] == ord("}")).all()
        and (data[ends[:-1] + 1] == ord("{")).all()
    )


@lru_cache(maxsize=32)
def _decoder(names: tuple[str, ...]) -> tuple[Callable[[bytes], list[Any]], Any, Any, dict[str, Any]]:
    """Return what decodes the rows of these names, and what reads their split, ``not_finite`` and numbers."""
    places = {f"value_{index}": name for index, name in enumerate(names)}
    kinds: list[Any] = [
        (place, str if name == "split" else int | float | None) for place, name in places.items()
    ]
    kinds.append((NOT_FINITE, dict[str, str] | None, None))
    row = msgspec.defstruct("Row", kinds, rename=places, forbid_unknown_fields=True, gc=False)
    readers: dict[str, Any] = {name: attrgetter(place) for place, name in places.items()}
    split = readers.pop("split")
    decoder: Any = msgspec.json.Decoder(row)
    return decoder.decode_lines, split, attrgetter(NOT_FINITE), readers


# ---- the reader --------------------------------------------------------------------------------------------


class MetricsReader(AppendedLines):
    """Follows ``metrics.jsonl``: each poll reads only the bytes that were appended since the last one.

    Only rows that count are kept: after a resume point at step s, earlier rows with a step greater than s are
    dropped. Lines that aren't JSON objects, and rows with a split whose step is no whole number, are skipped
    and counted in ``damaged_lines``.

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
                ``caught_up`` then tells whether the end was reached. None reads to the end.
        """
        before = self.version
        while True:
            generation = self.generation
            lines = self.read(max_bytes or BLOCK_BYTES)
            if self.generation != generation:
                self._clear()
                self.version += 1
            for part, mark in _sessions(lines):
                self._take(part)
                if mark:
                    self._resume(mark)
            if max_bytes is not None or self.caught_up:
                return self.version != before

    def _take(self, lines: bytes) -> None:
        if not lines:
            return
        self.version += 1
        others: list[tuple[int, bytes]] = []
        found = _training_columns(lines) if TRAINING in lines[: lines.find(b"\n")] else None
        if found is None:  # perhaps there are evaluations between them
            training, others = _apart(lines)
            found = _training_columns(training) if training else (0, {})
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
    train, validations = reader.train, reader.split("validation")
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
        tests=tuple(reader.split("test")),
        resume_points=tuple(reader.resume_points),
        damaged_lines=reader.damaged_lines,
    )


def with_evaluations(reader: MetricsReader) -> list[Row]:
    """Return the rows of ``reader``, then those of ``evaluations.jsonl`` for other splits and steps."""
    return [*reader.rows, *evaluations_beside(reader)]


def evaluations_beside(reader: MetricsReader) -> list[Row]:
    """Return the rows of ``evaluations.jsonl`` that count, for splits and steps that ``reader`` has not."""
    rows = RowReader(evaluations_path(reader.path)).poll()
    more = evaluations_that_count(rows, reader.resume_points, reader.evaluations)
    steps = set(reader.train.columns["step"][: len(reader.train)].tolist()) if more else set()
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

    None stands for a damaged line, and for one without a split, which is no row.
    """
    rows: list[Row | None] = []
    damaged = 0
    for value in parse_lines(lines):
        row = restored(value) if isinstance(value, dict) else None
        whole = row is not None and is_row(row)
        damaged += row is None or ("split" in row and not whole)
        rows.append(row if whole else None)
    return rows, damaged
