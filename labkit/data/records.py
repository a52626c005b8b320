"""Sharded TFRecords with one ``tf.train.Example`` per image, written atomically.

Features of a record: ``image`` (height · width · channels bytes, uint8, row-major HWC; or a JPEG, as the
manifest's ``image_format`` says), ``label`` (int64; in a multi-label data set a zero or a one for each class)
and ``index`` (int64, the example's row within its split).
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from labkit.data.manifest import Manifest, Shard, Split, write_manifest
from labkit.data.subset import channel_statistics

__all__ = ["FEATURES", "parse_batch", "read_records", "write_derived", "write_shard"]

FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "index": tf.io.FixedLenFeature([], tf.int64),
}
_READ_BATCH = {"pixels": 1024, "jpeg": 64}  # records; a JPEG's pixels are 16 times those of a small image

Images = np.ndarray | Sequence[bytes]


def write_shard(path: Path, images: Images, labels: np.ndarray, first_index: int) -> Shard:
    """Write one shard and return its description; its bytes depend only on the arguments.

    The file gets its final name only when it is completely on disk.

    Args:
        path: the shard's final path.
        images: uint8 [n, height, width, channels], or a JPEG of each.
        labels: integers [n], or [n, classes].
        first_index: the row of the first image within its split.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with tf.io.TFRecordWriter(os.fspath(temporary)) as writer:
        for offset, (image, label) in enumerate(zip(images, labels, strict=True)):
            writer.write(_serialize(image, label, first_index + offset))
    with open(temporary, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return Shard(file=path.name, count=len(images), sha256=digest, bytes=size)


def write_derived(
    source: Manifest,
    data_dir: Path,
    splits: Mapping[str, tuple[Images, np.ndarray]],
    **changes: Any,
) -> Manifest:
    """Write images and labels that were made from a prepared data set as a data set of its own.

    Args:
        source: the prepared data set.
        data_dir: the folder of data sets that it is written to, under the name of ``source``; a data set
            that is there is replaced.
        splits: images and labels by split, as of ``load_split``, or a JPEG of each image. The statistics are
            those of ``train``. Pixels are written as they are, whatever ``source`` has: a second JPEG of them
            would be another image.
        **changes: other fields of the manifest that differ from those of ``source``.
    """
    directory = data_dir / source.dataset
    directory.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, (images, labels) in splits.items():
        shard = write_shard(directory / f"{name}-00000-of-00001.tfrecord", images, labels, 0)
        written[name] = Split(name, shard.count, (shard,))
    images = splits["train"][0]
    image_format = "pixels" if isinstance(images, np.ndarray) else "jpeg"
    kept: dict[str, Any] = {"directory": directory, "splits": written, "image_format": image_format}
    manifest = dataclasses.replace(source, **kept | changes)
    if not isinstance(images, np.ndarray):
        images = np.stack([_decoded(image, manifest.image_shape).numpy() for image in images])
    mean, std = channel_statistics(images)
    manifest = dataclasses.replace(manifest, channel_mean=mean, channel_std=std)
    write_manifest(manifest)
    return manifest


def _serialize(image: np.ndarray | bytes, label: np.ndarray, index: int) -> bytes:
    content = image if isinstance(image, bytes) else image.tobytes()
    features = tf.train.Features(
        feature={
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(label))),
            "index": tf.train.Feature(int64_list=tf.train.Int64List(value=[index])),
        }
    )
    # Otherwise the order of a protobuf map is arbitrary, but a rebuilt shard must have the same checksum.
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def parse_batch(
    serialized: tf.Tensor,
    image_shape: Sequence[int],
    target_shape: Sequence[int] = (),
    image_format: str = "pixels",
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Parse serialized records, a string tensor [n].

    Returns images uint8 [n, *image_shape], labels int32 [n, *target_shape], indices int64 [n].

    Raises:
        tf.errors.InvalidArgumentError: a JPEG is broken, or an image has another shape.
    """
    features = FEATURES | {"label": tf.io.FixedLenFeature(target_shape, tf.int64)}
    parsed = tf.io.parse_example(serialized, features)
    if image_format == "jpeg":
        images = tf.map_fn(
            lambda image: _decoded(image, image_shape),
            parsed["image"],
            fn_output_signature=tf.TensorSpec(image_shape, tf.uint8),
        )
    else:
        images = tf.io.decode_raw(parsed["image"], tf.uint8)
        images = tf.ensure_shape(images, [None, int(np.prod(image_shape))])
    return tf.reshape(images, [-1, *image_shape]), tf.cast(parsed["label"], tf.int32), parsed["index"]


def _decoded(image: tf.Tensor | bytes, image_shape: Sequence[int]) -> tf.Tensor:
    """Decode a JPEG to uint8 `image_shape`, exactly as Pillow does (``step_batch/jpeg.py``)."""
    pixels = tf.io.decode_jpeg(image, channels=image_shape[2], dct_method="INTEGER_ACCURATE")
    return tf.ensure_shape(pixels, image_shape)


@tf.autograph.experimental.do_not_convert
def read_records(
    paths: Sequence[str],
    count: int,
    image_shape: Sequence[int],
    target_shape: Sequence[int] = (),
    image_format: str = "pixels",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read shards in order into arrays, shaped as by :func:`parse_batch` with n = `count`.

    Raises:
        ValueError: the files do not contain exactly `count` records.
        tf.errors.OpError: a file is missing or truncated, or a record's checksum or JPEG is wrong.
    """
    images = np.empty((count, *image_shape), np.uint8)
    labels = np.empty((count, *target_shape), np.int32)
    indices = np.empty(count, np.int64)
    filled = 0
    with tf.device("/CPU:0"):
        records = tf.data.TFRecordDataset(list(paths)).batch(_READ_BATCH[image_format])
        parsed = records.map(
            lambda batch: parse_batch(batch, image_shape, target_shape, image_format),
            num_parallel_calls=2 if image_format == "pixels" else tf.data.AUTOTUNE,
        ).prefetch(1)
        for batch_images, batch_labels, batch_indices in parsed.as_numpy_iterator():
            end = filled + len(batch_labels)
            if end > count:
                raise ValueError(f"more than {count} records")
            images[filled:end] = batch_images
            labels[filled:end] = batch_labels
            indices[filled:end] = batch_indices
            filled = end
    if filled != count:
        raise ValueError(f"{filled} records instead of {count}")
    return images, labels, indices
