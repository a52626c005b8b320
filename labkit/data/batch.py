"""The training batch of one step without TensorFlow, whose import alone takes five seconds.

``labkit.data.pipeline`` makes the batches of a training as a TensorFlow graph, with the same functions.
``tests/data/test_batch.py`` compares the two, bit by bit, for every setting of the augmentation.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.config import DataConfig
from labkit.data.augment import augment
from labkit.data.hashes import Balance, augmentation_key, balance_of, draws_of, epoch_order, order_key
from labkit.data.inputs import augmentation_of
from labkit.data.manifest import Manifest
from labkit.data.mixup import mix, mixed_images, partners_of_step, soft_targets
from labkit.data.network_input import as_input, as_pixels, central_crop, network_input_of, shrunk
from labkit.data.shards import find_split, read_labels, read_rows
from labkit.plurals import numbers_in_words

# Augmented images, uint8 or with changed colours float32, [n, height, width, channels], labels and indices.
Rows = tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]


@dataclass(frozen=True, repr=False)
class StepBatch:
    """The batch of one training step, as the network sees it.

    ``step``: from 1, as in the metrics. ``images``: uint8 [n, height, width, channels], cropped, flipped,
    covered by cutout, mixed and resized as configured, rounded to whole numbers from 0 to 255.
    ``standardized``: float32 of the same shape, what the network takes. ``labels``: int32 [n], zeros and ones
    [n, classes] with several labels, or float32 [n, numbers]. ``index``: int64 [n], each example's position
    in the training split. ``epoch``: int64 [n], from 0; a batch may span two. ``classes``: their names. With
    mixup or CutMix, ``partners``: int64 [n], the position in this batch of the example that each is mixed
    with, and ``share``: of its own image; without, None and 1.
    """

    step: int
    images: NDArray[np.uint8]
    standardized: NDArray[np.float32]
    labels: NDArray[Any]
    index: NDArray[np.int64]
    epoch: NDArray[np.int64]
    classes: tuple[str, ...]
    partners: NDArray[np.int64] | None = None
    share: float = 1.0

    def __repr__(self) -> str:
        return f"<batch of step {self.step}: images {self.images.dtype} {list(self.images.shape)}>"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def targets(self) -> NDArray[Any]:
        """What the loss takes: ``labels``, or with mixup or CutMix the mixed ones, float32 [n, classes]."""
        if self.partners is None:
            return self.labels
        soft = soft_targets(self.labels, len(self.classes))
        return mix(np.float32(self.share), soft, soft[self.partners])

    def names(self, position: int) -> str:
        """Return the class of the example at ``position`` of the batch; of several labels or numbers, all.

        With mixup or CutMix, the share and the class of both examples.
        """
        if self.partners is None:
            return self._own_names(position)
        partner = self._own_names(int(self.partners[position]))
        return f"{self.share:.0%} {self._own_names(position)} + {1 - self.share:.0%} {partner}"

    def _own_names(self, position: int) -> str:
        label = self.labels[position]
        if label.dtype.kind == "f":
            return numbers_in_words(label, self.classes)
        numbers = [int(label)] if label.ndim == 0 else np.flatnonzero(label).tolist()
        return ", ".join(self.classes[number] for number in numbers) or "none"


def batch_from_memory(
    manifest: Manifest, data: DataConfig, *, seed: int, step: int, image_size: int | None = None
) -> StepBatch:
    """Return the global batch of a step on the ``memory`` path, over all replicas.

    Arguments and errors are those of ``labkit.data.pipeline.batch_of_step``.
    """
    samples = samples_of(data, step)
    examples = find_split(manifest, "train").count
    epoch, key = samples // examples, order_key(seed)
    balance = _balance(manifest) if data.balanced_sampling else None
    orders = {number: epoch_order(examples, key, number, balance) for number in np.unique(epoch).tolist()}
    shown = np.array([orders[sample // examples][sample % examples] for sample in samples.tolist()])
    index = shown % examples
    images, labels = read_rows(manifest, "train", index)
    augmentation = augmentation_of(data)
    if augmentation:
        draws = draws_of(epoch, shown, examples)
        images = augment(images, manifest, augmentation, key=augmentation_key(seed), epoch=draws, index=index)
    rows = central_crop(images, data.crop_size), labels, index
    return as_seen(manifest, data, rows, seed=seed, step=step, image_size=image_size)


_balances: dict[str, Balance] = {}  # of the last data set, by its checksum: reading all labels takes time


def _balance(manifest: Manifest) -> Balance:
    """Return what balanced epochs are drawn from."""
    if manifest.checksum not in _balances:
        labels = read_labels(manifest, "train", np.arange(manifest.count("train")))
        _balances.clear()
        _balances[manifest.checksum] = balance_of(labels)
    return _balances[manifest.checksum]


def samples_of(data: DataConfig, step: int) -> NDArray[np.int64]:
    """Return the numbers of a step's examples in the endless stream of epochs, int64 [n]."""
    return (step - 1) * data.images_per_step + np.arange(data.images_per_step)


def as_seen(
    manifest: Manifest, data: DataConfig, rows: Rows, *, seed: int, step: int, image_size: int | None
) -> StepBatch:
    """Return the batch of these rows: standardized, mixed and, with ``image_size``, resized."""
    pixels, labels, index = rows
    inputs = as_input(pixels, manifest, network_input_of(data))
    partners, share = None, np.float32(1)
    if data.mixup_alpha or data.cutmix_alpha:
        partners = partners_of_step(seed, step - 1, len(labels))
        alphas = {"mixup_alpha": data.mixup_alpha, "cutmix_alpha": data.cutmix_alpha}
        floats = pixels.astype(np.float32)
        pixels, share = mixed_images(floats, floats[partners], seed=seed, step=step - 1, **alphas)
        inputs, _ = mixed_images(inputs, inputs[partners], seed=seed, step=step - 1, **alphas)
    if image_size is not None:
        inputs = shrunk(inputs, image_size)
        pixels = shrunk(pixels.astype(np.float32), image_size)
    epoch = samples_of(data, step) // find_split(manifest, "train").count
    return StepBatch(
        step, as_pixels(pixels), inputs, labels, index, epoch, manifest.classes, partners, float(share)
    )
