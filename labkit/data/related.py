"""Which images two data sets have in common, where one was made by correcting the other one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray


class Part(msgspec.Struct, frozen=True):
    """A split before a correction: its number of images, and the rows that were changed or left out."""

    count: int
    changed: list[int]
    excluded: list[int]


class Step(msgspec.Struct, frozen=True):
    """What a correction was made from."""

    dataset: str
    checksum: str
    splits: dict[str, Part]


@dataclass(frozen=True)
class Common:
    """The images of a split that are the same, with the same label, in two data sets.

    ``first``, ``second``: their rows in each, int64 [m]. ``left_out``: how many of each are not among them.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    left_out: tuple[int, int]


def common_images(first: Mapping[str, Any], second: Mapping[str, Any], split: str) -> Common | None:
    """Return the common images of a split of two data sets, by what both record of how they were made.

    Args:
        first, second: what a run records of its data: ``checksum``, ``counts`` and ``source``.
        split: its name.

    Returns None where neither was made from the other one, nor both from a third one.
    """
    chains = [_chain(data) for data in (first, second)]
    known = [[checksum for checksum, _ in chain] for chain in chains]
    shared = next((one for one in reversed(known[0]) if one in known[1]), "")
    if not shared:
        return None
    found = []
    for data, chain, checksums in zip((first, second), chains, known, strict=True):
        steps = [step for _, step in chain[checksums.index(shared) :] if step is not None]
        counts = data.get("counts")
        rows = _rows_before(steps, split, counts.get(split) if isinstance(counts, dict) else None)
        if rows is None:
            return None
        found.append(rows)
    same = [np.flatnonzero(rows >= 0) for rows in found]
    _, mine, theirs = np.intersect1d(found[0][same[0]], found[1][same[1]], True, return_indices=True)
    mine, theirs = same[0][mine], same[1][theirs]
    return Common(mine, theirs, (len(found[0]) - len(mine), len(found[1]) - len(theirs)))


def _chain(data: Mapping[str, Any]) -> list[tuple[str, Step | None]]:
    """Return the checksums of a data set's ancestors, each with the step that changed it, and its own."""
    source = data.get("source")
    try:
        steps = msgspec.convert(source.get("lineage", []) if isinstance(source, dict) else [], list[Step])
    except ValueError:  # somebody edited it
        steps = []
    return [*((step.checksum, step) for step in steps), (str(data.get("checksum") or ""), None)]


def _rows_before(steps: list[Step], split: str, count: Any) -> NDArray[np.int64] | None:
    """Return the row that each image of a split had before some corrections; -1 where its label was changed.

    ``count``: of the images after them. Returns None where that doesn't fit together.
    """
    parts = [step.splits[split] for step in steps if split in step.splits]
    first = parts[0].count if parts else count
    if not isinstance(first, int) or len(parts) < len(steps):
        return None
    rows = np.arange(first)
    for part in parts:
        if len(rows) != part.count or any(not 0 <= row < len(rows) for row in part.changed + part.excluded):
            return None
        rows[part.changed] = -1
        rows = np.delete(rows, part.excluded)
    return rows if len(rows) == count else None
