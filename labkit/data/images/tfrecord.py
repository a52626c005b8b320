"""Write TFRecords of ``tf.train.Example`` with NumPy, byte for byte as TensorFlow writes them.

The processes that read pictures would need five seconds to import TensorFlow. The format is described in
``tensorflow/core/lib/io/record_writer.h``, the messages in https://protobuf.dev/programming-guides/encoding.
"""

import functools
import hashlib
import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labkit.data.manifest import Shard

__all__ = ["masked_checksums", "serialize", "temporary_path", "write_shard"]

_SEGMENT = 64  # bytes whose checksums are computed side by side
_BATCH_RECORDS, _BATCH_BYTES = 256, 2**22
_POLYNOMIAL = np.uint32(0x82F63B78)  # Castagnoli's, bits reversed


def write_shard(
    path: Path, images: Iterable[np.ndarray | bytes], labels: np.ndarray, first_index: int
) -> Shard:
    """Write one shard and return its description; its bytes depend only on the arguments.

    The file gets its final name only when it is completely on disk.

    Args:
        path: the shard's final path.
        images: as many as labels: uint8 [height, width, channels] each, or JPEG files as bytes.
        labels: integers [n], or [n, classes].
        first_index: the row of the first image within its split.
    """
    temporary = temporary_path(path)
    digest = hashlib.sha256()
    try:
        with open(temporary, "wb") as file:
            for frames in _framed(images, labels, first_index):
                digest.update(frames)
                file.write(frames)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()  # on a full disk, the space is needed
        raise
    return Shard(file=path.name, count=len(labels), sha256=digest.hexdigest(), bytes=size)


def temporary_path(path: Path) -> Path:
    """Return the name of a shard's file until it is complete."""
    return path.with_name(f".{path.name}.tmp")


def _framed(images: Iterable[np.ndarray | bytes], labels: np.ndarray, first_index: int) -> Iterable[bytes]:
    """Yield the bytes of the file, some records at a time."""
    waiting: list[bytes] = []
    waiting_bytes = 0
    for offset, (image, label) in enumerate(zip(images, labels, strict=True)):
        content = image if isinstance(image, bytes) else image.tobytes()
        waiting.append(serialize(content, np.ravel(label).tolist(), first_index + offset))
        waiting_bytes += len(waiting[-1])
        if len(waiting) == _BATCH_RECORDS or waiting_bytes >= _BATCH_BYTES:
            yield _frames(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _frames(waiting)


def _frames(records: Sequence[bytes]) -> bytes:
    lengths = [struct.pack("<Q", len(record)) for record in records]
    pack = struct.Struct("<I").pack
    parts = zip(lengths, masked_checksums(lengths), records, masked_checksums(records), strict=True)
    return b"".join(
        part
        for length, of_length, record, of_record in parts
        for part in (length, pack(of_length), record, pack(of_record))
    )


def serialize(image: bytes, label: Sequence[int], index: int) -> bytes:
    """Return the ``tf.train.Example`` of one image, its features in the order of their names.

    Args:
        image: pixels, or a JPEG file.
        label: integers of at least 0.
        index: the image's row within its split.
    """
    entries = (
        _entry(b"image", b"\x0a", image),
        _integers(b"index", (index,)),
        _integers(b"label", tuple(label)),
    )
    return _field(b"\x0a", b"".join(entries))


def _entry(name: bytes, kind: bytes, values: bytes) -> bytes:
    """Return a feature: ``kind`` is the tag of its list in the message Feature."""
    return _field(b"\x0a", _field(b"\x0a", name) + _field(b"\x12", _field(kind, _field(b"\x0a", values))))


@functools.lru_cache(1024)
def _integers(name: bytes, values: tuple[int, ...]) -> bytes:
    return _entry(name, b"\x1a", b"".join(map(_varint, values)))


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Return an unsigned integer as 7 bits a byte, lowest first."""
    if value < 128:
        return value.to_bytes(1)
    found = bytearray()
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def masked_checksums(records: Sequence[bytes]) -> list[int]:
    """Return the CRC-32C of each record, masked as in a TFRecord file.

    All records are cut into segments whose checksums are computed at once. A checksum is linear: that of two
    parts is that of the first, moved by the length of the second, XOR that of the second.

    Args:
        records: each of at least 4 bytes.
    """
    longest = max(map(len, records))
    width = -(-longest // _SEGMENT) * _SEGMENT
    padded = np.zeros((len(records), width), np.uint8)  # zeros in front leave a checksum as it is
    for row, record in zip(padded, records, strict=True):
        start = width - len(record)
        row[start:] = np.frombuffer(record, np.uint8)
        row[start : start + 4] ^= 0xFF  # the same as to begin with 32 ones
    words = padded.view("<u2").reshape(-1, _SEGMENT // 2).T.astype(np.uint32, order="C")
    values = np.zeros(words.shape[1], np.uint32)
    for column in words:
        values = _TABLE[(values ^ column) & 0xFFFF] ^ (values >> 16)
    segments = np.ascontiguousarray(values.reshape(len(records), -1).T)
    total = segments[0]
    for segment in segments[1:]:
        total = _MOVED_LOW[total & 0xFFFF] ^ _MOVED_HIGH[total >> 16] ^ segment
    total = ~total
    rotated = (total >> 15) | (total << 17)
    return (rotated + np.uint32(0xA282EAD8)).tolist()


def _tables() -> tuple[NDArray[np.uint32], ...]:
    """Return the checksum of each pair of bytes, and each half of a checksum behind a segment of zeros."""
    table = np.arange(2**16, dtype=np.uint32)
    for _ in range(16):
        table = np.where(table & 1, (table >> 1) ^ _POLYNOMIAL, table >> 1).astype(np.uint32)
    low = np.arange(2**16, dtype=np.uint32)
    high = low * np.uint32(2**16)
    for _ in range(_SEGMENT // 2):
        low = table[low & 0xFFFF] ^ (low >> 16)
        high = table[high & 0xFFFF] ^ (high >> 16)
    return table, low, high


_TABLE, _MOVED_LOW, _MOVED_HIGH = _tables()
