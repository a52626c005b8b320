"""All metrics of a run as one CSV or Parquet file, a row for each row that counts.

The rows are read twice, some thousand at a time: first for the columns and the resume points, then to write
them. The memory that this takes doesn't grow with the run.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import InputError, require_extra
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import replacing
from labkit.run_directory.files import LONGEST_LINE, open_run_file
from labkit.run_directory.metrics import (
    MetricsReader,
    ResumePoint,
    evaluations_path,
    evaluations_that_count,
    parse_lines,
    resume_point_of,
)

__all__ = ["FORMATS", "Written", "write_metrics"]

BLOCK_BYTES = 1 << 21  # of lines that are parsed at a time: some 7,000 rows
MAX_COLUMNS = 1_000  # a program that adds a new name at every step must not fill the memory
FIRST = ("step", "epoch")  # columns, after ``split``

Row = dict[str, Any]
Block = list[Row]


@dataclass(frozen=True)
class Written:
    """How many rows and columns were written, and sentences about what was left out."""

    rows: int
    columns: int
    notes: tuple[str, ...]


def write_metrics(run: RunDirectory, path: Path, format: str | None = None) -> Written:
    """Write the rows of ``metrics.jsonl`` that count, then those of ``evaluations.jsonl`` for other steps.

    A column stands for each name with a number in some row, and ``split`` for the text of that name. What is
    no number is left out. In CSV a value that a row lacks is empty, and the others are written as ``NaN``,
    ``Infinity`` and ``-Infinity``; in Parquet it is null.

    Args:
        run: may be training meanwhile; what it writes after the start is not in the file.
        path: is replaced, once all rows are written.
        format: a key of ``FORMATS``; None: the ending of ``path``.

    Raises InputError if a package is missing or no line is a row, OSError for files that can't be read or
    written.
    """
    write = FORMATS[format or path.suffix]
    contents = _Contents(run)
    contents.check_any()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        rows = write(temporary, contents)
    return Written(rows, len(contents.columns) + 1, tuple(contents.notes()))


@dataclass
class _Seen:
    """What the first reading finds: columns by name (whether all values are int64), resume points."""

    columns: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(FIRST, True))
    resume_points: list[tuple[int, ResumePoint]] = field(default_factory=list)  # with their row's number
    damaged: int = 0
    rows: int = 0
    left_out: bool = False

    def take(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            kind = type(value)
            if (kind is not float and kind is not int) or name == "split":
                continue
            whole = kind is int and -(2**63) <= value < 2**63
            if name in self.columns:
                self.columns[name] &= whole
            elif len(self.columns) < MAX_COLUMNS:
                self.columns[name] = whole
            else:
                self.left_out = True


class _Contents:
    """The rows of a run up to the end of its files at this moment."""

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.metrics_path
        try:
            self._size = self._path.stat().st_size
        except FileNotFoundError:
            self._size = 0
        self._seen = _Seen()
        beside = MetricsReader(evaluations_path(self._path))
        beside.poll()
        known = self._read({_key(row) for row in beside.rows})
        points = [point for _, point in self._seen.resume_points]
        self._more = [row for row in evaluations_that_count(beside.rows, points) if _key(row) not in known]
        for row in self._more:
            self._seen.take(row)

    @property
    def columns(self) -> dict[str, bool]:
        """The names, each with whether all its values are whole numbers of 64 bits."""
        return self._seen.columns

    def check_any(self) -> None:
        """Raise InputError if there are lines, but none of them is a row."""
        readable = self._seen.rows or self._seen.resume_points or self._more
        if self._seen.damaged and not readable:
            lines = counted(self._seen.damaged, "line")
            raise InputError(
                f"{self._path} is damaged: it has {lines} and none is a row, so nothing was written; restore "
                "the file from a copy"
            )

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each thing that was left out."""
        if not self._seen.rows and not self._more:
            yield f"{self._path} {'has no rows' if self._path.exists() else 'is missing'}"
        if points := len(self._seen.resume_points):
            yield f"rows that were made again after {counted(points, 'resume point')} are left out"
        if self._seen.damaged:
            yield f"left out: {counted(self._seen.damaged, 'damaged line')}"
        if self._seen.left_out:
            yield f"the run has more than {MAX_COLUMNS:,} metrics; the first of them are in the file"

    def blocks(self) -> Iterator[Block]:
        """Yield the rows that count, in the order written."""
        number = 0
        pending = list(self._seen.resume_points)
        for values in self._values():
            kept = []
            for value in values:
                number += 1
                if not isinstance(value, dict) or "resumed_at_step" in value:
                    continue
                while pending and pending[0][0] < number:
                    pending.pop(0)
                if pending and _step(value) > self._least[-len(pending)]:
                    continue
                kept.append(value)
            yield kept
        yield self._more

    def _read(self, beside: set[tuple[str, float]]) -> set[tuple[str, float]]:
        """Read all rows once. Returns which of ``beside`` are there."""
        seen, number = self._seen, 0
        for values in self._values():
            for value in values:
                number += 1
                if not isinstance(value, dict):
                    seen.damaged += 1
                elif "resumed_at_step" in value:
                    point = resume_point_of(value)
                    if point is None:
                        seen.damaged += 1
                    else:
                        seen.resume_points.append((number, point))
                else:
                    seen.rows += 1
                    seen.take(value)
        # The smallest step of each resume point and those after it: rows beyond it don't count.
        self._least: list[int] = []
        for _, point in reversed(seen.resume_points):
            self._least.insert(0, min([point.step, *self._least[:1]]))
        if not beside:
            return set()
        self._more = []
        return {_key(row) for block in self.blocks() for row in block if _key(row) in beside}

    def _values(self) -> Iterator[Iterator[Any]]:
        """Yield the values of the lines, a block at a time; None for a line that isn't JSON."""
        if not self._size:
            return
        with open_run_file(self._path) as file:
            left, torn = self._size, b""
            while left > 0 and (data := file.read(min(BLOCK_BYTES, left))):
                left -= len(data)
                end = data.rfind(b"\n") + 1
                if end:
                    yield parse_lines((torn + data[:end]).splitlines())
                    torn = data[end:]
                elif len(torn) < LONGEST_LINE:
                    torn += data  # of a longer line, what follows is left out: it won't parse anyway


