"""A copy of a long run's metrics as columns, in this account's cache: the next server needn't parse the rows.

The first dashboard that has read the rows makes it. It is used only where the file of rows begins with the
bytes that it was made of, which takes a fifth of the time of parsing them. It isn't kept in the run: whoever
can write there could put another one in its place.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from app.charts.columns import Table
from labkit.home import cache_home
from labkit.run_directory import process_alive
from labkit.run_directory.files import Place, open_run_file, place_in
from labkit.run_directory.metrics import ResumePoint

__all__ = ["MIN_BYTES", "ColumnCopy", "copy_path", "keep", "recall"]

MIN_BYTES = 32 << 20  # of rows that are worth a copy: some 120,000
FORMAT = 1
BLOCK_BYTES = 1 << 22
MOST_COPIES = 20


@dataclass(frozen=True)
class ColumnCopy:
    """The rows of ``metrics.jsonl`` up to a place of the file, as ``CurveStore`` has them."""

    place: Place
    tables: Mapping[str, Table]
    resume_points: tuple[ResumePoint, ...]
    damaged_lines: int


def copy_path(rows: Path) -> Path:
    """Return where the copy of a file of rows is, which needn't exist."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(rows))).hexdigest()[:32]
    return cache_home() / "columns" / f"{name}.npz"


def keep(rows: Path, copy: ColumnCopy) -> None:
    """Write the copy in a thread. It only saves time, so where it can't be written there is none."""
    Thread(target=_write, args=(rows, copy), daemon=True).start()


def _write(rows: Path, copy: ColumnCopy) -> None:
    temporary = copy_path(rows).with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_room(temporary.parent)
        checksum = _checksum(rows, copy.place.offset)
        if place_in(rows, copy.place.offset) != copy.place:
            return  # the run was started over
        arrays: dict[str, Any] = {}
        tables: dict[str, list[str]] = {}
        for split, table in copy.tables.items():
            tables[split] = list(table.columns)
            for index, name in enumerate(table.columns):
                arrays[f"{split}-{index}"] = table.columns[name]
                if not table.present[name].all():
                    arrays[f"{split}-{index}-present"] = table.present[name]
        head = {
            "format": FORMAT,
            "offset": copy.place.offset,
            "checksum": checksum,
            "tables": tables,
            "resume_points": [asdict(point) for point in copy.resume_points],
            "damaged_lines": copy.damaged_lines,
        }
        with open(temporary, "wb") as file:
            np.savez(file, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)
        temporary.replace(copy_path(rows))
    except (OSError, ValueError):
        temporary.unlink(missing_ok=True)


def _make_room(folder: Path) -> None:
    """Keep the newest copies, and remove what servers left that were killed while they wrote."""
    copies = sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)
    for old in copies[: -MOST_COPIES + 1]:
        old.unlink(missing_ok=True)
    for left in folder.glob("*.tmp"):
        process = left.suffixes[-2][1:]
        if process.isdigit() and not process_alive(int(process)):
            left.unlink(missing_ok=True)


def recall(rows: Path) -> ColumnCopy | None:
    """Return the copy; None if there is none, or if it isn't of these rows."""
    try:
        with np.load(copy_path(rows), allow_pickle=False) as file:
            head = json.loads(file["head"].tobytes())
            if head["format"] != FORMAT or _checksum(rows, head["offset"]) != head["checksum"]:
                return None
            tables = {split: _table(file, split, names) for split, names in head["tables"].items()}
        points = tuple(ResumePoint(**point) for point in head["resume_points"])
        return ColumnCopy(place_in(rows, head["offset"]), tables, points, int(head["damaged_lines"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadZipFile, zlib.error):
        return None


def _table(file: Mapping[str, NDArray[Any]], split: str, names: list[str]) -> Table:
    columns = {name: file[f"{split}-{index}"] for index, name in enumerate(names)}
    size = len(columns["step"])
    present = {
        name: file.get(f"{split}-{index}-present", np.ones(size, bool)) for index, name in enumerate(names)
    }
    for column, there in zip(columns.values(), present.values(), strict=True):
        if column.dtype != np.float64 or there.dtype != bool or not len(column) == len(there) == size:
            raise ValueError("a column of another length or type")
    return Table(columns, present, size)


def _checksum(path: Path, size: int) -> int:
    """Return the CRC-32 of the first ``size`` bytes. Raises ValueError if there are fewer."""
    checksum, left = 0, size
    with open_run_file(path, buffering=0) as file:
        while left:
            block = file.read(min(left, BLOCK_BYTES))
            if not block:
                raise ValueError(f"{path} is shorter than {size} bytes")
            checksum = zlib.crc32(block, checksum)
            left -= len(block)
    return checksum
