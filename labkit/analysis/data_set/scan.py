"""Read all images of a data set once, and keep what describes them. Doesn't import TensorFlow."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from labkit.data.manifest import Manifest
from labkit.data.step_batch.whole_shard import read_shard

__all__ = ["DataScan", "SplitScan", "scan_data"]

DIGEST_BYTES = 16
EXACT_ROWS = 256  # the sum of so many squares of pixels is below 2^24, and exact in float32
Progress = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    pass


@dataclass(frozen=True, eq=False)
class SplitScan:
    """What one pass over a split finds.

    ``labels``: int32 [n], or zeros and ones [n, classes]. ``digests``: a hash of each image's pixels, void
    [n]. ``class_sums``: float64 [classes, height, width, channels], the sum of the images of each class.
    ``sums``, ``squares``: float64 [height, width, channels], of all images and of their squares.
    """

    labels: NDArray[np.int32]
    digests: NDArray[np.void]
    class_sums: NDArray[np.float64]
    sums: NDArray[np.float64]
    squares: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """The number of images of each class, int64 [classes]; one with several labels counts for each."""
        if self.labels.ndim == 2:
            return self.labels.sum(axis=0, dtype=np.int64)
        return np.bincount(self.labels, minlength=len(self.class_sums))

    def add_sums(self, other: "SplitScan") -> None:
        """Add the sums of other images in place: those of each class are large."""
        for name in ("class_sums", "sums", "squares"):
            total: NDArray[np.float64] = getattr(self, name)
            total += getattr(other, name)

    def of_class(self, number: int) -> NDArray[np.intp]:
        """Return the positions of the images of a class, ascending."""
        return np.flatnonzero(self.labels[:, number] if self.labels.ndim == 2 else self.labels == number)

    @property
    def mean_image(self) -> NDArray[np.float64]:
        """The mean of all images, float64 [height, width, channels] in 0 … 255; zeros without images."""
        return self.sums / max(len(self), 1)

    @property
    def class_means(self) -> NDArray[np.float64]:
        """The mean image of each class, float64 [classes, height, width, channels]; zeros without images."""
        return self.class_sums / np.maximum(self.class_counts, 1)[:, None, None, None]

    @property
    def channel_mean(self) -> NDArray[np.float64]:
        """The mean of each channel, float64 [channels], for pixels from 0 to 1."""
        return self.mean_image.mean(axis=(0, 1)) / 255

    @property
    def channel_std(self) -> NDArray[np.float64]:
        """The standard deviation of each channel, float64 [channels], for pixels from 0 to 1."""
        squares = (self.squares / max(len(self), 1)).mean(axis=(0, 1)) / 255**2
        return np.sqrt(np.maximum(squares - self.channel_mean**2, 0))


@dataclass(frozen=True, eq=False)
class DataScan:
    """The scans of all splits, by name."""

    manifest: Manifest
    splits: dict[str, SplitScan]


def scan_data(manifest: Manifest, progress: Progress = _silent) -> DataScan:
    """Read every image of a data set once; 60,000 of 32×32 pixels take some three seconds.

    Args:
        manifest: the prepared data set.
        progress: called with the number of images that were read, and of all.

    Raises InputError, naming the file, if a shard is missing or damaged.
    """
    total, done = sum(split.count for split in manifest.splits.values()), 0
    splits = {}
    for name, split in manifest.splits.items():
        none = np.zeros((0, *manifest.image_shape), np.uint8)
        whole = _scanned(manifest, none, np.zeros((0, *manifest.target_shape), np.int32))
        labels, digests = [whole.labels], [whole.digests]
        for shard in split.shards:
            part = _scanned(manifest, *read_shard(manifest, shard))
            labels.append(part.labels)
            digests.append(part.digests)
            whole.add_sums(part)
            done += shard.count
            progress(done, total)
        splits[name] = replace(whole, labels=np.concatenate(labels), digests=np.concatenate(digests))
    return DataScan(manifest, splits)


def _scanned(manifest: Manifest, images: NDArray[np.uint8], labels: NDArray[np.int32]) -> SplitScan:
    flat = images.reshape(len(images), int(np.prod(manifest.image_shape)))
    digests = b"".join(hashlib.blake2b(row.data, digest_size=DIGEST_BYTES).digest() for row in flat)
    values = flat.astype(np.float32)
    numbers = np.arange(manifest.num_classes)
    has = labels if labels.ndim == 2 else labels[:, None] == numbers
    return SplitScan(
        labels,
        np.frombuffer(digests, np.dtype((np.void, DIGEST_BYTES))),
        (has.astype(np.float32).T @ values).astype(np.float64).reshape(-1, *manifest.image_shape),
        flat.sum(axis=0, dtype=np.float64).reshape(manifest.image_shape),
        _squares(values).reshape(manifest.image_shape),
    )


def _squares(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the sums over the squares of rows [n, pixels], exactly."""
    sums = np.zeros(values.shape[1])
    for start in range(0, len(values), EXACT_ROWS):
        part = values[start : start + EXACT_ROWS]
        sums += np.einsum("nv,nv->v", part, part)
    return sums
