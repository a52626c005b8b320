"""Read a split of a prepared data set, after checking its shards against the manifest."""

import os

import numpy as np
import tensorflow as tf

from labkit.data.manifest import Manifest
from labkit.data.records import read_records
from labkit.data.step_batch.shards import damage_error, find_split, verified_paths

__all__ = ["load_split"]


def load_split(manifest: Manifest, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a split into memory, checking every shard's size and checksum.

    Returns:
        Images uint8 [n, height, width, channels] and labels int32 [n], or zeros and ones [n, num_classes] in
        a multi-label data set. Row i is the example with index i.

    Raises:
        InputError: there is no such split, or a shard is missing or damaged, or the JPEG of a record is; the
            message names the shards.
    """
    count = find_split(manifest, split).count
    paths = verified_paths(manifest, split)
    try:
        images, labels, indices = read_records(
            paths, count, manifest.image_shape, manifest.target_shape, manifest.image_format
        )
    except (tf.errors.OpError, ValueError) as error:
        files = [os.path.basename(path) for path in paths]
        raise damage_error(manifest, files, str(error).splitlines()[0]) from None
    if not np.array_equal(indices, np.arange(count)):
        raise damage_error(manifest, [os.path.basename(path) for path in paths], "records out of order")
    return images, labels
