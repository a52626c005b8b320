"""TensorFlow's side of records (``labkit.data.tfrecord``): parse a batch of them, and derive a data set."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from labkit.data.manifest import Manifest, Split, write_manifest
from labkit.data.subset import channel_statistics
from labkit.data.tfrecord import INDEX_BYTES, image_start, write_shard

Images = np.ndarray | Sequence[bytes]
_REST = 2**31 - 1  # more bytes than a record has


def parse_batch(payloads: tf.Tensor, manifest: Manifest) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Parse the payloads of records of a data set, a string tensor [n].

    Returns images uint8 [n, *image_shape], labels [n, *target_shape] of ``target_dtype``, indices int64 [n].

    Raises:
        tf.errors.InvalidArgumentError: a JPEG is broken, or an image has another shape.
    """
    start, image_shape = image_start(manifest), manifest.image_shape
    if manifest.image_format == "jpeg":
        heads = tf.io.decode_raw(tf.strings.substr(payloads, 0, start), tf.uint8)
        images = tf.map_fn(
            lambda image: _decoded(image, image_shape),
            tf.strings.substr(payloads, start, _REST),
            fn_output_signature=tf.TensorSpec(image_shape, tf.uint8),
        )
    else:
        rows = tf.io.decode_raw(payloads, tf.uint8)
        rows = tf.ensure_shape(rows, [None, start + int(np.prod(image_shape))])
        heads, images = rows[:, :start], tf.reshape(rows[:, start:], [-1, *image_shape])
    heads = tf.ensure_shape(heads, [None, start])
    label = heads[:, INDEX_BYTES:]
    if manifest.targets == "classes":
        label = tf.cast(label, tf.int32)
    else:
        label = tf.bitcast(tf.reshape(label, [-1, *manifest.target_shape, 4]), manifest.target_dtype)
    return images, label, tf.bitcast(heads[:, :INDEX_BYTES], tf.int64)


def _decoded(image: tf.Tensor | bytes, image_shape: Sequence[int]) -> tf.Tensor:
    """Decode a JPEG to uint8 `image_shape`, exactly as Pillow does (``labkit.data.shards.decoded``)."""
    pixels = tf.io.decode_jpeg(image, channels=image_shape[2], dct_method="INTEGER_ACCURATE")
    return tf.ensure_shape(pixels, image_shape)


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
