"""Which predictions to show, and in which order."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.predictions import Indices, Predictions

__all__ = ["EVERY_SHARE", "ORDERS", "Filters", "chosen", "ordered"]

# What the examples can be sorted by, for the reader.
ORDERS = {
    "confidence": "the most confident mistakes first",
    "margin": "the smallest margin first",
    "loss": "the largest loss first",
    "forgetting": "the most often forgotten first",
}
EVERY_SHARE = (0.0, 1.0)


@dataclass(frozen=True)
class Filters:
    """What examples must fulfil to be shown. None: anything.

    ``true``, ``predicted``: a class that the example has, or is predicted to have. ``missed``: a class that
    it has and isn't predicted to have. ``added``: a class that it is wrongly predicted to have. ``right``:
    whether the prediction is right. ``confidence`` and ``loss``: lowest and highest value; examples without
    a number (NaN) are within none but ``EVERY_SHARE`` and None.
    """

    true: int | None = None
    predicted: int | None = None
    missed: int | None = None
    added: int | None = None
    right: bool | None = None
    confidence: tuple[float, float] = EVERY_SHARE
    loss: tuple[float, float] | None = None

    def kept(self, predictions: Predictions) -> NDArray[np.bool_]:
        """Return which examples fulfil all of it, bool [n]."""
        has, given = predictions.has, predictions.given
        kept = np.ones(len(predictions), bool)
        if self.true is not None:
            kept &= has[:, self.true]
        if self.predicted is not None:
            kept &= given[:, self.predicted]
        if self.missed is not None:
            kept &= has[:, self.missed] & ~given[:, self.missed]
        if self.added is not None:
            kept &= ~has[:, self.added] & given[:, self.added]
        if self.right is not None:
            kept &= predictions.wrong != self.right
        if self.confidence != EVERY_SHARE:
            kept &= _within(predictions.confidence, self.confidence)
        if self.loss is not None:
            kept &= _within(predictions.losses, self.loss)
        return kept


def _within(values: NDArray[Any], limits: tuple[float, float]) -> NDArray[np.bool_]:
    return np.asarray((values >= limits[0]) & (values <= limits[1]))


def ordered(
    predictions: Predictions, order: str = "confidence", forgotten: NDArray[np.int64] | None = None
) -> Indices:
    """Return all positions in an order of ``ORDERS``, int [n]. Equal ones stand as in ``confidence``.

    Args:
        predictions: of a split.
        order: ``confidence``: mistakes by confidence, then right ones, the least confident first.
            ``margin``: by how undecided the network is. ``loss``: NaN first.
        forgotten: how often each example was forgotten, int [n]; without it, ``forgetting`` is
            ``confidence``.
    """
    first = predictions.wrong_first
    if order == "margin":
        rank: NDArray[Any] = predictions.margin  # NaN last
    elif order == "loss":
        rank = -np.nan_to_num(predictions.losses, nan=np.inf, posinf=np.inf, neginf=-np.inf)
    elif order == "forgetting" and forgotten is not None:
        rank = -forgotten
    else:
        return first
    return first[np.argsort(rank[first], kind="stable")]


def chosen(
    predictions: Predictions,
    filters: Filters,
    order: str = "confidence",
    forgotten: NDArray[np.int64] | None = None,
) -> Indices:
    """Return the positions of the examples that fulfil ``filters``, int [m], as ``ordered`` has them."""
    positions = ordered(predictions, order, forgotten)
    return positions[filters.kept(predictions)[positions]]
