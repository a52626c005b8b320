"""Two runs on the same test images: who is right where, and what that says of the two."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.inference import Discordance, Interval, mcnemar, paired_interval
from labkit.analysis.predictions import Predictions, load_predictions, of_another_checkpoint
from labkit.data.related import Common, common_images
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class OnImages:
    """Two runs on the same images, which stand in the same order in both.

    ``fixed``: the positions, int [m], of images that only the second classifies correctly; ``broken``: that
    only the first does. Both begin with the image on which the probabilities moved most. ``whole``: the
    predictions of both for all their test images. ``left_out``: how many of each's aren't compared, because
    one data set was made by correcting the other one, which changed or excluded them.
    """

    first: Predictions
    second: Predictions
    fixed: Indices
    broken: Indices
    difference: Interval
    test: Discordance
    whole: tuple[Predictions, Predictions]
    left_out: tuple[int, int] = (0, 0)

    @property
    def count(self) -> int:
        return len(self.first)

    def per_class(self) -> list[dict[str, Any]]:
        """Return a row for each class: images that have it, fixed and broken ones, and the difference."""
        has = self.first.has
        rows = []
        for number, name in enumerate(self.first.classes):
            of_class = has[:, number]
            fixed, broken = (int(of_class[places].sum()) for places in (self.fixed, self.broken))
            images = int(of_class.sum())
            gain = (fixed - broken) / images if images else None
            rows.append({"class": name, "images": images, "fixed": fixed, "broken": broken, "gain": gain})
        return sorted(rows, key=lambda row: -(row["gain"] or 0.0))


def load_on_same_images(first: RunDirectory, second: RunDirectory) -> OnImages:
    """Read the predictions of two runs for the test set and compare them.

    Raises InputError, which says why, where they can't be compared.
    """
    loaded = []
    for run in (first, second):
        try:
            loaded.append(load_predictions(run))
        except FileNotFoundError:
            raise InputError(
                f"{run.name} has no predictions; labkit evaluate {shlex.quote(str(run.path))} writes them"
            ) from None
    return on_same_images(first, second, (loaded[0], loaded[1]))


def on_same_images(
    first: RunDirectory, second: RunDirectory, predictions: tuple[Predictions, Predictions]
) -> OnImages:
    """Compare the predictions of two runs for the same images.

    Raises InputError, which says why, where they aren't of the same images.
    """
    mine, theirs = predictions
    common = _check_data(first.read_environment(), second.read_environment())
    for run, found in ((first, mine), (second, theirs)):
        if reason := of_another_checkpoint(run, found):
            raise InputError(reason)
    expected = mine.index
    if common is not None:
        mine, theirs, expected = mine.only(common.first), theirs.only(common.second), common.second
        if not np.array_equal(mine.index, common.first):
            raise InputError("they predicted other images of the test set, or in another order")
    if len(mine) != len(theirs):
        raise InputError(f"one predicted {len(mine):,} test images and the other {len(theirs):,}")
    if not len(mine):
        raise InputError("their predictions hold no image")
    if not np.array_equal(expected, theirs.index):
        raise InputError("they predicted other images of the test set, or in another order")
    if mine.classes != theirs.classes:
        raise InputError("their classes differ")
    if mine.labels.shape != theirs.labels.shape or not np.array_equal(mine.labels, theirs.labels):
        raise InputError("the true classes of their test images differ")
    right = ~mine.wrong, ~theirs.wrong
    moved = np.abs(theirs.probabilities - mine.probabilities).max(axis=1)
    fixed, broken = np.flatnonzero(~right[0] & right[1]), np.flatnonzero(right[0] & ~right[1])
    return OnImages(
        mine,
        theirs,
        fixed[np.argsort(-moved[fixed], kind="stable")],
        broken[np.argsort(-moved[broken], kind="stable")],
        paired_interval(*right),
        mcnemar(*right),
        predictions,
        common.left_out if common is not None else (0, 0),
    )


def _check_data(first: Mapping[str, Any], second: Mapping[str, Any]) -> Common | None:
    """Return the test images that two runs have in common, or None where their data are the same.

    Raises InputError where neither data set was made by correcting the other one.
    """
    data = [found if isinstance(found := record.get("data"), dict) else {} for record in (first, second)]
    checksums = [str(found.get("checksum") or "") for found in data]
    if not all(checksums):
        raise InputError("the checksum of a run's data set isn't recorded")
    if checksums[0] == checksums[1]:
        return None
    common = common_images(data[0], data[1], "test")
    if common is None:
        names = [
            f"{found.get('dataset')} ({checksum[:8]})"
            for found, checksum in zip(data, checksums, strict=True)
        ]
        raise InputError(f"their data sets differ: {' and '.join(names)}")
    return common
