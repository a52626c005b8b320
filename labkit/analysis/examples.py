"""Single images of a run's data set, and the checkpoint to ask about them. Doesn't import TensorFlow."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.config.recorded import recorded_config
from labkit.data.manifest import Manifest
from labkit.data.of_run import data_of_run
from labkit.data.step_batch.shards import find_split, read_rows
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.files import read_json

__all__ = ["Example", "SplitImages", "checkpoint_to_ask", "data_set_of", "read_example"]


@dataclass(frozen=True)
class Example:
    """``image``: uint8 [height, width, channels]. ``label``: its class, or zeros and ones [classes]."""

    image: NDArray[np.uint8]
    label: NDArray[Any]


def data_set_of(run: RunDirectory) -> Manifest:
    """Return the prepared data set that a run was trained on.

    Raises InputError if it is no longer prepared, or was prepared otherwise since.
    """
    manifest, _ = data_of_run(run, recorded_config(run))
    return manifest


class SplitImages:
    """The images of a prepared split, uint8 [n, height, width, channels], read when they are indexed.

    Args:
        manifest: the prepared data set.
        split: its name.
        index: positions in the split, int64 [n]; None: all in order.

    Raises InputError if there is no such split; indexing does if a shard is missing or damaged.
    """

    def __init__(self, manifest: Manifest, split: str, index: NDArray[np.int64] | None = None) -> None:
        self._manifest, self._split, self._index = manifest, split, index
        self._count = find_split(manifest, split).count if index is None else len(index)

    @property
    def shape(self) -> tuple[int, ...]:
        """``n, height, width, channels``."""
        return (self._count, *self._manifest.image_shape)

    def __getitem__(self, rows: Any, /) -> NDArray[np.uint8]:
        """Return one image or those of an array of rows."""
        wanted = np.atleast_1d(np.asarray(rows, np.int64))
        wanted = wanted if self._index is None else self._index[wanted]
        images, _ = read_rows(self._manifest, self._split, wanted)
        return images[0] if np.ndim(rows) == 0 else images


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
    steps = run.checkpoint_steps()
    if not steps:
        return None
    if preferred in steps:
        return int(preferred)
    try:
        state = read_json(run.checkpoints_path / f"step-{steps[-1]:08d}" / "state.json")
        best = state["best_step"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        best = None
    return best if best in steps else steps[-1]
