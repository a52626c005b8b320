"""Rows of numbers as columns, and rows of training read straight into them."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from labkit.run_directory.rows import NOT_FINITE

AXES = ("step", "epoch", "wall_time")
MAX_COLUMNS = 1_000
MAX_CELLS = 1 << 27  # 1 GB: a program that adds a new name at every step must not fill the memory

Floats = NDArray[np.float64]
Row = dict[str, Any]


class Column(NamedTuple):
    """The values of a name, float64 [n]; which rows have one, bool [n]; whether all are whole numbers."""

    values: Floats
    present: NDArray[np.bool_]
    whole: bool


@dataclass
class Table:
    """Rows of one split: a column for each name that a row has a number for.

    The buffers double. Rows of a view are never overwritten.
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
        grown = np.empty(max(end, 2 * len(buffer), 64), buffer.dtype)
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


def training_columns(lines: bytes) -> tuple[int, dict[str, Column]] | None:
    """Return the number of ``lines`` and their columns; None unless each is a training row of one form."""
    try:
        names = tuple(json.loads(lines[: lines.index(b"\n")]))
        if not {"split", "step"} <= set(names):
            return None
        decode, broken, readers = _decoder(tuple(name for name in names if name != NOT_FINITE))
        rows = decode(lines)
    except (msgspec.DecodeError, ValueError, RecursionError):  # ValueError: not Unicode, or not a name
        return None
    if not _one_to_a_line(lines, len(rows)):
        return None
    columns = None if broken(rows[0]) else _packed_columns(rows, readers)
    if columns is None:
        columns = {
            name: _fast_column(list(map(read, rows))) for name, read in readers.items() if name != "split"
        }
        for place, words in enumerate(map(broken, rows)) if NOT_FINITE.encode() in lines else ():
            for name, word in (words or {}).items():
                if name in columns and word in ("NaN", "Infinity", "-Infinity"):
                    columns[name].values[place], columns[name].present[place] = float(word), True
                    columns[name] = columns[name]._replace(whole=False)
    step = columns["step"]
    return (len(rows), columns) if step.present.all() and step.whole and step.values.min() >= 0 else None


# The first byte of a number of a fixed size in MessagePack, and what follows it. Below 128 it is the number.
_PACKED = {0xCB: ">f8", 0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xCF: ">u8"}


def _packed_columns(rows: list[Any], names: Iterable[str]) -> dict[str, Column] | None:
    """Return the columns of rows, in a third of the time of ``_fast_column``; None unless they are alike.

    Alike are rows whose numbers take the same bytes in MessagePack: each is at the same place of every row.
    """
    try:
        first, packed, count = msgspec.msgpack.encode(rows[0]), msgspec.msgpack.encode(rows), len(rows)
    except OverflowError:  # a whole number beyond 64 bits
        return None
    head = 1 if count < 16 else 3 if count < 2**16 else 5  # bytes that say how many rows there are
    if len(packed) != head + count * len(first):
        return None
    table = np.frombuffer(packed, np.uint8)[head:].reshape(count, len(first))
    place = 1 if first[0] < 0x90 else 3  # behind the number of values, which not_finite makes another one
    if not (table[:, :place] == table[0, :place]).all():
        return None
    columns = {}
    for name in names:
        place += len(msgspec.msgpack.encode(name))
        if name == "split":
            place += len(msgspec.msgpack.encode("train"))
            continue
        mark = first[place]
        kind = _PACKED.get(mark, "u1")
        alike = table[:, place] == mark if mark in _PACKED else table[:, place] < 128
        if not alike.all():
            return None
        begin = place + (mark in _PACKED)
        place = begin + np.dtype(kind).itemsize
        values = np.ascontiguousarray(table[:, begin:place]).view(kind)[:, 0].astype(np.float64)
        columns[name] = Column(values, np.ones(count, bool), kind != ">f8" and bool(values.max() < 2**53))
    return columns


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
def _decoder(names: tuple[str, ...]) -> tuple[Callable[[bytes], list[Any]], Any, dict[str, Any]]:
    """Return what decodes the rows of these names, and what reads ``not_finite`` and each value of a row."""
    places = {f"value_{index}": name for index, name in enumerate(names)}
    kinds: list[Any] = [
        (place, Literal["train"] if name == "split" else int | float | None) for place, name in places.items()
    ]
    kinds.append((NOT_FINITE, dict[str, str] | None, None))
    row = msgspec.defstruct(
        "Row", kinds, rename=places, forbid_unknown_fields=True, omit_defaults=True, gc=False
    )
    readers: dict[str, Any] = {name: attrgetter(place) for place, name in places.items()}
    decoder: Any = msgspec.json.Decoder(row)
    return decoder.decode_lines, attrgetter(NOT_FINITE), readers
