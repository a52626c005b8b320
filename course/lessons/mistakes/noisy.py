"""A small data set with labels that are wrong on purpose, and what its training makes of each example."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.callbacks.callback import Callback
from labkit.data.manifest import Manifest
from labkit.data.records import write_derived
from labkit.data.shards import load_split
from labkit.data.subset import with_train_examples
from labkit.training.scores import softmax

if TYPE_CHECKING:
    from labkit.callbacks.callback import TrainingView


class NoisyData(NamedTuple):
    """A data set whose training split has flipped labels; validation and test keep theirs.

    Args:
        manifest: of the new data set.
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


def flip_labels(source: Manifest, folder: Path, examples: int, share: float) -> NoisyData:
    """Write a part of a data set, in which a share of the training labels is another class.

    Args:
        source: a prepared data set with one label for each image.
        folder: of the new data set; what it holds is replaced.
        examples: training examples to keep, each class in proportion.
        share: of the training labels to change, 0 to 1. The new class is any other with equal probability.
    """
    classes, generator = source.num_classes, np.random.default_rng(0)
    parts = {name: load_split(source, name) for name in source.splits}
    images, right = with_train_examples(*parts["train"], classes, examples, seed=0)
    labels, rows = right.copy(), generator.choice(len(right), round(share * len(right)), replace=False)
    labels[rows] = (labels[rows] + generator.integers(1, classes, len(rows))) % classes
    parts["train"] = images, labels
    manifest = write_derived(source, folder, parts, train_examples=len(images))
    return NoisyData(manifest, images, labels, right)


class ExampleHistory(Callback):
    """Records what the network says of each training example every few steps.

    Args:
        images: uint8 [n, height, width, channels].
        labels: int [n], as the training sees them.
        every: steps between two records.
    """

    def __init__(self, images: NDArray[np.uint8], labels: NDArray[Any], every: int) -> None:
        self.images, self.labels, self.every = images, labels, max(1, every)
        self.steps: list[int] = []
        self.logits: list[NDArray[np.float32]] = []  # [n, classes]

    def after_step(self, training: "TrainingView", row: Mapping[str, Any]) -> None:
        """Record every example with the current weights."""
        if row["step"] % self.every == 0:
            parts = np.array_split(self.images, -(-len(self.images) // 500))
            self.steps.append(row["step"])
            self.logits.append(np.concatenate([training.logits(part) for part in parts]))

    @property
    def losses(self) -> NDArray[np.float64]:
        """Cross-entropy in nats, float64 [records, n]."""
        rows = np.arange(len(self.labels))
        return np.array([-np.log(softmax(logits)[rows, self.labels]) for logits in self.logits])

    @property
    def predicted(self) -> NDArray[np.intp]:
        """The most probable class, int [records, n]."""
        return np.array(self.logits).argmax(axis=2)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the prediction equals the label of the training, bool [records, n]."""
        return self.predicted == self.labels


def hunt_scores(
    ranked: ArrayLike, flipped: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return precision and recall of the first 1, 2, … suspects, float64 [suspects] each.

    Args:
        ranked: indices of the suspects, int [suspects], the most suspicious first.
        flipped: which labels are wrong, bool [n].
    """
    found = np.cumsum(flipped[np.asarray(ranked)])
    return found / np.arange(1, len(found) + 1), found / max(int(flipped.sum()), 1)
