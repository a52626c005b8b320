"""A data set with some of the classes of a prepared one, written beside it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labkit.data.loading import load_split
from labkit.data.manifest import Manifest, Split, find_manifest, verify_shards, write_manifest
from labkit.data.records import write_shard
from labkit.data.subset import channel_statistics
from labkit.errors import InputError

__all__ = ["part_of"]


def part_of(manifest: Manifest, data_dir: Path, classes: Sequence[str]) -> Manifest:
    """Write the images of some classes as a data set of its own, or return it if it is there.

    Args:
        manifest: a prepared data set with one label per image.
        data_dir: the folder of data sets that the part is written to.
        classes: names of classes; their new labels are their places here.

    Raises InputError if images have several labels, or a shard is missing or damaged.
    """
    if manifest.multi_label:
        raise InputError(
            f"the images of {manifest.dataset} have several labels; give dataset = 'shapes' or 'cifar10'"
        )
    present = find_manifest(data_dir, manifest.dataset)
    wanted = present and present.classes == tuple(classes) and present.source == manifest.source
    if present and wanted and not verify_shards(present):
        return present
    folder = data_dir / manifest.dataset
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.full(manifest.num_classes, -1, np.int32)
    numbers[[manifest.classes.index(name) for name in classes]] = range(len(classes))
    splits, statistics = {}, None
    for name in manifest.splits:
        images, labels = load_split(manifest, name)
        chosen = numbers[labels] >= 0
        images, labels = images[chosen], numbers[labels][chosen]
        statistics = statistics or channel_statistics(images)
        shard = write_shard(folder / f"{name}-00000-of-00001.tfrecord", images, labels, 0)
        splits[name] = Split(name, len(images), (shard,))
    assert statistics is not None
    part = dataclasses.replace(
        manifest,
        directory=folder,
        classes=tuple(classes),
        splits=splits,
        channel_mean=statistics[0],
        channel_std=statistics[1],
        all_classes=manifest.classes,
    )
    write_manifest(part)
    return part
