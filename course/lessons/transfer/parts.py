"""A data set with some of the classes of a prepared one, written beside it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from course.lessons.transfer.several import SHAPES
from labkit.data import shapes
from labkit.data.manifest import Manifest, OtherVersion, find_manifest, verify_shards
from labkit.data.records import write_derived
from labkit.data.shards import load_split
from labkit.errors import InputError


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
    try:
        present = find_manifest(data_dir, manifest.dataset)
    except OtherVersion:
        present = None  # which is written anew
    wanted = present and present.classes == tuple(classes) and present.source == manifest.source
    if present and wanted and not verify_shards(present):
        return present
    numbers = np.full(manifest.num_classes, -1, np.int32)
    numbers[[manifest.classes.index(name) for name in classes]] = range(len(classes))
    splits = {}
    for name in manifest.splits:
        images, labels = load_split(manifest, name)
        chosen = numbers[labels] >= 0
        splits[name] = images[chosen], numbers[labels][chosen]
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
