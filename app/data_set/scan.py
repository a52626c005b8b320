"""Read all images of a data set once: what describes them, and which have the same pixels.

Doesn't import TensorFlow.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.ask.client import Progress, silent
from labkit.analysis.slices import different_texts
from labkit.data.manifest import Manifest
from labkit.data.marks import Place
from labkit.data.shards import read_labels, read_shard

DIGEST_BYTES = 16
INTERVALS = 10  # of numbers
OF_EACH = ("labels", "targets", "digests", "brightness", "sharpness")  # what a scan has of each image
EXACT_ROWS = 256  # the sum of so many squares of pixels is below 2^24, and exact in float32
# At once, and of the sums of all classes, 64 MB; those of larger or more images have fewer pixels.
MOST_VALUES = 2**23


@dataclass(frozen=True, eq=False)
class SplitScan:
    """What one pass over a split finds.

    ``labels``: int32 [n], or zeros and ones [n, classes]; of numbers the interval that the first of a label
    is in (``DataScan.names``). ``targets``: the labels as recorded. ``digests``: a hash of each image's
    pixels, void [n]. ``brightness``: float32 [n], the mean of the pixels from 0 to 1. ``sharpness``: float32
    [n], the variance of the Laplacian (Pech-Pacheco et al. 2000) over that of the pixels, in grey: low where
    an image is blurred, whatever its contrast. ``class_sums``: float64 [classes, height, width, channels],
    the sum of the images of each class, which are reduced by a whole factor where they would take much
    memory. ``sums``, ``squares``: float64 [height, width, channels], of all images and of their squares.
    """

    labels: NDArray[np.int32]
    targets: NDArray[Any]
    digests: NDArray[np.void]
    brightness: NDArray[np.float32]
    sharpness: NDArray[np.float32]
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

    def of_class(self, number: int) -> NDArray[np.intp]:
        """Return the positions of the images of a class, ascending."""
        return np.flatnonzero(self.labels[:, number] if self.labels.ndim == 2 else self.labels == number)

    @property
    def mean_image(self) -> NDArray[np.float64]:
        """The mean of all images, float64 [height, width, channels] in 0 … 255; zeros without images."""
        return self.sums / max(len(self), 1)

    @property
    def class_means(self) -> NDArray[np.float64]:
        """The mean image of each class, shaped as ``class_sums``; zeros without images."""
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
    """The scans of all splits, by name. ``names``: of the classes; of numbers, intervals of the first one."""

    manifest: Manifest
    splits: dict[str, SplitScan]
    names: tuple[str, ...]


def scan_data(manifest: Manifest, progress: Progress = silent) -> DataScan:
    """Read every image of a data set once; 60,000 of 32×32 pixels take some three seconds.

    Args:
        manifest: the prepared data set.
        progress: called with the number of images that were read, and of all.

    Raises InputError, naming the file, if a shard is missing or damaged.
    """
    edges = _edges(manifest)
    names = manifest.classes if edges is None else tuple(map(" – ".join, pairwise(different_texts(edges))))
    total, done = sum(split.count for split in manifest.splits.values()), 0
    splits = {}
    for name, split in manifest.splits.items():
        none = np.zeros((0, *manifest.image_shape), np.uint8)
        whole = _scanned(manifest, none, read_labels(manifest, name, np.arange(0)), edges)
        kept: dict[str, list[Any]] = {field: [getattr(whole, field)] for field in OF_EACH}
        for shard in split.shards:
            part = _scanned(manifest, *read_shard(manifest, shard)[:2], edges)
            for sums in ("class_sums", "sums", "squares"):  # in place: those of each class are large
                np.add(getattr(whole, sums), getattr(part, sums), out=getattr(whole, sums))
            for field, parts in kept.items():
                parts.append(getattr(part, field))
            done += shard.count
            progress(done, total)
        splits[name] = replace(whole, **{field: np.concatenate(parts) for field, parts in kept.items()})
    return DataScan(manifest, splits, names)


def _edges(manifest: Manifest) -> NDArray[np.float64] | None:
    """Return the ends of equal intervals of the first number of training labels; None for classes."""
    if manifest.targets != "numbers":
        return None
    numbers = read_labels(manifest, "train", np.arange(manifest.count("train")))[:, 0]
    return np.histogram_bin_edges(numbers.astype(np.float64), INTERVALS)


def _scanned(
    manifest: Manifest, images: NDArray[np.uint8], labels: NDArray[Any], edges: NDArray[np.float64] | None
) -> SplitScan:
    count, targets = manifest.num_classes if edges is None else INTERVALS, labels
    if edges is not None:  # a number beyond those of the training is in the first or last interval
        labels = np.digitize(labels[:, 0], edges[1:-1])
    labels = labels.astype(np.int32)
    flat = images.reshape(len(images), int(np.prod(manifest.image_shape)))
    digests = b"".join(hashlib.blake2b(row.data, digest_size=DIGEST_BYTES).digest() for row in flat)
    values = manifest.num_classes * math.prod(manifest.image_shape)
    factor = max(1, math.ceil(math.sqrt(values / MOST_VALUES)))  # that reduces the sides of the mean images
    small = _reduced(np.zeros((1, *manifest.image_shape), np.float32), factor)
    class_sums = np.zeros((count, *small.shape[1:]))
    sums, squares = np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
    brightness, sharpness = np.zeros(len(flat), np.float32), np.zeros(len(flat), np.float32)
    at_once = max(1, min(EXACT_ROWS, MOST_VALUES // max(1, flat.shape[1])))
    for start in range(0, len(flat), at_once):
        part = slice(start, start + at_once)
        pixels = flat[part].astype(np.float32)
        sums += pixels.sum(axis=0, dtype=np.float64)
        squares += np.einsum("nv,nv->v", pixels, pixels)
        brightness[part] = pixels.mean(axis=1) / 255
        sharpness[part] = _sharpness(pixels.reshape(-1, *manifest.image_shape).mean(axis=3))
        _add_classes(class_sums, _reduced(pixels.reshape(-1, *manifest.image_shape), factor), labels[part])
    return SplitScan(
        labels,
        targets,
        np.frombuffer(digests, np.dtype((np.void, DIGEST_BYTES))),
        brightness,
        sharpness,
        class_sums,
        sums.reshape(manifest.image_shape),
        squares.reshape(manifest.image_shape),
    )


def _sharpness(grey: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what ``SplitScan.sharpness`` is of images [n, height, width]; 0 where all pixels are equal."""
    across, along = (np.diff(grey, 2, axis=axis) for axis in (2, 1))
    laplacian = across[:, 1:-1] + along[:, :, 1:-1]
    if not laplacian.size:
        return np.zeros(len(grey), np.float32)
    variance = grey.var(axis=(1, 2))
    return np.divide(laplacian.var(axis=(1, 2)), variance, out=np.zeros_like(variance), where=variance > 0)


