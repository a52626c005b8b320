"""The training batch of one step on the ``memory`` path. Nothing here imports TensorFlow."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.config import DataConfig
from labkit.data.inputs import distortion_of
from labkit.data.manifest import Manifest
from labkit.data.step_batch.distortion import distorted, shrunk, standardized
from labkit.data.step_batch.hashes import distortion_key, order_key, order_of_epoch
from labkit.data.step_batch.shards import find_split, read_rows

__all__ = ["Rows", "StepBatch", "as_seen", "batch_from_memory", "rows_from_memory", "samples_of"]

# Distorted images uint8 [n, height, width, channels], labels and indices.
Rows = tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int64]]


@dataclass(frozen=True, repr=False)
class StepBatch:
    """The batch of one training step, as the network sees it.

    ``step``: from 1, as in the metrics. ``images``: uint8 [n, height, width, channels], cropped, flipped,
    covered by cutout and resized as configured. ``standardized``: float32 of the same shape, what the network
    takes. ``labels``: int32 [n], or zeros and ones [n, classes] with several labels. ``index``: int64 [n],
    each example's position in the training split. ``epoch``: int64 [n], from 0; a batch may span two.
    ``classes``: their names.
    """

    step: int
    images: NDArray[np.uint8]
    standardized: NDArray[np.float32]
    labels: NDArray[np.int32]
    index: NDArray[np.int64]
    epoch: NDArray[np.int64]
    classes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<batch of step {self.step}: images {self.images.dtype} {list(self.images.shape)}>"

    def __len__(self) -> int:
        return len(self.labels)

    def names(self, position: int) -> str:
        """Return the class of the example at ``position`` of the batch; with several labels, all of them."""
        label = self.labels[position]
        numbers = [int(label)] if label.ndim == 0 else np.flatnonzero(label).tolist()
        return ", ".join(self.classes[number] for number in numbers) or "none"


def batch_from_memory(
    manifest: Manifest, data: DataConfig, *, seed: int, step: int, image_size: int | None = None
) -> StepBatch:
    """Return the global batch of a step on the ``memory`` path, over all replicas.

    Arguments and errors are those of ``labkit.data.step_batch.batch.batch_of_step``.
    """
    samples = samples_of(data, step)
    return as_seen(manifest, step, samples, rows_from_memory(manifest, data, seed, samples), image_size)


def samples_of(data: DataConfig, step: int) -> NDArray[np.int64]:
    """Return the numbers of a step's examples in the endless stream of epochs, int64 [n]."""
    return (step - 1) * data.train_batch_size + np.arange(data.train_batch_size)


def rows_from_memory(manifest: Manifest, data: DataConfig, seed: int, samples: NDArray[np.int64]) -> Rows:
    """Return distorted images, labels and indices of these samples of the endless stream of epochs."""
    examples = find_split(manifest, "train").count
    epoch, key = samples // examples, order_key(seed)
    orders = {number: order_of_epoch(examples, key, number) for number in np.unique(epoch).tolist()}
    index = np.array([orders[sample // examples][sample % examples] for sample in samples.tolist()])
    images, labels = read_rows(manifest, "train", index)
    distortion = distortion_of(data)
    if distortion:
        images = distorted(images, manifest, distortion, key=distortion_key(seed), epoch=epoch, index=index)
    return images, labels, index


def as_seen(
    manifest: Manifest, step: int, samples: NDArray[np.int64], rows: Rows, image_size: int | None
) -> StepBatch:
    """Return the batch of these rows, standardized and, with ``image_size``, resized."""
    pixels, labels, index = rows
    inputs = standardized(pixels, manifest)
    if image_size is not None:
        inputs = shrunk(inputs, image_size)
        pixels = np.round(shrunk(pixels.astype(np.float32), image_size)).clip(0, 255).astype(np.uint8)
    epoch = samples // find_split(manifest, "train").count
    return StepBatch(step, pixels, inputs, labels, index, epoch, manifest.classes)
