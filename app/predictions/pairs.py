"""The predictions of two runs or two checkpoints for the same images."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.predictions import Indices, Predictions
from labkit.errors import InputError

__all__ = ["OUTCOMES", "Pair", "paired"]

# What became of an image, for the reader.
OUTCOMES = {
    "both right": (True, True),
    "only A": (True, False),
    "only B": (False, True),
    "both wrong": (False, False),
}


@dataclass(frozen=True)
class Pair:
    """Two predictions ``a`` and ``b`` of the same images.

    ``in_a`` and ``in_b``: int [m], the positions of each common image in them.
    """

    a: Predictions
    b: Predictions
    in_a: Indices
    in_b: Indices

    def __len__(self) -> int:
        return len(self.in_a)

    def outcome(self, name: str) -> NDArray[np.bool_]:
        """Return which images have an outcome of ``OUTCOMES``, bool [m]."""
        right_a, right_b = OUTCOMES[name]
        wrong_a, wrong_b = self.a.wrong[self.in_a], self.b.wrong[self.in_b]
        return np.asarray((wrong_a != right_a) & (wrong_b != right_b))

    @property
    def disagree(self) -> NDArray[np.bool_]:
        """For which images the predictions differ, in any label, bool [m]."""
        return np.asarray((self.a.given[self.in_a] != self.b.given[self.in_b]).any(axis=1))

    def order(self, outcome: str | None = None) -> Indices:
        """Return positions among the common images: where the two differ first, the surest of these first.

        Args:
            outcome: of ``OUTCOMES``; None: all images.
        """
        distance = np.abs(self.a.probabilities[self.in_a] - self.b.probabilities[self.in_b])
        rank = np.nan_to_num(distance.max(axis=1, initial=0.0), nan=np.inf)
        order = np.lexsort((-rank, ~self.disagree))
        return order if outcome is None else order[self.outcome(outcome)[order]]


def paired(a: Predictions, b: Predictions) -> Pair:
    """Match two predictions by the position of the images in the split.

    Raises InputError if they have other classes, other labels, or no image in common.
    """
    if a.classes != b.classes:
        raise InputError("the two predictions have different classes, so they can't be compared")
    _, in_a, in_b = np.intersect1d(a.index, b.index, return_indices=True)
    if not len(in_a):
        raise InputError("the two predictions have no image in common")
    if a.multi_label != b.multi_label or not np.array_equal(a.labels[in_a], b.labels[in_b]):
        raise InputError("the two predictions have different labels, so they aren't of the same data")
    return Pair(a, b, in_a, in_b)