def _add_classes(
    class_sums: NDArray[np.float64], images: NDArray[np.float32], labels: NDArray[np.int32]
) -> None:
    """Add images [n, height, width, channels] to the sums of their classes, in place."""
    if labels.ndim == 2:
        present, has = np.flatnonzero(labels.any(axis=0)), labels[:, labels.any(axis=0)] != 0
    else:
        present = np.unique(labels)
        has = labels[:, None] == present
    added = has.astype(np.float32).T @ images.reshape(len(images), -1)
    class_sums[present] += added.reshape(-1, *images.shape[1:])


def _reduced(images: NDArray[np.float32], factor: int) -> NDArray[np.float32]:
    """Return the means over squares of ``factor`` pixels; those at the right and lower edge may be cut."""
    for axis in (1, 2) if factor > 1 else ():
        starts = np.arange(0, images.shape[axis], factor)
        sizes = np.diff([*starts, images.shape[axis]]).astype(np.float32)
        shape = [1, 1, 1, 1]
        shape[axis] = len(starts)
        images = (np.add.reduceat(images, starts, axis=axis) / sizes.reshape(shape)).astype(np.float32)
    return images


@dataclass(frozen=True, eq=False)
class Duplicates:
    """All images that aren't alone with their pixels, as one group after the other.

    ``splits``: names of the data set's splits. ``groups``: the places of the images of each. ``disagree``:
    bool [groups], whether the images of a group have different labels. ``shared``: int64 [splits, splits]; at
    (a, b) the number of images of split a whose pixels also occur in split b, for a = b in another image.
    """

    splits: tuple[str, ...]
    groups: list[list[Place]]
    disagree: NDArray[np.bool_]
    shared: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.groups)

    def worst_first(self) -> list[int]:
        """Return the groups: first those with different labels, then those across splits."""

        def rank(group: int) -> tuple[bool, bool]:
            return not self.disagree[group], len({split for split, _ in self.groups[group]}) == 1

        return sorted(range(len(self)), key=rank)


def find_duplicates(scan: DataScan) -> Duplicates:
    """Find the images that occur more than once, by the hashes of their pixels."""
    names, parts = tuple(scan.splits), list(scan.splits.values())
    _, same = np.unique(np.concatenate([part.digests for part in parts]), return_inverse=True)
    _, label = np.unique(np.concatenate([part.targets for part in parts]), axis=0, return_inverse=True)
    images = pd.DataFrame({"same": same.reshape(-1), "label": label.reshape(-1)})
    images["split"] = np.repeat(np.arange(len(names)), [len(part) for part in parts])
    images["index"] = images.groupby("split").cumcount()
    # In the order in which the first image of each group stands in the data set.
    copies = images[images.duplicated("same", keep=False)]
    groups = copies.groupby("same", sort=False)
    members = np.zeros((groups.ngroups, len(names)), np.int64)
    places: list[list[Place]] = [[] for _ in members]
    columns = (values.tolist() for values in (groups.ngroup(), copies["split"], copies["index"]))
    for group, split, index in zip(*columns, strict=True):
        members[group, split] += 1
        places[group].append((names[split], index))
    shared = members.T @ (members > 0)
    shared[np.diag_indices(len(names))] = np.where(members > 1, members, 0).sum(axis=0)
    return Duplicates(names, places, (groups["label"].nunique() > 1).to_numpy(bool), shared)
