"""Messages between the process that asks and the one that holds the network: JSON and raw arrays.

A message is four bytes ``LKA1``, the length of the header (uint32, big-endian), the header as JSON, and the
arrays one behind the other, little-endian and in C order. The header is ``{"content": …, "arrays": [[name,
dtype, shape], …]}``. Nothing that is received is executed or unpickled.
"""

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_ARRAY_BYTES", "Message", "WireError", "receive", "send"]

MAGIC = b"LKA1"
MAX_HEADER_BYTES = 4 * 2**20
MAX_ARRAY_BYTES = 256 * 2**20  # of all arrays of a message
DTYPES = {
    name: np.dtype(name).newbyteorder("<") for name in ("uint8", "int32", "int64", "float32", "float64")
}
PIECE = 2**20  # bytes that are read at once


class WireError(ValueError):
    """What was received is no message. The connection can't be used any further."""


class Message(NamedTuple):
    """``content``: a JSON object. ``arrays``: by their names."""

    content: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def send(
    connection: socket.socket,
    content: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]] | None = None,
    *,
    seconds: float,
) -> None:
    """Send a message.

    Args:
        connection: a stream.
        content: anything that JSON can hold.
        arrays: of the types in ``DTYPES``.
        seconds: that it may take.

    Raises OSError if the other side is gone, TimeoutError if it doesn't read, ValueError for other arrays.
    """
    named = {name: np.asarray(array, order="C") for name, array in (arrays or {}).items()}
    unknown = [f"{name} ({array.dtype})" for name, array in named.items() if array.dtype.name not in DTYPES]
    if unknown:
        raise ValueError(f"can't send {', '.join(unknown)}; allowed: {', '.join(DTYPES)}")
    if sum(array.nbytes for array in named.values()) > MAX_ARRAY_BYTES:
        raise ValueError(f"the arrays have more than {MAX_ARRAY_BYTES:,} bytes")
    described = [[name, array.dtype.name, list(array.shape)] for name, array in named.items()]
    header = json.dumps({"content": dict(content), "arrays": described}).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"the header has more than {MAX_HEADER_BYTES:,} bytes")
    connection.settimeout(seconds)
    connection.sendall(MAGIC + struct.pack(">I", len(header)) + header)
    for array in named.values():
        connection.sendall(array.astype(DTYPES[array.dtype.name], copy=False).tobytes())


def receive(connection: socket.socket, *, wait: float, seconds: float) -> Message:
    """Receive a message.

    Args:
        connection: a stream.
        wait: seconds until its first byte must be there.
        seconds: that the rest may take.

    Raises TimeoutError, ConnectionError where the other side has ended, and WireError for anything else than
    a message.
    """
    start = _read(connection, 1, time.monotonic() + wait)
    end = time.monotonic() + seconds
    start += _read(connection, 7, end)
    if start[:4] != MAGIC:
        raise WireError("it doesn't begin as a message")
    (length,) = struct.unpack(">I", start[4:])
    if length > MAX_HEADER_BYTES:
        raise WireError(f"its header would have {length:,} bytes")
    try:
        header = json.loads(_read(connection, length, end))
        content = header["content"]
        described = [(str(name), DTYPES[dtype], _shape(shape)) for name, dtype, shape in header["arrays"]]
        if not isinstance(content, dict):
            raise TypeError("its content is no object")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise WireError(f"its header can't be read: {error}") from None
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in described]
    if sum(sizes) > MAX_ARRAY_BYTES:
        raise WireError(f"its arrays would have {sum(sizes):,} bytes")
    arrays = {
        name: np.frombuffer(_read(connection, size, end), dtype).reshape(shape)
        for (name, dtype, shape), size in zip(described, sizes, strict=True)
    }
    return Message(content, arrays)


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and 0 <= size < 2**40 for size in value):
        raise TypeError(f"{value!r} is no shape")
    return tuple(value)


def _read(connection: socket.socket, count: int, end: float) -> bytearray:
    """Read exactly ``count`` bytes until the time ``end`` of the monotonic clock."""
    data = bytearray()
    while len(data) < count:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other side takes too long")
        connection.settimeout(left)
        piece = connection.recv(min(count - len(data), PIECE))
        if not piece:
            raise ConnectionError("the other side has ended")
        data += piece
    return data
