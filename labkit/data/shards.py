"""Find the shards of a split, check them, and read all or some of their examples with NumPy.

A whole shard is read faster than record by record, because records of pixels are alike.
"""

import hashlib
import io
import mmap
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labkit.data.manifest import Manifest, Shard, Split, has_size, verify_shards
from labkit.data.tfrecord import FOOTER, HEADER, fields, image_start, masked_checksums, spans
from labkit.errors import InputError
from labkit.run_directory.files import open_regular

Examples = tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.int64]]


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


def read_shard(manifest: Manifest, shard: Shard, into: NDArray[np.uint8] | None = None) -> Examples:
    """Read and check all examples of a shard.

    Args:
        manifest: the prepared data set.
        shard: one of its shards.
        into: where to put the images, uint8 [n, height, width, channels]; None: into an array of their own.

    Returns:
        Images uint8 [n, height, width, channels]; labels [n, *target_shape] of the manifest's
        ``target_dtype``; and each example's row within its split, int64 [n].

    Raises InputError, naming the shard, if it is missing or its checksum is wrong.
    """
    try:
        with open_regular(manifest.shard_path(shard)) as file:
            content = file.read()
    except OSError as error:
        raise damage_error(manifest, [shard.file], os.strerror(error.errno or 0)) from None
    if hashlib.sha256(content).hexdigest() != shard.sha256:
        raise damage_error(manifest, [shard.file], "its checksum is wrong")
    try:
        images = np.empty((shard.count, *manifest.image_shape), np.uint8) if into is None else into
        heads = (_pixels if manifest.image_format == "pixels" else _jpegs)(manifest, content, images)
    except (ValueError, struct.error) as error:
        raise damage_error(manifest, [shard.file], str(error)) from None
    return images, *fields(heads, manifest)


