"""Read a whole shard with NumPy: faster than record by record, because records of pixels are alike."""

import hashlib
import os
import struct

import numpy as np
from numpy.typing import NDArray

from labkit.data.manifest import Manifest, Shard
from labkit.data.step_batch.jpeg import decoded
from labkit.data.step_batch.shards import damage_error
from labkit.data.step_batch.tfrecord import FOOTER, HEADER, fields, image_start, spans

__all__ = ["read_shard"]

Examples = tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int64]]


def read_shard(manifest: Manifest, shard: Shard, into: NDArray[np.uint8] | None = None) -> Examples:
    """Read and check all examples of a shard.

    Args:
        manifest: the prepared data set.
        shard: one of its shards.
        into: where to put the images, uint8 [n, height, width, channels]; None: into an array of their own.

    Returns:
        Images uint8 [n, height, width, channels]; labels int32 [n], or zeros and ones [n, num_classes]; and
        each example's row within its split, int64 [n].

    Raises InputError, naming the shard, if it is missing or its checksum is wrong.
    """
    try:
        content = manifest.shard_path(shard).read_bytes()
    except OSError as error:
        raise damage_error(manifest, [shard.file], os.strerror(error.errno or 0)) from None
    if hashlib.sha256(content).hexdigest() != shard.sha256:
        raise damage_error(manifest, [shard.file], "its checksum is wrong")
    try:
        images = np.empty((shard.count, *manifest.image_shape), np.uint8) if into is None else into
        heads = (_pixels if manifest.image_format == "pixels" else _jpegs)(manifest, content, images)
    except (ValueError, struct.error) as error:
        raise damage_error(manifest, [shard.file], str(error)) from None
    return images, *fields(heads, manifest.target_shape)


def _pixels(manifest: Manifest, content: bytes, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fill ``images`` and return the payloads as far as the image."""
    count, start = len(images), HEADER + image_start(manifest.target_shape)
    end = start + int(np.prod(manifest.image_shape))
    if len(content) != count * (end + FOOTER):
        raise ValueError(f"it does not hold {count} records of this size")
    records = np.frombuffer(content, np.uint8).reshape(count, end + FOOTER)
    images[:] = records[:, start:end].reshape(images.shape)
    return records[:, HEADER:start]


def _jpegs(manifest: Manifest, content: bytes, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fill ``images`` and return the payloads as far as the image."""
    count, start = len(images), image_start(manifest.target_shape)
    heads = np.empty((count, start), np.uint8)
    begins, lengths = spans(content, count)
    end = int(begins[-1] + lengths[-1]) + FOOTER if count else 0
    if end != len(content):
        raise ValueError(f"it does not hold {count} records")
    for row, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        heads[row] = np.frombuffer(content, np.uint8, start, begin)
        images[row] = decoded(content[begin + start : begin + length], manifest.image_shape)
    return heads
