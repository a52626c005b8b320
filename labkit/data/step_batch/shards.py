"""Find the shards of a split, check them, and read some of their examples with NumPy."""

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.data.manifest import Manifest, Shard, Split, has_size, verify_shards
from labkit.data.step_batch.jpeg import decoded
from labkit.data.step_batch.protobuf import features_of, integers_of
from labkit.errors import InputError

__all__ = [
    "damage_error",
    "damaged_rows",
    "find_split",
    "masked_checksums",
    "read_labels",
    "read_rows",
    "verified_paths",
]

_HEADER, _FOOTER = 12, 4  # bytes of a TFRecord around its data: length with checksum, and a checksum


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
    records = _checked_records(manifest, split, rows)
    images = np.empty((len(rows), *manifest.image_shape), np.uint8)
    for row, record in enumerate(records):
        try:
            images[row] = _image(record.features["image"], manifest)
        except ValueError as error:
            raise damage_error(manifest, [record.file], str(error)) from None
    return images, _labels(manifest, records)


def read_labels(manifest: Manifest, split: str, rows: NDArray[np.int64]) -> NDArray[np.int32]:
    """Read the labels of some examples of a split, in the order of `rows`, as :func:`read_rows` does."""
    return _labels(manifest, _checked_records(manifest, split, rows))


def _checked_records(manifest: Manifest, split: str, rows: NDArray[np.int64]) -> "list[_Parsed]":
    shards = find_split(manifest, split).shards
    damaged = [shard.file for shard in shards if not has_size(manifest, shard)]
    if damaged:
        raise damage_error(manifest, damaged)
    records: list[_Record | None] = [None] * len(rows)
    first = 0
    for shard in shards:
        wanted = np.flatnonzero((rows >= first) & (rows < first + shard.count))
        try:
            found = _read_records(manifest.shard_path(shard), (rows[wanted] - first).tolist())
        except (OSError, ValueError, struct.error) as error:
            raise damage_error(manifest, [shard.file], str(error)) from None
        for index, (data, checksum) in zip(wanted, found, strict=True):
            records[index] = _Record(shard.file, data, checksum)
        first += shard.count
    return _parsed(manifest, [record for record in records if record], rows)


class _Parsed(NamedTuple):
    """A record whose checksum is right: its file's name, and the content of its features."""

    file: str
    features: dict[str, bytes]


class _Record(NamedTuple):
    """A record of a TFRecord file: the file's name, its data, and the checksum stored behind them."""

    file: str
    data: bytes
    checksum: int


def _read_records(path: Path, numbers: list[int]) -> list[tuple[bytes, int]]:
    """Return data and stored checksum of some records of a TFRecord file."""
    if not numbers:
        return []
    spans, position = [], 0
    length_at = struct.Struct("<Q").unpack_from
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for _ in range(max(numbers) + 1):  # only the lengths of the records before it say where one begins
            begin = position + _HEADER
            end = begin + length_at(data, position)[0]
            spans.append((begin, end))
            position = end + _FOOTER
        chosen = [spans[number] for number in numbers]
        return [
            (data[begin:end], int.from_bytes(data[end : end + _FOOTER], "little")) for begin, end in chosen
        ]


def _parsed(manifest: Manifest, records: list[_Record], rows: NDArray[np.int64]) -> list[_Parsed]:
    checksums = masked_checksums([record.data for record in records])
    found = []
    for record, checksum, row in zip(records, checksums, rows.tolist(), strict=True):
        if checksum != record.checksum:
            raise damage_error(manifest, [record.file], "the checksum of a record is wrong")
        features = features_of(record.data)
        if integers_of(features["index"]) != [row]:
            raise damage_error(manifest, [record.file], "records out of order")
        found.append(_Parsed(record.file, features))
    return found


def _image(content: bytes, manifest: Manifest) -> NDArray[np.uint8]:
    if manifest.image_format == "jpeg":
        return decoded(content, manifest.image_shape)
    return np.frombuffer(content, np.uint8).reshape(manifest.image_shape)


def _labels(manifest: Manifest, records: list[_Parsed]) -> NDArray[np.int32]:
    labels = np.empty((len(records), *manifest.target_shape), np.int32)
    for row, record in enumerate(records):
        labels[row] = np.reshape(integers_of(record.features["label"]), manifest.target_shape)
    return labels


def masked_checksums(records: Sequence[bytes]) -> list[int]:
    """Return the CRC-32C of each record, masked as in a TFRecord file.

    All records are computed at once, byte after byte. Records of JPEGs have different lengths: they end
    together. Zeros before a record change nothing while the state is 0, and a record that begins with the
    state of all ones gives what its first four bytes, inverted, give with the state 0.
    """
    lengths = [len(record) for record in records]
    columns = np.zeros((max(lengths, default=0), len(records)), np.uint8)
    for number, record in enumerate(records):
        columns[len(columns) - len(record) :, number] = np.frombuffer(record, np.uint8)
        columns[len(columns) - len(record) :, number][:4] ^= 255
    values = np.zeros(len(records), np.uint32)
    for column in columns:
        values = _CRC_TABLE[(values ^ column) & 255] ^ (values >> 8)
    # Of fewer than four bytes, the rest of the ones is still in the state.
    values ^= np.array([0xFFFFFFFF >> 8 * min(length, 4) for length in lengths], np.uint64).astype(np.uint32)
    checksums = ~values
    rotated = (checksums >> 15) | (checksums << 17)
    return (rotated + np.uint32(0xA282EAD8)).tolist()


def _crc_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)  # Castagnoli, reversed
    return table


_CRC_TABLE = _crc_table()
