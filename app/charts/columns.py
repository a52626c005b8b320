"""Rows of metrics as NumPy columns: parsed by the block, kept in tables that grow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.charts.uniform import apart, training_columns
from labkit.run_directory.metrics import parse_lines

__all__ = ["AXES", "MAX_COLUMNS", "SPLITS", "Block", "Column", "Floats", "Table", "columns_of", "parse_block"]

SPLITS = ("train", "validation", "test")
AXES = ("step", "epoch", "wall_time")
MAX_COLUMNS = 100  # of a split: a program that adds a new name at every step must not fill the memory

DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
NUMBERS = frozenset({int, float})  # the types of JSON's numbers; bool is none of them

# JSON has no NaN and no Infinity, and msgspec refuses them. These texts stand for them.
STAND_INS = (
    (b'": NaN', b'": "\\u0000NaN"', "\0NaN", float("nan")),
    (b'": Infinity', b'": "\\u0000Infinity"', "\0Infinity", float("inf")),
    (b'": -Infinity', b'": "\\u0000-Infinity"', "\0-Infinity", -float("inf")),
)

Floats = NDArray[np.float64]
Column = tuple[Floats, NDArray[np.bool_]]  # values, and which rows have one


@dataclass(frozen=True)
class Block:
    """The parsed lines of a block: how many rows each split has, and their columns by split and name."""

    counts: Mapping[str, int]
    columns: Mapping[str, Mapping[str, Column]]
    damaged_lines: int = 0


def parse_block(lines: bytes) -> Block:
    """Return the rows of ``lines`` as columns. Rows without a split or a step are left out."""
    others, found = b"", training_columns(lines)
    if found is None:  # perhaps there are evaluations between them
        training, others = apart(lines)
        found = training_columns(training)
    if found is None:
        return _parsed(lines)
    rest = _parsed(others)
    if "train" in rest.counts:  # in which order would be unknown
        return _parsed(lines)
    count, values = found
    columns = {name: (column, np.ones(count, bool)) for name, column in values.items()}
    return Block({"train": count, **rest.counts}, {"train": columns, **rest.columns}, rest.damaged_lines)


def _parsed(lines: bytes) -> Block:
    rows, damaged = _decoded(lines), 0
    if rows is None:
        values = list(parse_lines(lines.splitlines()))
        rows = [value for value in values if isinstance(value, dict)]
        damaged = len(values) - len(rows)
    return _of_rows(rows, damaged)


def _decoded(lines: bytes) -> list[dict[str, Any]] | None:
    """Return the row of each line; None if one is damaged. Takes a tenth of the time of ``json``."""
    used = [stand_in for stand_in in STAND_INS if stand_in[0] in lines]
    if used and (b'\\"' in lines or b"\\u0000" in lines):  # a text may look like a token or a stand-in
        return None
    for token, text, _, _ in used:
        lines = lines.replace(token, text)
    try:
        rows = DECODER.decode_lines(lines)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # Each line has to be one object, not two or a part of one.
    whole = lines.startswith(b"{") and lines.endswith(b"}\n")
    if not (whole and lines.count(b"\n") == lines.count(b"}\n{") + 1 == len(rows)):
        return None
    if used:
        meant = {text: number for _, _, text, number in used}
        for row in rows:
            for name, value in row.items():
                if type(value) is str and value in meant:
                    row[name] = meant[value]
    return rows


def _of_rows(rows: list[dict[str, Any]], damaged_lines: int = 0) -> Block:
    counts, columns = {}, {}
    splits = [row.get("split") for row in rows]
    for split in SPLITS:
        if not (count := splits.count(split)):
            continue
        part = rows if count == len(rows) else [row for row in rows if row.get("split") == split]
        found = columns_of(part)
        if "step" not in found or not found["step"][1].all():
            part = [row for row in part if _number(row.get("step")) is not None]
            if not part:
                continue
            found = columns_of(part)
        counts[split], columns[split] = len(part), found
    return Block(counts, columns, damaged_lines)


def columns_of(rows: list[dict[str, Any]]) -> dict[str, Column]:
    """Return the columns of one row or more, each over all of them."""
    names = dict.fromkeys(rows[0])
    if new := set().union(*rows).difference(names):
        names |= dict.fromkeys(name for row in rows for name in row if name in new)
    return {name: _column(rows, name) for name in names if name != "split"}


def _column(rows: list[dict[str, Any]], name: str) -> Column:
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


def _absent(count: int) -> Column:
    return np.full(count, np.nan), np.zeros(count, bool)


# ---- tables ------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """The rows of one split: a column for each name that a row has a number for.

    The buffers grow by half. Rows of a view are never overwritten.
    """

    columns: dict[str, Floats] = field(default_factory=lambda: {name: np.empty(0) for name in AXES})
    present: dict[str, NDArray[np.bool_]] = field(
        default_factory=lambda: {name: np.empty(0, bool) for name in AXES}
    )
    size: int = 0

    def extend(self, count: int, new: Mapping[str, Column]) -> None:
        """Append ``count`` rows. Names that ``new`` lacks get no value in them."""
        end = self.size + count
        for name in dict.fromkeys([*self.columns, *new]):
            values, present = new.get(name) or _absent(count)
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

    def view(self) -> "Table":
        return self._rows(lambda column: column[: self.size])

    def ordered_with(self, rows: list[dict[str, Any]]) -> "Table":
        """Return a new table that also holds ``rows``, in order of step."""
        table = self.view()  # its buffers are full, so ``extend`` makes new ones
        block = _of_rows(rows)
        for split, count in block.counts.items():
            table.extend(count, block.columns[split])
        order = np.argsort(table.columns["step"][: table.size], kind="stable")
        return table._rows(lambda column: column[order])

    def _rows(self, select: Callable[[Any], Any]) -> "Table":
        columns = {name: select(column) for name, column in self.columns.items()}
        present = {name: select(column) for name, column in self.present.items()}
        return Table(columns, present, len(columns["step"]))


def _append(buffer: NDArray[Any], size: int, values: NDArray[Any]) -> NDArray[Any]:
    end = size + len(values)
    if end > len(buffer):
        grown = np.empty(max(end, len(buffer) * 3 // 2, 64), buffer.dtype)
        grown[:size] = buffer[:size]
        buffer = grown
    buffer[size:end] = values
    return buffer
