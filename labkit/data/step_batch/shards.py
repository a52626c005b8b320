"""Find the shards of a split, check them, and read some of their examples with NumPy."""

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.data.manifest import Manifest, Shard, Split
from labkit.data.shard_files import has_size, verify_shards
from labkit.data.step_batch.jpeg import decoded
from labkit.data.step_batch.tfrecord import FOOTER, fields, image_start, masked_checksums, spans
from labkit.errors import InputError

__all__ = [
    "damage_error",
    "damaged_rows",
    "find_split",
    "read_labels",
    "read_rows",
    "verified_paths",
]


def find_split(manifest: Manifest, name: str) -> Split:
    """Return the split called `name`; raise InputError, listing the existing splits, if there is none."""
    if name not in manifest.splits:
        raise InputError(
            f"data set {manifest.dataset!r} has no {name!r} split; it has {', '.join(manifest.splits)}"
        )
    return manifest.splits[name]


def verified_paths(manifest: Manifest, split: str) -> list[str]:
    """Return the paths of a split's shards in order; raise InputError, naming them, if any are damaged."""
    shards = find_split(manifest, split).shards
    damaged = verify_shards(manifest, [split])
    if damaged:
        raise damage_error(manifest, damaged)
    return [os.fspath(manifest.shard_path(shard)) for shard in shards]


def damage_error(manifest: Manifest, files: list[str], reason: str = "") -> InputError:
    """Return the error that names the damaged shards and the command that rebuilds them."""
    return InputError(
        f"damaged or missing in {manifest.directory}: {', '.join(files)}{f' ({reason})' if reason else ''}; "
        f"rebuild with: {manifest.prepare_command}"
    )


def damaged_rows(manifest: Manifest, file: str) -> tuple[str, list[int]]:
    """Return the split of a shard, and the rows of the split whose record has a wrong checksum.

    There are none if the file can't be read as records, and if whoever changed it made the checksum anew.
    """
    for split in manifest.splits.values():
        first = 0
        for shard in split.shards:
            if shard.file == file:
                return split.name, [first + number for number in _damaged_records(manifest, shard)]
            first += shard.count
    raise KeyError(file)


def _damaged_records(manifest: Manifest, shard: Shard) -> list[int]:
    try:
        records = _read_records(manifest.shard_path(shard), list(range(shard.count)))
    except (OSError, ValueError, IndexError, struct.error):
        return []
    checksums = masked_checksums([data for data, _ in records])
    return [
        number
        for number, ((_, stored), checksum) in enumerate(zip(records, checksums, strict=True))
        if stored != checksum
    ]


def read_rows(
    manifest: Manifest, split: str, rows: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Read some examples of a split, in the order of `rows`.

    Checks the shards' sizes, and the checksums of the examples that are read. Hashing a large data set would
    take longer than reading a batch of it.

    Returns:
        Images uint8 [n, height, width, channels], and labels int32 [n], or zeros and ones [n, num_classes] in
        a multi-label data set.

    Raises:
        InputError: there is no such split, or a shard is missing or damaged; the message names the shard.
    """
    records, labels = _checked_records(manifest, split, rows)
    images = np.empty((len(rows), *manifest.image_shape), np.uint8)
    start = image_start(manifest.target_shape)
    for row, record in enumerate(records):
        try:
            images[row] = _image(record.data[start:], manifest)
        except ValueError as error:
            raise damage_error(manifest, [record.file], str(error)) from None
    return images, labels


def read_labels(manifest: Manifest, split: str, rows: NDArray[np.int64]) -> NDArray[np.int32]:
    """Read the labels of some examples of a split, in the order of `rows`, as :func:`read_rows` does."""
    return _checked_records(manifest, split, rows)[1]


class _Record(NamedTuple):
    """A record of a TFRecord file: the file's name, its payload, and the checksum stored behind it."""

    file: str
    data: bytes
    checksum: int


def _checked_records(
    manifest: Manifest, split: str, rows: NDArray[np.int64]
) -> tuple[list[_Record], NDArray[np.int32]]:
    """Return records whose checksum and index are right, and their labels."""
    shards = find_split(manifest, split).shards
    damaged = [shard.file for shard in shards if not has_size(manifest, shard)]
    if damaged:
        raise damage_error(manifest, damaged)
    found: list[_Record | None] = [None] * len(rows)
    first = 0
    for shard in shards:
        wanted = np.flatnonzero((rows >= first) & (rows < first + shard.count))
        try:
            read = _read_records(manifest.shard_path(shard), (rows[wanted] - first).tolist())
        except (OSError, ValueError, struct.error) as error:
            raise damage_error(manifest, [shard.file], str(error)) from None
        for index, (data, checksum) in zip(wanted, read, strict=True):
            found[index] = _Record(shard.file, data, checksum)
        first += shard.count
    records = [record for record in found if record]
    start = image_start(manifest.target_shape)
    heads = np.zeros((len(records), start), np.uint8)
    checksums = masked_checksums([record.data for record in records])
    for head, record, checksum in zip(heads, records, checksums, strict=True):
        if checksum != record.checksum:
            raise damage_error(manifest, [record.file], "the checksum of a record is wrong")
        if len(record.data) < start:
            raise damage_error(manifest, [record.file], f"a record of {len(record.data)} bytes")
        head[:] = np.frombuffer(record.data, np.uint8, start)
    labels, indices = fields(heads, manifest.target_shape)
    misplaced = np.flatnonzero(indices != rows)
    if len(misplaced):
        raise damage_error(manifest, [records[misplaced[0]].file], "records out of order")
    return records, labels


def _read_records(path: Path, numbers: list[int]) -> list[tuple[bytes, int]]:
    """Return payload and stored checksum of some records of a TFRecord file."""
    if not numbers:
        return []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        begins, lengths = spans(data, max(numbers) + 1)
        ends = begins + lengths
        chosen = [(int(begins[number]), int(ends[number])) for number in numbers]
        return [
            (data[begin:end], int.from_bytes(data[end : end + FOOTER], "little")) for begin, end in chosen
        ]


def _image(content: bytes, manifest: Manifest) -> NDArray[np.uint8]:
    if manifest.image_format == "jpeg":
        return decoded(content, manifest.image_shape)
    return np.frombuffer(content, np.uint8).reshape(manifest.image_shape)
