"""Columns of Arrow from lists, without pandas, which ``pyarrow.array`` imports for a quarter of a second."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["FLAG", "NUMBER", "TEXT", "TIME", "column"]

FLAG, NUMBER, TEXT, TIME = pa.bool_(), pa.float64(), pa.string(), pa.timestamp("us", tz="UTC")


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return ``values`` as a column; None is null, and NaN is NaN.

    Args:
        values: bool, number, text, whole microseconds since 1970, or a list of one of these.
        kind: ``FLAG``, ``NUMBER``, ``TEXT``, ``TIME``, or ``pyarrow.list_`` of one of them.
    """
    parts: list[pa.Buffer] = [_bits(value is not None for value in values)]
    inner = []
    if pa.types.is_list(kind):
        lists = [value or () for value in values]
        parts.append(_offsets(lists))
        inner.append(column(list(chain.from_iterable(lists)), kind.value_type))
    elif kind == TEXT:
        texts = [(value or "").encode() for value in values]
        parts += [_offsets(texts), pa.py_buffer(b"".join(texts))]
    elif kind == FLAG:
        parts.append(_bits(values))
    else:
        dtype = np.float64 if kind == NUMBER else np.int64
        parts.append(pa.py_buffer(np.array([0 if value is None else value for value in values], dtype)))
    return pa.Array.from_buffers(kind, len(values), parts, children=inner)


def _bits(flags: Iterable[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(list(map(bool, flags)), bool), bitorder="little"))


def _offsets(parts: Sequence[Sequence[Any]]) -> pa.Buffer:
    return pa.py_buffer(np.cumsum([0, *map(len, parts)], dtype=np.int32))
