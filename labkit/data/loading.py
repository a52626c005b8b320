"""Read a split of a prepared data set, after checking its shards against the manifest."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from labkit.data.manifest import Manifest
from labkit.data.shards import damage_error, find_split, read_shard

__all__ = ["load_split"]


def load_split(manifest: Manifest, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a split into memory, checking every shard's size and checksum.

    Returns:
        Images uint8 [n, height, width, channels] and labels int32 [n], or zeros and ones [n, num_classes] in
        a multi-label data set. Row i is the example with index i.

    Raises:
        InputError: there is no such split, or a shard is missing or damaged, or the JPEG of a record is; the
            message names the first of them.
    """
    found = find_split(manifest, split)
    images = np.empty((found.count, *manifest.image_shape), np.uint8)
    labels = np.empty((found.count, *manifest.target_shape), np.int32)
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
