"""All metrics of a run as one CSV or Parquet file, a row for each row that counts."""

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.errors import InputError, require_extra
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.columns import MAX_COLUMNS, Table, columns_of
from labkit.run_directory.directory import replacing
from labkit.run_directory.reader import MetricsReader, evaluations_beside, read_metrics

BLOCK_ROWS = 1 << 14  # written at a time


@dataclass(frozen=True)
class Written:
    """How many rows and columns were written, and sentences about what was left out."""

    rows: int
    columns: int
    notes: tuple[str, ...]


def write_metrics(run: RunDirectory, path: Path) -> Written:
    """Write the rows of ``metrics.jsonl`` that count, then those of ``evaluations.jsonl`` for other steps.

    A column stands for each name with a number in some row, and ``split`` for the text of that name. What is
    no number is left out. In CSV a value that a row lacks is empty, and the others are written as ``NaN``,
    ``Infinity`` and ``-Infinity``; in Parquet it is null.

    Args:
        run: may be training meanwhile; what it writes after the start is not in the file.
        path: is replaced, once all rows are written. Its ending is a key of ``FORMATS``.

    Raises InputError if a package is missing or no line is a row, OSError for files that can't be read or
    written.
    """
    reader = read_metrics(run)
    table, splits = _all_rows(reader)
    if not splits and reader.damaged_lines and not reader.resume_points:
        raise InputError(
            f"{reader.path} is damaged: it has {counted(reader.damaged_lines, 'line')} and none is a row, so "
            "nothing was written; restore the file from a copy"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        FORMATS[path.suffix](temporary, table, splits)
    return Written(len(splits), len(table.columns) + 1, tuple(_notes(reader, table)))


def _all_rows(reader: MetricsReader) -> tuple[Table, list[str]]:
    """Return the numbers of all rows and the split of each; those of ``evaluations.jsonl`` are the last."""
    evaluations = [*reader.evaluations, *evaluations_beside(reader)]
    table = reader.train.view()
    table.extend(len(evaluations), columns_of(evaluations))
    splits = ["train"] * len(reader.train) + [_text(str(row.get("split"))) for row in evaluations]
    order = np.append(reader.order, np.arange(len(reader.order), len(splits)))
    return table.select(order), [splits[place] for place in order.tolist()]


def _notes(reader: MetricsReader, table: Table) -> Iterator[str]:
    """Yield a sentence for each thing that was left out."""
    if not len(table):
        yield f"{reader.path} {'has no rows' if reader.path.exists() else 'is missing'}"
    if points := len(reader.resume_points):
        yield f"rows that were made again after {counted(points, 'resume point')} are left out"
    if reader.damaged_lines:
        yield f"left out: {counted(reader.damaged_lines, 'damaged line')}"
    if len(table.columns) >= MAX_COLUMNS:
        yield f"the run has more than {MAX_COLUMNS:,} metrics; the first of them are in the file"


def _text(name: str) -> str:
    return name.encode(errors="replace").decode()


# ---- formats -----------------------------------------------------------------------------------------------


def _write_csv(path: Path, table: Table, splits: list[str]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["split", *map(_text, table.columns)])
        for start in range(0, len(table), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            columns = [
                [
                    _as_text(value, whole=table.whole[name]) if there else ""
                    for value, there in zip(column[rows], table.present[name][rows], strict=True)
                ]
                for name, column in table.columns.items()
            ]
            writer.writerows(zip(splits[rows], *columns, strict=True))


def _as_text(value: np.float64, *, whole: bool) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return repr(int(value)) if whole else repr(float(value))


def _write_parquet(path: Path, table: Table, splits: list[str]) -> None:
    require_extra("app", ("pyarrow",), "Parquet")
    import pyarrow
    import pyarrow.parquet

    names = ["split", *map(_text, table.columns)]
    if len(set(names)) < len(names):
        raise InputError("two metrics of the run have names that Parquet can't tell apart; write CSV")
    arrays: list[Any] = [pyarrow.array(splits, pyarrow.string())]
    for name, column in table.columns.items():
        kind = np.int64 if table.whole[name] else np.float64
        values = np.where(table.present[name], column, 0).astype(kind)
        arrays.append(pyarrow.array(values, mask=~table.present[name]))
    pyarrow.parquet.write_table(pyarrow.table(arrays, names=names), path)


#: The function that writes each format, by the ending of its files.
FORMATS: dict[str, Callable[[Path, Table, list[str]], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