def _pixels(manifest: Manifest, content: bytes, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fill ``images`` and return the payloads as far as the image."""
    count, start = len(images), HEADER + image_start(manifest)
    end = start + int(np.prod(manifest.image_shape))
    if len(content) != count * (end + FOOTER):
        raise ValueError(f"it does not hold {count} records of this size")
    records = np.frombuffer(content, np.uint8).reshape(count, end + FOOTER)
    images[:] = records[:, start:end].reshape(images.shape)
    return records[:, HEADER:start]


def _jpegs(manifest: Manifest, content: bytes, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fill ``images`` and return the payloads as far as the image."""
    count, start = len(images), image_start(manifest)
    heads = np.empty((count, start), np.uint8)
    begins, lengths = spans(content, count)
    end = int(begins[-1] + lengths[-1]) + FOOTER if count else 0
    if end != len(content):
        raise ValueError(f"it does not hold {count} records")
    for row, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        heads[row] = np.frombuffer(content, np.uint8, start, begin)
        images[row] = decoded(content[begin + start : begin + length], manifest.image_shape)
    return heads


def load_split(manifest: Manifest, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a split into memory, checking every shard's size and checksum.

    Returns:
        Images uint8 [n, height, width, channels] and labels [n, *target_shape] of the manifest's
        ``target_dtype``. Row i is the example with index i.

    Raises:
        InputError: there is no such split, or a shard is missing or damaged, or the JPEG of a record is; the
            message names the first of them.
    """
    found = find_split(manifest, split)
    images = np.empty((found.count, *manifest.image_shape), np.uint8)
    labels = np.empty((found.count, *manifest.target_shape), manifest.target_dtype)
    ends = np.cumsum([shard.count for shard in found.shards]).tolist()

    def read(number: int) -> None:
        shard = found.shards[number]
        rows = slice(ends[number] - shard.count, ends[number])
        _, labels[rows], indices = read_shard(manifest, shard, images[rows])
        if not np.array_equal(indices, np.arange(found.count)[rows]):
            raise damage_error(manifest, [shard.file], "records out of order")

    with ThreadPoolExecutor(max_workers=max(4, os.cpu_count() or 1)) as pool:
        list(pool.map(read, range(len(found.shards))))
    return images, labels


def read_rows(
    manifest: Manifest, split: str, rows: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Read some examples of a split, in the order of `rows`.

    Checks the shards' sizes, and the checksums of the examples that are read. Hashing a large data set would
    take longer than reading a batch of it.

    Returns:
        Images uint8 [n, height, width, channels], and labels [n, *target_shape] of the manifest's
        ``target_dtype``.

    Raises:
        InputError: there is no such split, or a shard is missing or damaged; the message names the shard.
    """
    records, labels = _checked_records(manifest, split, rows)
    images = np.empty((len(rows), *manifest.image_shape), np.uint8)
    start = image_start(manifest)
    for row, record in enumerate(records):
        try:
            images[row] = _image(record.data[start:], manifest)
        except ValueError as error:
            raise damage_error(manifest, [record.file], str(error)) from None
    return images, labels


def read_labels(manifest: Manifest, split: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Read the labels of some examples of a split, in the order of `rows`, as :func:`read_rows` does."""
    return _checked_records(manifest, split, rows)[1]


def read_stored(manifest: Manifest, split: str, rows: NDArray[np.int64]) -> list[bytes]:
    """Read the images of some examples as their records hold them: pixels, or the file of a JPEG.

    The order is that of `rows`. Checks and raises as :func:`read_rows` does.
    """
    return read_stored_with_labels(manifest, split, rows)[0]


def read_stored_with_labels(
    manifest: Manifest, split: str, rows: NDArray[np.int64]
) -> tuple[list[bytes], NDArray[Any]]:
    """Read what :func:`read_stored` does, and the labels."""
    records, labels = _checked_records(manifest, split, rows)
    start = image_start(manifest)
    return [record.data[start:] for record in records], labels


class SplitImages:
    """The images of a prepared split, uint8 [n, height, width, channels], read when they are indexed.

    Args:
        manifest: the prepared data set.
        split: its name.
        index: positions in the split, int64 [n]; None: all in order.

    Raises InputError if there is no such split; indexing does if a shard is missing or damaged.
    """

    def __init__(self, manifest: Manifest, split: str, index: NDArray[np.int64] | None = None) -> None:
        self._manifest, self._split, self._index = manifest, split, index
        self._count = find_split(manifest, split).count if index is None else len(index)

    @property
    def shape(self) -> tuple[int, ...]:
        """``n, height, width, channels``."""
        return (self._count, *self._manifest.image_shape)

    def __getitem__(self, rows: Any, /) -> NDArray[np.uint8]:
        """Return one image or those of several rows: numbers, a slice or truth values, as of an array."""
        wanted = (np.arange(self._count) if self._index is None else self._index)[rows]
        images, _ = read_rows(self._manifest, self._split, np.atleast_1d(wanted))
        return images[0] if np.ndim(wanted) == 0 else images


class _Record(NamedTuple):
    """A record of a TFRecord file: the file's name, its payload, and the checksum stored behind it."""

    file: str
    data: bytes
    checksum: int


def _checked_records(
    manifest: Manifest, split: str, rows: NDArray[np.int64]
) -> tuple[list[_Record], NDArray[Any]]:
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
    start = image_start(manifest)
    heads = np.zeros((len(records), start), np.uint8)
    checksums = masked_checksums([record.data for record in records])
    for head, record, checksum in zip(heads, records, checksums, strict=True):
        if checksum != record.checksum:
            raise damage_error(manifest, [record.file], "the checksum of a record is wrong")
        if len(record.data) < start:
            raise damage_error(manifest, [record.file], f"a record of {len(record.data)} bytes")
        head[:] = np.frombuffer(record.data, np.uint8, start)
    labels, indices = fields(heads, manifest)
    misplaced = np.flatnonzero(indices != rows)
    if len(misplaced):
        raise damage_error(manifest, [records[misplaced[0]].file], "records out of order")
    return records, labels


def _read_records(path: Path, numbers: list[int]) -> list[tuple[bytes, int]]:
    """Return payload and stored checksum of some records of a TFRecord file."""
    if not numbers:
        return []
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
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


def decoded(content: bytes, image_shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return a JPEG's pixels, uint8 ``image_shape``.

    Pillow and TensorFlow both decode with libjpeg-turbo and its exact transform. Of images that have each
    colour for each pixel (4:4:4), as records do, the results are equal.

    Raises ValueError if it is broken, or has another shape.
    """
    mode = "RGB" if image_shape[2] == 3 else "L"
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as opened:
            image = np.asarray(opened.convert(mode), np.uint8).reshape(opened.height, opened.width, -1)
    # What Pillow raises for a broken file isn't limited to OSError.
    except (OSError, ValueError, SyntaxError, TypeError, EOFError, LookupError, ArithmeticError) as error:
        raise ValueError(f"the JPEG of a record is broken: {error}") from None
    if image.shape != tuple(image_shape):
        raise ValueError(f"the JPEG of a record has the shape {image.shape} instead of {tuple(image_shape)}")
    return image
