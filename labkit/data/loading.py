"""Find a split of a prepared data set and read it, after checking its shards against the manifest."""

import os

import numpy as np
import tensorflow as tf

from labkit.data.manifest import Manifest, Split, verify_shards
from labkit.data.records import read_records
from labkit.errors import InputError

__all__ = ["damage_error", "find_split", "load_split", "verified_paths"]


def load_split(manifest: Manifest, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a split into memory, checking every shard's size and checksum.

    Returns:
        Images uint8 [n, height, width, channels] and labels int32 [n], or zeros and ones [n, num_classes] in
        a multi-label data set. Row i is the example with index i.

    Raises:
        InputError: there is no such split, or a shard is missing or damaged; the message names the shard.
    """
    count = find_split(manifest, split).count
    paths = verified_paths(manifest, split)
    try:
        images, labels, indices = read_records(paths, count, manifest.image_shape, manifest.target_shape)
    except (tf.errors.OpError, ValueError) as error:
        files = [os.path.basename(path) for path in paths]
        raise damage_error(manifest, files, str(error).splitlines()[0]) from None
    if not np.array_equal(indices, np.arange(count)):
        raise damage_error(manifest, [os.path.basename(path) for path in paths], "records out of order")
    return images, labels


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
    command = f"labkit data prepare --dataset {manifest.dataset} --data-dir {manifest.directory.parent}"
    return InputError(
        f"damaged or missing in {manifest.directory}: {', '.join(files)}{f' ({reason})' if reason else ''}; "
        f"rebuild with: {command}"
    )
