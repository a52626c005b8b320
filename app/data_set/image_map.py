"""A map of images: those that a network finds alike lie close together."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.ask.client import AskedNetwork, NoAnswer
from app.ask.process import child_environment
from labkit.cluster.reaped import start_reaped
from labkit.data.manifest import Manifest
from labkit.data.shards import find_split, read_rows
from labkit.errors import InputError
from labkit.startup.child import python_command
from labkit.training.scores import right

__all__ = ["MAX_IMAGES", "ImageMap", "chosen_rows", "make_map", "positions", "thumbnails_of"]

MAX_IMAGES = 2_000  # t-SNE of so many takes 6.6 s of one core
THUMBNAIL = 32  # pixels of its longer side, at most
PART = 100  # images in one question
EMBED_SECONDS = 300.0
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    pass


@dataclass(frozen=True, eq=False)
class ImageMap:
    """Images of a split on a plane.

    ``index``: int64 [n], positions in the split, ascending. ``positions``: float32 [n, 2], within −1 … 1.
    ``thumbnails``: uint8 [n, height, width, channels], small images. ``labels``: int32 [n], or zeros and
    ones [n, classes]. ``probabilities``: float64 [n, classes]. ``of``: the number of images in the split.
    """

    index: NDArray[np.int64]
    positions: NDArray[np.float32]
    thumbnails: NDArray[np.uint8]
    labels: NDArray[np.int32]
    probabilities: NDArray[np.float64]
    of: int

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def predicted(self) -> NDArray[np.int64] | NDArray[np.bool_]:
        """The most probable class, int64 [n]; with several labels, those over 0.5, bool [n, classes]."""
        return self.probabilities > 0.5 if self.labels.ndim == 2 else self.probabilities.argmax(axis=1)

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Whether each prediction is right, bool [n]."""
        return right(self.predicted, self.labels)

    @property
    def shown_class(self) -> NDArray[np.int64]:
        """The class that colours each image, int64 [n]: with several labels the first; −1 without any."""
        if self.labels.ndim == 1:
            return self.labels.astype(np.int64)
        return np.where(self.labels.any(axis=1), self.labels.argmax(axis=1), -1)


def chosen_rows(count: int, limit: int = MAX_IMAGES) -> NDArray[np.int64]:
    """Return which images of a split to draw, ascending: all, or always the same ``limit`` at random."""
    if count <= limit:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, limit, replace=False))


def make_map(
    network: AskedNetwork,
    manifest: Manifest,
    split: str,
    rows: NDArray[np.int64],
    progress: Progress = _silent,
) -> ImageMap:
    """Ask a network for the features of some images and arrange them; takes seconds to minutes.

    Args:
        network: the network.
        manifest: the prepared data set that it was trained on.
        split: ``train``, ``validation`` or ``test``.
        rows: positions in the split, ascending, at least one.
        progress: called with the number of images whose features are ready, and of all.

    Raises InputError if the images can't be read, ``NoAnswer`` if a process fails.
    """
    images, labels = read_rows(manifest, split, rows)
    features, probabilities = [], []
    for start in range(0, len(rows), PART):
        part = images[start : start + PART]
        features.append(network.features(part))
        probabilities.append(network.predict(part).probabilities)
        progress(min(start + PART, len(rows)), len(rows))
    where = positions(np.concatenate(features))
    count = find_split(manifest, split).count
    return ImageMap(rows, where, thumbnails_of(images), labels, np.concatenate(probabilities), count)


def thumbnails_of(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images uint8 [n, height, width, channels] with no side longer than 32 pixels."""
    height, width = images.shape[1:3]
    share = THUMBNAIL / max(height, width)
    if share >= 1:
        return images
    size = max(1, round(width * share)), max(1, round(height * share))
    small = np.empty((len(images), size[1], size[0], images.shape[3]), np.uint8)
    for number, image in enumerate(images):
        tile = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        small[number] = np.asarray(tile.resize(size, Image.Resampling.BOX)).reshape(small.shape[1:])
    return small


def positions(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return places on a plane, float32 [n, 2] within −1 … 1, by PCA and then t-SNE.

    It is computed by a process of low priority, which ends with this one. The same features give the same
    places.

    Args:
        features: float32 [n, d].

    Raises InputError for features that aren't numbers, ``NoAnswer`` if the process fails.
    """
    if not np.isfinite(features).all():
        raise InputError("the network's features aren't numbers (NaN), so there is no map of them")
    with tempfile.TemporaryDirectory(prefix="labkit-map-") as folder:
        given, found = Path(folder) / "features.npy", Path(folder) / "positions.npy"
        np.save(given, features)
        command = python_command("-m", "app.data_set.embed", given, found)
        process, control = start_reaped(
            command, child_environment(**ONE_THREAD), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EMBED_SECONDS)
        finally:
            os.close(control)  # kills what still runs
            process.wait()
        try:
            return np.load(found)
        except (OSError, ValueError):
            raise NoAnswer("The process that arranges the map has failed. Try again.") from None
