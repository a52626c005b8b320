"""Single images of a run's data set, and the checkpoint to ask about them. Doesn't import TensorFlow."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.data.manifest import Manifest
from labkit.data.shards import find_split, read_rows
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import best_checkpoint

__all__ = ["Example", "checkpoint_to_ask", "read_example"]


@dataclass(frozen=True)
class Example:
    """``image``: uint8 [height, width, channels]. ``label``: its class, or zeros and ones [classes]."""

    image: NDArray[np.uint8]
    label: NDArray[Any]


def read_example(manifest: Manifest, split: str, index: int) -> Example:
    """Read one image with its label.

    Args:
        manifest: the prepared data set.
        split: ``train``, ``validation`` or ``test``.
        index: position in the split.

    Raises InputError if there is no such image, or if its file is missing or damaged.
    """
    count = find_split(manifest, split).count
    if not 0 <= index < count:
        raise InputError(
            f"the {split} split has {count:,} images, numbered 0 to {count - 1:,}; "
            f"there is no number {index:,}"
        )
    images, labels = read_rows(manifest, split, np.array([index]))
    return Example(images[0], labels[0])


def checkpoint_to_ask(run: RunDirectory, preferred: Any = None) -> int | None:
    """Return the step of the checkpoint whose network to ask; None if the run has kept none.

    Args:
        run: the run directory.
        preferred: taken if this step is kept; otherwise the best on validation, otherwise the newest.
    """
    return int(preferred) if preferred in run.checkpoint_steps() else best_checkpoint(run.checkpoints_path)
