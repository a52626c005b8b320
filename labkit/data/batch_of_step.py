"""``batch_of_step``: the training batch of one step as arrays."""

import numpy as np
from numpy.typing import NDArray

from labkit.config import DataConfig
from labkit.data.batch import Rows, StepBatch, as_seen, batch_from_memory, samples_of
from labkit.data.inputs import augmentation_of, choose_input_path
from labkit.data.manifest import Manifest
from labkit.data.network_input import network_input_of


def batch_of_step(
    manifest: Manifest, data: DataConfig, *, seed: int, step: int, image_size: int | None = None
) -> StepBatch:
    """Return the global batch of a step, over all replicas.

    On the ``memory`` path it needs no TensorFlow. The ``streaming`` path's order comes from TensorFlow's
    shuffle buffer: there TensorFlow is imported and the epoch is read up to the batch.

    Args:
        manifest: the prepared data set.
        data: batch size, input path and augmentation of the run.
        seed: of the run.
        step: from 1.
        image_size: side of the images in this step, in pixels; None: they aren't resized.

    Raises:
        InputError: the training split is missing or damaged.
    """
    if choose_input_path(manifest, data.input_path) == "memory":
        return batch_from_memory(manifest, data, seed=seed, step=step, image_size=image_size)
    samples = samples_of(data, step)
    rows = _from_stream(manifest, data, seed, samples)
    return as_seen(manifest, data, rows, seed=seed, step=step, image_size=image_size)


def _from_stream(manifest: Manifest, data: DataConfig, seed: int, samples: NDArray[np.int64]) -> Rows:
    from labkit.startup.quiet_import import import_tensorflow

    import_tensorflow()
    from labkit.data.pipeline import train_dataset

    step_index = int(samples[0]) // data.images_per_step
    [batch] = train_dataset(
        manifest,
        global_batch_size=data.images_per_step,
        seed=seed,
        start_step=step_index,
        stop_step=step_index + 1,
        augmentation=augmentation_of(data),
        network_input=network_input_of(data),
        standardized=False,
        input_path="streaming",
        with_index=True,
    )
    images, labels, index = (tensor.numpy() for tensor in batch)
    return images, labels, index
