"""TFRecords with NumPy: the payload of an image, and how files of them are written and read.

A payload has fixed fields in front of the image, so a batch of them is parsed at once:

- ``index``, 8 bytes: the image's row within its split, int64, lowest byte first;
- ``label``: int32 in 4 bytes; in a multi-label data set a byte, 0 or 1, for each class; a float32 for each
  number where labels are numbers;
- ``image``, the rest: height · width · channels bytes, uint8, row-major HWC; or a JPEG, as the manifest's
  ``image_format`` says.

The frame around a payload is described in ``tensorflow/core/lib/io/record_writer.h``. TensorFlow isn't used
because its import takes seconds, and because a whole file is read faster at once than record by record.
"""

import hashlib
import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.config.data_sets import Targets
from labkit.data.manifest import Manifest, Shard

HEADER, FOOTER = 12, 4  # bytes of a frame: length with checksum, and the checksum of the payload
INDEX_BYTES = 8
STORED = {"class": "<i4", "classes": "u1", "numbers": "<f4"}  # the type of a label by ``Manifest.targets``

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
        labels: integers [n], zeros and ones [n, classes], or floats [n, numbers].
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
        waiting.append(payload(content, label, first_index + offset))
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


def image_start(manifest: Manifest) -> int:
    """Return where the image begins in a payload."""
    values = int(np.prod(manifest.target_shape))
    return INDEX_BYTES + values * np.dtype(STORED[manifest.targets]).itemsize


def payload(image: bytes, label: np.ndarray | int, index: int) -> bytes:
    """Return the payload of one image.

    Args:
        image: pixels, or a JPEG file.
        label: an integer, zeros and ones [classes], or floats [numbers].
        index: the image's row within its split.
    """
    label = np.asarray(label)
    kind: Targets = "numbers" if label.dtype.kind == "f" else "classes" if label.ndim else "class"
    return struct.pack("<q", index) + label.astype(STORED[kind]).tobytes() + image


def fields(heads: NDArray[np.uint8], manifest: Manifest) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return labels [n, *target_shape] of the manifest's ``target_dtype``, and indices int64 [n].

    Args:
        heads: uint8 [n, image_start(manifest)], the payloads as far as the image.
        manifest: of their data set.
    """
    indices = np.ascontiguousarray(heads[:, :INDEX_BYTES]).view("<i8")[:, 0]
    labels = np.ascontiguousarray(heads[:, INDEX_BYTES:]).view(STORED[manifest.targets])
    return labels.reshape(-1, *manifest.target_shape).astype(manifest.target_dtype), indices


def spans(content: bytes | mmap.mmap, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the payloads of a file's first ``count`` records begin, and their lengths, int64 [count].

    Raises struct.error if the file ends before the length of the last one. Its payload is not checked.
    """
    begins, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    position, length_at = 0, struct.Struct("<Q").unpack_from
    for row in range(count):  # only the length of a record says where the next one begins
        length = length_at(content, position)[0]
        if length > len(content):
            raise struct.error(f"a record of {length} bytes in a file of {len(content)}")
        begins[row], lengths[row] = position + HEADER, length
        position += HEADER + length + FOOTER
    return begins, lengths


def masked_checksums(records: Sequence[bytes]) -> list[int]:
    """Return the CRC-32C of each record, masked as in a TFRecord file.

    Some hundred records are cut into segments whose checksums are computed at once. A checksum is linear:
    that of two parts is that of the first, moved by the length of the second, XOR that of the second. Zeros
    before a record change nothing while the state is 0, and a record that begins with the state of all ones
    gives what its first four bytes, inverted, give with the state 0.
    """
    found: list[int] = []
    for start in range(0, len(records), _BATCH_RECORDS):
        found += _masked_checksums(records[start : start + _BATCH_RECORDS])
    return found


def _masked_checksums(records: Sequence[bytes]) -> list[int]:
    width = max(1, -(-max(map(len, records)) // _SEGMENT)) * _SEGMENT
    padded = np.zeros((len(records), width), np.uint8)
    for row, record in zip(padded, records, strict=True):
        start = width - len(record)
        row[start:] = np.frombuffer(record, np.uint8)
        row[start : start + 4] ^= 0xFF
    words = padded.view("<u2").reshape(-1, _SEGMENT // 2).T.astype(np.uint32, order="C")
    values = np.zeros(words.shape[1], np.uint32)
    for column in words:
        values = _TABLE[(values ^ column) & 0xFFFF] ^ (values >> 16)
    segments = np.ascontiguousarray(values.reshape(len(records), -1).T)
    total = segments[0]
    for segment in segments[1:]:
        total = _MOVED_LOW[total & 0xFFFF] ^ _MOVED_HIGH[total >> 16] ^ segment
    # Of a record of fewer than four bytes, the rest of the ones is still in the state.
    total = ~(total ^ np.array([0xFFFFFFFF >> 8 * min(len(record), 4) for record in records], np.uint32))
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
