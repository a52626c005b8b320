"""Write the shards of a data set of pictures, several at a time."""

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from labkit.data.images.check import Fact, content_sha256, read_picture
from labkit.data.images.decode import DamagedError, square
from labkit.data.images.display import Display
from labkit.data.images.journal import Journal, Written
from labkit.data.images.layouts import Listing
from labkit.data.images.names import shown
from labkit.data.images.pool import do_tasks
from labkit.data.tfrecord import temporary_path, write_shard
from labkit.errors import InputError

__all__ = ["JPEG_ABOVE", "ShardTask", "bytes_of", "shard_tasks", "write_shards"]

JPEG_ABOVE = 64  # pixels; up to here images are stored as they are
_QUALITY = 95
_BLOCK_BYTES = 2**18  # of pixels that are counted at once; then progress is told
_PIXELS_PER_SHARD = 2**27  # fewer images in a shard when they are large: it is about 100 MB of JPEG
_LEAST_SHARDS, _LEAST_PER_SHARD = 16, 32  # so that all processes have work, also with few large pictures
_RECORD_OVERHEAD = 128  # bytes of a record in addition to the image, rounded up


@dataclass(frozen=True)
class ShardTask:
    """A shard to write: its path and split, the pictures with checksums and labels, and how to store them."""

    path: Path
    split: str
    root: Path
    paths: tuple[str, ...]
    sha256: tuple[str, ...]
    labels: np.ndarray
    first_index: int
    size: int
    resize: str
    white: int


def shard_tasks(
    listing: Listing,
    facts: list[Fact],
    rows: dict[str, np.ndarray],
    directory: Path,
    *,
    size: int,
    resize: str,
    white: int,
    examples_per_shard: int,
) -> list[ShardTask]:
    """Return the shards to write, split by split in the order of their rows."""
    total = sum(len(part) for part in rows.values())
    examples_per_shard = min(examples_per_shard, max(_LEAST_PER_SHARD, -(-total // _LEAST_SHARDS)))
    if size > JPEG_ABOVE:
        examples_per_shard = max(1, min(examples_per_shard, _PIXELS_PER_SHARD // size**2))
    tasks = []
    for split, part in rows.items():
        starts = range(0, len(part), examples_per_shard)
        for number, start in enumerate(starts):
            chosen = part[start : start + examples_per_shard]
            tasks.append(
                ShardTask(
                    path=directory / f"{split}-{number:05d}-of-{len(starts):05d}.tfrecord",
                    split=split,
                    root=listing.root,
                    paths=tuple(listing.paths[row] for row in chosen.tolist()),
                    sha256=tuple(facts[row].sha256 for row in chosen.tolist()),
                    labels=listing.labels[chosen],
                    first_index=start,
                    size=size,
                    resize=resize,
                    white=white,
                )
            )
    return tasks


def bytes_of(tasks: list[ShardTask]) -> int:
    """Return about how many bytes shards will have: photographs as JPEG have up to 8 bits a pixel."""
    return sum(
        len(task.paths) * (task.size**2 * (1 if task.size > JPEG_ABOVE else 3) + _RECORD_OVERHEAD)
        for task in tasks
    )


def write_shards(
    tasks: list[ShardTask], plan: str, journal: Journal, announce: Callable[[str], None]
) -> dict[str, Written]:
    """Write shards and return them by name; each is noted in the journal when it is finished.

    Raises:
        InputError: a picture has changed since it was checked.
        OSError: the disk is full or the folder can't be written to.
    """
    found: dict[str, Written] = {}
    count = sum(len(task.paths) for task in tasks)
    try:
        with Display("writing", count, announce) as display:
            for _, written in do_tasks(_write, tasks, count, display.advance):
                journal.add_shard(plan, written)
                found[written.shard.file] = written
    except BaseException:
        for task in tasks:
            temporary_path(task.path).unlink(missing_ok=True)  # on a full disk, the space is needed
        raise
    return found


def _write(task: ShardTask, report: Callable[[int], None]) -> Written:
    counts = np.zeros((3, 256), np.int64)
    hashes: list[int] = []
    block: list[bytes] = []

    def count_values() -> None:
        # Pixels before they become a JPEG: it moves the mean by less than a thousandth.
        values = np.frombuffer(b"".join(block), np.uint8).reshape(-1, 3)
        for channel in range(3):
            counts[channel] += np.bincount(values[:, channel], minlength=256)
        report(len(block))
        block.clear()

    def images() -> Iterator[bytes]:
        for path, sha256 in zip(task.paths, task.sha256, strict=True):
            image = _prepared(task, path, sha256)
            pixels = image.tobytes()
            hashes.append(int.from_bytes(hashlib.blake2b(pixels, digest_size=8).digest()))
            block.append(pixels)
            if len(block) * len(pixels) > _BLOCK_BYTES:
                count_values()
            yield _jpeg(image) if task.size > JPEG_ABOVE else pixels
        count_values()

    shard = write_shard(task.path, images(), task.labels, task.first_index)
    return Written(shard, counts.ravel().tolist(), hashes)


def _prepared(task: ShardTask, path: str, sha256: str) -> Image.Image:
    try:
        content = read_picture(os.path.join(task.root, path))
        if content_sha256(content) == sha256:
            return square(content, task.size, task.resize, task.white)
        reason = ""
    except DamagedError as error:
        reason = f" ({error})"
    raise InputError(
        f"{shown(os.path.join(task.root, path))} has changed since it was checked a moment ago{reason}; "
        "run the command again"
    )


def _jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY, subsampling="4:4:4")
    return file.getvalue()