def _key(row: Mapping[str, Any]) -> tuple[str, float]:
    return str(row.get("split")), _step(row)


def _step(row: Mapping[str, Any]) -> float:
    step = row.get("step")
    return step if isinstance(step, int | float) else 0


def _number(value: Any) -> int | float | None:
    """Return a number that float64 can hold, or None."""
    if type(value) is float:
        return value
    if type(value) is not int:
        return None
    return value if -(2**1023) < value < 2**1023 else None


def _split(row: Mapping[str, Any]) -> str | None:
    split = row.get("split")
    return _text(split) if isinstance(split, str) else None


def _text(name: str) -> str:
    return name.encode(errors="replace").decode()


# ---- formats -----------------------------------------------------------------------------------------------


def _write_csv(path: Path, contents: _Contents) -> int:
    names, rows = list(contents.columns), 0
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["split", *map(_text, names)])
        for block in contents.blocks():
            writer.writerows(
                [_split(row) or "", *(_as_text(row.get(name)) for name in names)] for row in block
            )
            rows += len(block)
    return rows


def _as_text(value: Any) -> str:
    if type(value) is float and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    number = _number(value)
    return "" if number is None else repr(number)


def _write_parquet(path: Path, contents: _Contents) -> int:
    require_extra("app", ("pyarrow",), "Parquet")
    import pyarrow
    import pyarrow.parquet

    kinds = {
        name: pyarrow.int64() if whole else pyarrow.float64() for name, whole in contents.columns.items()
    }
    fields = [("split", pyarrow.string()), *((_text(name), kind) for name, kind in kinds.items())]
    if len({name for name, _ in fields}) < len(fields):
        raise InputError("two metrics of the run have names that Parquet can't tell apart; write CSV")
    schema, rows = pyarrow.schema(fields), 0
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for block in contents.blocks():
            if not block:
                continue
            arrays = [pyarrow.array([_split(row) for row in block], pyarrow.string())]
            arrays += [_array(pyarrow, block, name, kind) for name, kind in kinds.items()]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
            rows += len(block)
    return rows


def _array(pyarrow: Any, block: Sequence[Row], name: str, kind: Any) -> Any:
    values = [_number(row.get(name)) for row in block]
    if kind == pyarrow.float64():
        values = [None if value is None else float(value) for value in values]
    return pyarrow.array(values, kind)


#: The function that writes each format, by the ending of its files.
FORMATS: dict[str, Callable[[Path, _Contents], int]] = {".csv": _write_csv, ".parquet": _write_parquet}
