"""Rows of metrics as NumPy columns: parsed by the block, kept in tables that grow."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from labkit.run_directory.metrics import parse_lines

__all__ = ["AXES", "MAX_COLUMNS", "SPLITS", "Block", "Column", "Floats", "Table", "columns_of", "parse_block"]

SPLITS = ("train", "validation", "test")
AXES = ("step", "epoch", "wall_time")
MAX_COLUMNS = 100  # of a split: a program that adds a new name at every step must not fill the memory

SMALL_BYTES = 1 << 15  # Arrow needs a millisecond to begin; Python parses this much in less
CHUNK_BYTES = 1 << 20  # of a block that one thread of Arrow parses


NUMBERS = frozenset({int, float})  # the types of JSON's numbers; bool is none of them

# Arrow's parser knows neither NaN nor Infinity. These numbers stand for them, and no run writes them.
STAND_INS = (
    (b": -Infinity", b": -1.6180339887498949e308", -1.6180339887498949e308, -np.inf),
    (b": Infinity", b": 1.6180339887498949e308", 1.6180339887498949e308, np.inf),
    (b": NaN", b": 1.4142135623730951e308", 1.4142135623730951e308, np.nan),
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
    """Return the rows of ``lines`` as columns. Rows without a split or a step are left out.

    Arrow parses a million rows in 1.5 s of processor time, and Python in ten. What Arrow refuses (a damaged
    line, a metric that is a number here and a text there) is parsed by Python, line by line.
    """
    if len(lines) > SMALL_BYTES:
        block = _parsed_by_arrow(lines)
        if block is not None:
            return block
    rows, damaged = [], 0
    for row in parse_lines(lines.splitlines()):
        if isinstance(row, dict):
            rows.append(row)
        else:
            damaged += 1
    return _of_rows(rows, damaged)


# ---- by Arrow ----------------------------------------------------------------------------------------------


def _parsed_by_arrow(lines: bytes) -> Block | None:
    """Return the block, or None if Arrow can't parse it as Python would."""
    if not _is_safe_for_arrow(lines):
        return None
    infinite = b"Infinity" in lines
    used = [
        stand_in for stand_in in STAND_INS if (infinite or stand_in[0] == b": NaN") and stand_in[0] in lines
    ]
    for token, number, _, _ in used:
        lines = lines.replace(token, number)
    try:
        if not lines.isascii():
            lines.decode()
        options = pj.ReadOptions(use_threads=True, block_size=CHUNK_BYTES)
        table = pj.read_json(pa.BufferReader(lines), read_options=options)
        if table.num_rows != lines.count(b"\n"):  # two objects in a line
            return None
        counts, columns = {}, {}
        for split in SPLITS:
            part = _rows_of(table, split)
            if part is not None and part.num_rows:
                counts[split] = part.num_rows
                columns[split] = dict(_arrow_columns(part, used))
        return Block(counts, columns)
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _is_safe_for_arrow(lines: bytes) -> bool:
    """Return whether each line is one flat object: its only ``{`` begins it, its only ``}`` ends it.

    Arrow 26 ends the whole process at some other lines, such as ``null``.
    """
    rows = lines.count(b"\n")
    begun, ended = lines.count(b"\n{") + lines.startswith(b"{"), lines.count(b"}\n")
    return begun == ended == rows == lines.count(b"{") == lines.count(b"}") and b"[" not in lines


def _rows_of(table: Any, split: str) -> Any:
    """Return the rows of ``split`` that have a step; None if the table has no such columns."""
    names = table.schema.names
    if "split" not in names or "step" not in names or not pa.types.is_string(table["split"].type):
        return None
    if not _is_number_type(table["step"].type):
        return None
    return table.filter(pc.and_(pc.equal(table["split"], split), pc.is_valid(table["step"])))


def _is_number_type(kind: Any) -> bool:
    return pa.types.is_int64(kind) or pa.types.is_float64(kind)


def _arrow_columns(table: Any, used: Iterable[tuple[bytes, bytes, float, float]]) -> Iterable[Any]:
    for name in table.schema.names:
        if name == "split" or not _is_number_type(table[name].type):
            continue
        present = pc.is_valid(table[name]).to_numpy()
        values = pc.cast(table[name], pa.float64(), safe=False).to_numpy()
        values = np.where(present, values, np.nan) if used or not present.all() else values
        for _, _, number, meant in used:
            values[values == number] = meant
        yield name, (values, present)


# ---- by Python ---------------------------------------------------------------------------------------------


def _of_rows(rows: Iterable[dict[str, Any]], damaged_lines: int = 0) -> Block:
    parts: dict[Any, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for row in rows:
        split = row.get("split")
        if type(split) is str and split in parts and _number(row.get("step")) is not None:
            parts[split].append(row)
    found = {split: part for split, part in parts.items() if part}
    return Block(
        {split: len(part) for split, part in found.items()},
        {split: columns_of(part) for split, part in found.items()},
        damaged_lines,
    )


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
