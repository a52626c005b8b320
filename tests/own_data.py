"""A small data set of somebody's own, whose classes have names that a page or a terminal could trip over."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labkit.data.manifest import Manifest, Split, write_manifest
from labkit.data.subset import channel_statistics
from labkit.data.tfrecord import write_shard

__all__ = ["CLASSES", "write_own"]

CLASSES = ("猫", "<b>dog</b>", "line\nbreak")


def write_own(
    data_dir: Path,
    name: str = "pets",
    *,
    classes: Sequence[str] = CLASSES,
    size: int = 48,
    multi_label: bool = False,
    counts: tuple[int, int, int] = (60, 12, 12),
    resize: str = "crop",
) -> Manifest:
    """Write it below ``data_dir``: images of one colour for each class, with noise.

    Args:
        data_dir: the folder of data sets.
        name: of the data set.
        classes: their names.
        size: of the images, in pixels.
        multi_label: whether an image may have several classes; then their colours are mixed.
        counts: of images of the training, validation and test split.
        resize: how its pictures are said to have been brought to one size.
    """
    directory = data_dir / name
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 216, (len(classes), 3))
    splits, pixels = {}, np.zeros((0, size, size, 3), np.uint8)
    for split, count in zip(("train", "validation", "test"), counts, strict=True):
        has = np.eye(len(classes), dtype=np.int32)[np.arange(count) % len(classes)]
        if multi_label:
            has |= rng.integers(0, 2, has.shape, dtype=np.int32)
        mean = has @ colours / has.sum(axis=1, keepdims=True)
        noise = rng.integers(-40, 40, (count, size, size, 3))
        images = np.clip(mean[:, None, None, :] + noise, 0, 255).astype(np.uint8)
        labels = has if multi_label else has.argmax(axis=1)
        shard = write_shard(directory / f"{split}-00000-of-00001.tfrecord", images, labels, 0)
        splits[split] = Split(split, count, (shard,))
        pixels = images if split == "train" else pixels
    mean, std = channel_statistics(pixels)
    manifest = Manifest(
        dataset=name,
        directory=directory,
        classes=tuple(classes),
        image_shape=(size, size, 3),
        splits=splits,
        channel_mean=mean,
        channel_std=std,
        source={
            "kind": "images",
            "location": "/somewhere/my pictures",
            "sha256": "0" * 64,
            "matches_published": None,
            "resize": resize,
            "class_counts": dict.fromkeys(classes, counts[0]),
        },
        validation_size=counts[1],
        seed=0,
        multi_label=multi_label,
    )
    write_manifest(manifest)
    return manifest
