"""How well probabilities fit what is true: calibration, and precision against recall of each class."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analysis.predictions import Predictions

__all__ = ["BINS", "Calibration", "PrecisionRecall", "calibration", "precision_recall"]

BINS = 15  # Guo et al., 2017, "On Calibration of Modern Neural Networks"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Probabilities in bins of equal width.

    ``counts``: int64 [bins]. ``confidence`` and ``frequency``: float64 [bins], mean probability and fraction
    of what was true among those of a bin; NaN for an empty bin. ``error``: the expected calibration error;
    NaN without any probability. ``left_out``: probabilities that aren't numbers.
    """

    counts: NDArray[np.int64]
    confidence: Floats
    frequency: Floats
    error: float
    left_out: int


def calibration(predictions: Predictions, label: int | None = None, bins: int = BINS) -> Calibration:
    """Return the calibration of a split's predictions.

    With one label per image, the probability of each predicted class is compared with how often that class
    is right. With several, each label's probability is compared with how often images have the label.

    Args:
        predictions: of a split.
        label: with several labels, the one to look at; None: all together.
        bins: number of bins between 0 and 1; a bin includes its upper edge.
    """
    if predictions.multi_label:
        which: Any = slice(None) if label is None else [label]
        shares = predictions.probabilities[:, which].ravel().astype(np.float64)
        true = predictions.has[:, which].ravel()
    else:
        shares = predictions.confidence.astype(np.float64)
        true = ~predictions.wrong
    known = np.isfinite(shares)
    shares, true = shares[known], true[known]
    place = np.clip(np.ceil(shares * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):  # an empty bin
        confidence = np.bincount(place, shares, bins) / counts
        frequency = np.bincount(place, true, bins) / counts
    gaps = np.nan_to_num(np.abs(frequency - confidence))
    error = float((counts * gaps).sum() / counts.sum()) if counts.sum() else float("nan")
    return Calibration(counts, confidence, frequency, error, int((~known).sum()))


@dataclass(frozen=True)
class PrecisionRecall:
    """``precision`` and ``recall``: float64 [thresholds + 1], recall falling to 0. ``average``: average
    precision. ``examples``: with the class. Without any, the arrays are empty and ``average`` is NaN.
    """

    precision: Floats
    recall: Floats
    average: float
    examples: int


def precision_recall(predictions: Predictions) -> list[PrecisionRecall]:
    """Return the curve of each class, one against the rest. Examples with NaN are left out."""
    known, has = ~predictions.undefined, predictions.has
    return [
        _precision_recall(has[known, number], predictions.probabilities[known, number])
        for number in range(len(predictions.classes))
    ]


def _precision_recall(has: NDArray[np.bool_], shares: NDArray[Any]) -> PrecisionRecall:
    """Return the curve of one class. scikit-learn's takes 3 ms, half a minute for 10,000 classes."""
    examples = int(has.sum())
    if not examples:
        nothing = np.zeros(0)
        return PrecisionRecall(nothing, nothing, float("nan"), 0)
    order = np.argsort(-shares, kind="stable")
    last = np.flatnonzero(np.append(np.diff(shares[order]) != 0, True))  # of equal probabilities
    right = np.cumsum(has[order])[last]
    precision, recall = right / (last + 1), right / examples
    average = float((np.diff(recall, prepend=0.0) * precision).sum())
    return PrecisionRecall(np.append(precision[::-1], 1.0), np.append(recall[::-1], 0.0), average, examples)
