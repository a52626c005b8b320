"""What people should know about their pictures before they train on them."""

from collections.abc import Mapping, Sequence

import numpy as np

from labkit.data.images.check import Fact
from labkit.data.images.layouts import Listing
from labkit.data.images.names import shown
from labkit.plurals import counted

_FEW = 10  # training pictures of a class
_RATIO = 10  # between the largest and the smallest class
_NAMED = 3  # classes or files in a line
_ENOUGH = 5  # pictures of a class, before its only size is no accident


def remarks(
    listing: Listing, facts: Sequence[Fact], rows: Mapping[str, np.ndarray], hashes: Mapping[str, np.ndarray]
) -> list[str]:
    """Return a line for each thing that makes a result doubtful.

    Args:
        listing: the pictures.
        facts: of each.
        rows: of each split.
        hashes: of the pixels of each image of each split, uint64, in the order of ``rows``.
    """
    return [
        *_several_labels(listing),
        *_few(listing, rows["train"]),
        *_missing(listing, rows),
        *_repeated(listing, rows, hashes),
        *_telling_sizes(listing, facts, np.concatenate(list(rows.values()))),
    ]


def _several_labels(listing: Listing) -> list[str]:
    """Return a line for a set of several labels: one ``;`` in a table makes it one, perhaps by mistake."""
    if not listing.multi_label:
        return []
    labels = listing.labels.sum(axis=1)
    several, none = int((labels > 1).sum()), int((labels == 0).sum())
    without = f", and {counted(none, 'picture')} without a label" if none else ""
    return [
        f"{counted(several, 'picture')} with several labels{without}: "
        "each class is learnt for itself, with --loss sigmoid"
    ]


def _few(listing: Listing, train: np.ndarray) -> list[str]:
    counts = listing.counts(train)
    lines = []
    few = np.flatnonzero(counts < _FEW).tolist()
    if few:
        lines.append(
            f"warning: fewer than {_FEW} training pictures: "
            f"{_some([f'{shown(listing.classes[label])} ({counts[label]})' for label in few])}"
        )
    low, high = int(counts.argmin()), int(counts.argmax())
    if counts[high] >= _RATIO * counts[low]:
        lines.append(
            f"warning: the classes differ in size: {counts[high]:,} training pictures of "
            f"{shown(listing.classes[high])}, {counts[low]:,} of {shown(listing.classes[low])}; "
            "accuracy says little about the small ones"
        )
    return lines


def _missing(listing: Listing, rows: Mapping[str, np.ndarray]) -> list[str]:
    """Return a line for each split that the source names, but that lacks some of the classes."""
    lines = []
    for split, part in rows.items():
        missing = np.flatnonzero(listing.counts(part) == 0).tolist()
        if missing and split in listing.splits:
            names = _some([shown(listing.classes[label]) for label in missing])
            lines.append(
                f"warning: no {split} pictures of {names}; results on them say nothing of these classes"
            )
    return lines


def _repeated(
    listing: Listing, rows: Mapping[str, np.ndarray], hashes: Mapping[str, np.ndarray]
) -> list[str]:
    """Return lines about pictures with the same pixels: in two splits, or with other labels."""
    all_rows = np.concatenate(list(rows.values()))
    splits = np.repeat(np.arange(len(rows)), [len(part) for part in rows.values()])
    values = np.concatenate([hashes[name] for name in rows])
    order = np.lexsort((all_rows, values))
    ends = np.flatnonzero(np.diff(values[order])) + 1
    leaking: list[tuple[int, int]] = []
    conflicting: list[tuple[int, int]] = []
    for group in np.split(order, ends):
        if len(group) == 1:
            continue
        first, labels = all_rows[group[0]], listing.labels[all_rows[group]].reshape(len(group), -1)
        elsewhere = np.flatnonzero(splits[group] != splits[group[0]])
        if len(elsewhere):
            leaking.append((first, all_rows[group[elsewhere[0]]]))
        differing = np.flatnonzero((labels != labels[0]).any(axis=1))
        if len(differing):
            conflicting.append((first, all_rows[group[differing[0]]]))

    def files(pairs: list[tuple[int, int]]) -> str:
        names = [(shown(listing.paths[one]), shown(listing.paths[other])) for one, other in sorted(pairs)]
        return _some([f"{one} and {other}" for one, other in names])

    lines = []
    if leaking:
        lines.append(
            f"warning: {counted(len(leaking), 'picture')} with the same pixels in two splits, so that scores "
            f"are too good: {files(leaking)}"
        )
    if conflicting:
        lines.append(
            f"warning: {counted(len(conflicting), 'picture')} with the same pixels and other labels: "
            f"{files(conflicting)}"
        )
    return lines


def _telling_sizes(listing: Listing, facts: Sequence[Fact], rows: np.ndarray) -> list[str]:
    """Return a line about classes that can be told by the size of the files alone."""
    if listing.multi_label or listing.are_numbers:
        return []
    sizes: list[set[tuple[int, int]]] = [set() for _ in listing.classes]
    for row in rows.tolist():
        sizes[listing.labels[row]].add((facts[row].width, facts[row].height))
    owners: dict[tuple[int, int], int] = {}
    for found in sizes:
        for size in found:
            owners[size] = owners.get(size, 0) + 1
    counts = listing.counts(rows)
    telling = [
        f"{shown(listing.classes[label])} ({size[0]} × {size[1]})"
        for label, found in enumerate(sizes)
        if len(found) == 1 and counts[label] >= _ENOUGH
        for size in found
        if owners[size] == 1
    ]
    if not telling:
        return []
    return [
        f"warning: all pictures of a class have one size, and those of the others don't: {_some(telling)}; "
        "the network may learn traces of the resizing"
    ]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
