"""A data set with some of the classes of a prepared one, written beside it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from course.lessons.transfer.several import SHAPES
from labkit.data import shapes
from labkit.data.manifest import Manifest
from labkit.data.records import write_derived
from labkit.data.shards import load_split
from labkit.data.subset import relabelled


def part_of(manifest: Manifest, data_dir: Path, classes: Sequence[str]) -> Manifest:
    """Write the images of some classes as a data set of its own, in place of one that is there.

    Args:
        manifest: a prepared data set.
        data_dir: the folder of data sets that the part is written to.
        classes: names of classes; their new labels are their places here.

    Raises InputError for images with several labels.
    """
    splits = {}
    for name in manifest.splits:
        images, labels = load_split(manifest, name)
        labels = relabelled(labels, manifest.classes, classes)
        splits[name] = images[labels >= 0], labels[labels >= 0]
    return write_derived(manifest, data_dir, splits, classes=tuple(classes), all_classes=manifest.classes)


WIDTH, HEIGHT = 120, 96  # of each picture


def write_pictures(folder: Path, count: int = 60, seed: int = 0) -> Path:
    """Draw ``count`` pictures of each of ``SHAPES`` into a folder of its class; return ``folder``."""
    generator = np.random.default_rng((seed, 0x6F776E))
    for name in SHAPES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        targets = np.zeros((count, len(shapes.CLASSES)), np.int32)
        targets[:, shapes.CLASSES.index(name)] = 1
        images, _ = shapes.draw(targets, generator)
        for number, image in enumerate(images):
            # A photograph is wider than high: strips at both sides that the preparation will cut off.
            square = Image.fromarray(image).resize((HEIGHT, HEIGHT), Image.Resampling.BICUBIC)
            picture = Image.new("RGB", (WIDTH, HEIGHT), "grey")
            picture.paste(square, ((WIDTH - HEIGHT) // 2, 0))
            picture.save(folder / name / f"{name}_{number:03d}.png")
    return folder
