"""The images of a step, taken from a run that began anywhere."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.config import Config
from labkit.data.inputs import InputShare
from labkit.data.manifest import Manifest
from labkit.data.pipeline import train_dataset

__all__ = ["images_of_step"]


def images_of_step(
    manifest: Manifest,
    config: Config,
    step: int,
    *,
    began_at: int | None = None,
    replica: int = 0,
    replicas: int = 1,
) -> NDArray[Any]:
    """Return the augmented images of a training step, uint8 [batch / replicas, height, width, channels].

    Args:
        manifest: of the data set.
        config: gives the batch size and the seed.
        step: counted from 0.
        began_at: the step at which the process started; it reads all batches from there. None: ``step``.
        replica: whose slice of the batch is returned.
        replicas: how many share the batch.
    """
    batches = train_dataset(
        manifest,
        global_batch_size=config.data.train_batch_size,
        seed=config.run.seed,
        start_step=step if began_at is None else began_at,
        stop_step=step + 1,
        standardized=False,
        input_path="memory",
        share=InputShare(num_replicas=replicas, first_replica=replica),
    )
    *_, (images, _) = batches
    return np.asarray(images)
