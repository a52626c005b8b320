"""Images with exactly the same pixels, within a split and across splits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.data_set.scan import DataScan

__all__ = ["Duplicates", "Place", "find_duplicates"]


@dataclass(frozen=True)
class Place:
    """Where an image is: its split, and its position there."""

    split: str
    index: int


@dataclass(frozen=True, eq=False)
class Duplicates:
    """All images that aren't alone with their pixels, one group after the other.

    ``splits``: names of the data set's splits. ``split``: int64 [m], the number of each image's split.
    ``index``: int64 [m], its position there. ``group``: int64 [m], ascending from 0. ``disagree``: bool
    [groups], whether the images of a group have different labels. ``shared``: int64 [splits, splits]; at
    (a, b) the number of images of split a whose pixels also occur in split b, for a = b in another image.
    """

    splits: tuple[str, ...]
    split: NDArray[np.int64]
    index: NDArray[np.int64]
    group: NDArray[np.int64]
    disagree: NDArray[np.bool_]
    shared: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.disagree)

    def places(self, group: int) -> list[Place]:
        """Return where the images of a group are."""
        first, end = np.searchsorted(self.group, [group, group + 1])
        pairs = zip(self.split[first:end].tolist(), self.index[first:end].tolist(), strict=True)
        return [Place(self.splits[split], index) for split, index in pairs]

    def worst_first(self) -> NDArray[np.intp]:
        """Return the groups, int [groups]: first those with different labels, then those across splits."""
        ends = np.searchsorted(self.group, np.arange(len(self) + 1))
        across = self.split[ends[:-1]] != self.split[ends[1:] - 1]  # a group is sorted by split
        return np.lexsort((np.arange(len(self)), ~across, ~self.disagree))


def find_duplicates(scan: DataScan) -> Duplicates:
    """Find the images that occur more than once, by the hashes of their pixels."""
    names = tuple(scan.splits)
    sizes = [len(split) for split in scan.splits.values()]
    digests = np.concatenate([split.digests for split in scan.splits.values()])
    labels = np.concatenate([split.labels for split in scan.splits.values()])
    split = np.repeat(np.arange(len(names)), sizes)
    index = np.concatenate([np.arange(size) for size in sizes])
    _, same, counts = np.unique(digests, return_inverse=True, return_counts=True)
    same = same.reshape(-1)
    repeated = np.flatnonzero(counts[same] > 1)
    # In the order in which the first image of each group stands in the data set.
    found, first, group = np.unique(same[repeated], return_index=True, return_inverse=True)
    rank = np.empty(len(found), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(found))
    group = rank[group.reshape(-1)]
    order = np.argsort(group, kind="stable")
    rows, group = repeated[order], group[order]
    starts = np.searchsorted(group, np.arange(len(found)))
    unlike = labels[rows] != labels[rows[starts]][group]
    disagree = np.zeros(len(found), bool)
    np.logical_or.at(disagree, group, unlike.any(axis=1) if unlike.ndim == 2 else unlike)
    return Duplicates(
        names, split[rows], index[rows], group, disagree, _shared(split[rows], group, len(names), len(found))
    )


def _shared(
    split: NDArray[np.int64], group: NDArray[np.int64], splits: int, groups: int
) -> NDArray[np.int64]:
    members = np.zeros((groups, splits), np.int64)
    np.add.at(members, (group, split), 1)
    shared = members.T @ (members > 0)
    shared[np.diag_indices(splits)] = np.where(members > 1, members, 0).sum(axis=0)
    return shared
