"""``batch_of_step``: the training batch of one step as arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.config import DataConfig
from labkit.data.inputs import choose_input_path, distortion_of
from labkit.data.manifest import Manifest
from labkit.data.step_batch.distortion import distorted, shrunk, standardized
from labkit.data.step_batch.hashes import distortion_key, order_key, order_of_epoch
from labkit.data.step_batch.shards import find_split, read_rows

__all__ = ["StepBatch", "batch_of_step"]


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


def batch_of_step(
    manifest: Manifest, data: DataConfig, *, seed: int, step: int, image_size: int | None = None
) -> StepBatch:
    """Return the global batch of a step, over all replicas.

    On the ``memory`` path it needs no TensorFlow. The ``streaming`` path's order comes from TensorFlow's
    shuffle buffer: there TensorFlow is imported and the epoch is read up to the batch.

    Args:
        manifest: the prepared data set.
        data: batch size, input path and distortion of the run.
        seed: of the run.
        step: from 1.
        image_size: side of the images in this step, in pixels; None: they aren't resized.

    Raises:
        InputError: the training split is missing or damaged.
    """
    examples = find_split(manifest, "train").count
    samples = (step - 1) * data.train_batch_size + np.arange(data.train_batch_size)
    epoch = samples // examples
    read = _from_memory if choose_input_path(manifest, data.input_path) == "memory" else _from_stream
    pixels, labels, index = read(manifest, data, seed, samples)
    inputs = standardized(pixels, manifest)
    if image_size is not None:
        inputs = shrunk(inputs, image_size)
        pixels = np.round(shrunk(pixels.astype(np.float32), image_size)).clip(0, 255).astype(np.uint8)
    return StepBatch(step, pixels, inputs, labels, index, epoch, manifest.classes)


def _from_memory(manifest: Manifest, data: DataConfig, seed: int, samples: NDArray[np.int64]):
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


def _from_stream(manifest: Manifest, data: DataConfig, seed: int, samples: NDArray[np.int64]):
    from labkit.quiet_import import import_tensorflow

    import_tensorflow()
    from labkit.data.pipeline import train_dataset

    step_index = int(samples[0]) // data.train_batch_size
    [batch] = train_dataset(
        manifest,
        global_batch_size=data.train_batch_size,
        seed=seed,
        start_step=step_index,
        stop_step=step_index + 1,
        distortion=distortion_of(data),
        standardized=False,
        input_path="streaming",
        with_index=True,
    )
    return tuple(tensor.numpy() for tensor in batch)
