"""Rows of training that all have the same names, as a run writes them: parsed without dictionaries."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["apart", "training_columns"]

BEGIN = b'{"split": "train", '


def apart(lines: bytes) -> tuple[bytes, bytes]:
    """Return the lines that begin as a run's rows of training do, and the others, each in their order."""
    rows = lines.splitlines(keepends=True)
    training = [row for row in rows if row.startswith(BEGIN)]
    return b"".join(training), b"".join(row for row in rows if not row.startswith(BEGIN))


def training_columns(lines: bytes) -> tuple[int, Mapping[str, NDArray[np.float64]]] | None:
    """Return the number of ``lines`` and their columns, float64; None unless each is a row of one form.

    That is: an object with the split ``train``, the names of the first line, ``step`` among them, and a
    finite number for each.
    """
    try:
        names = tuple(json.loads(lines[: lines.index(b"\n")])) if lines.startswith(BEGIN) else ()
    except (ValueError, RecursionError):
        return None
    if "step" not in names:
        return None
    try:
        decode, split, readers = _row(names)
        rows = decode(lines)
    except (msgspec.DecodeError, ValueError, RecursionError):  # ValueError: not Unicode, or not a name
        return None
    if not _one_to_a_line(lines, len(rows)) or set(map(split, rows)) != {"train"}:
        return None
    return len(rows), {
        name: np.fromiter(map(read, rows), np.float64, len(rows)) for name, read in readers.items()
    }


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
def _row(
    names: tuple[str, ...],
) -> tuple[Callable[[bytes], list[Any]], Callable[[Any], str], dict[str, Callable[[Any], float]]]:
    """Return what decodes the rows of these names, what reads their split, and what reads each number."""
    places = {f"value_{index}": name for index, name in enumerate(names)}
    kinds = [(place, str if name == "split" else float) for place, name in places.items()]
    row = msgspec.defstruct("Row", kinds, rename=places, forbid_unknown_fields=True, gc=False)
    readers = {name: attrgetter(place) for place, name in places.items()}
    split = readers.pop("split")
    decoder: Any = msgspec.json.Decoder(row)
    return decoder.decode_lines, split, dict(readers)
