"""A small data set with labels that are wrong on purpose, so that a hunt for them can be scored."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labkit.data.manifest import Manifest
from labkit.data.records import write_derived
from labkit.data.shards import load_split
from labkit.data.subset import with_train_examples
from labkit.errors import InputError


@dataclass(frozen=True)
class NoisyData:
    """A data set whose training split has flipped labels; validation and test keep theirs.

    Args:
        manifest: of the new data set; train on it with ``flags``.
        images: of its training split, uint8 [n, height, width, channels].
        labels: as the training sees them, int32 [n].
        right_labels: before the flips, int32 [n].
    """

    manifest: Manifest
    images: NDArray[np.uint8]
    labels: NDArray[np.int32]
    right_labels: NDArray[np.int32]

    @property
    def flipped(self) -> NDArray[np.bool_]:
        """Which labels are wrong, bool [n]."""
        return self.labels != self.right_labels

    @property
    def flags(self) -> dict[str, str]:
        """The flags of a training on it."""
        return {"dataset": self.manifest.dataset, "data_dir": str(self.manifest.directory.parent)}


def flip_labels(source: Manifest, folder: Path, examples: int, share: float) -> NoisyData:
    """Write a part of a data set, in which a share of the training labels is another class.

    Args:
        source: a prepared data set with one label for each image.
        folder: of the new data set; what it holds is replaced.
        examples: training examples to keep, each class in proportion; at most as many as there are.
        share: of the training labels to change, 0 to 1. The new class is any other with equal probability.

    Raises InputError for a data set with several labels for each image, and for a damaged one.
    """
    if source.multi_label:
        raise InputError(f"{source.dataset} has several labels for each image; choose cifar10 or shapes")
    parts = {name: load_split(source, name) for name in source.splits}
    images, right = with_train_examples(
        *parts["train"], source.num_classes, min(examples, source.count("train")), seed=0
    )
    labels = _flipped(right, source.num_classes, share, np.random.default_rng(0))
    splits = parts | {"train": (images, labels)}
    manifest = write_derived(source, folder, splits, train_examples=len(images))
    return NoisyData(manifest, images, labels, right)


def _flipped(
    labels: NDArray[np.int32], num_classes: int, share: float, generator: np.random.Generator
) -> NDArray[np.int32]:
    changed = labels.copy()
    rows = generator.choice(len(labels), round(share * len(labels)), replace=False)
    changed[rows] = (changed[rows] + generator.integers(1, num_classes, len(rows))) % num_classes
    return changed
