"""Whether a network's confidence can be believed: reliability, expected calibration error, temperature."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.training.scores import softmax

Floats = NDArray[np.float64]


class Reliability(NamedTuple):
    """Predictions in bins of equal width of their confidence.

    ``edges``: float [bins + 1]. ``confidence``, ``accuracy``: mean of each bin, float [bins], NaN in an empty
    one. ``counts``: int [bins].
    """

    edges: Floats
    confidence: Floats
    accuracy: Floats
    counts: NDArray[np.int64]

    @property
    def error(self) -> float:
        """The expected calibration error (Guo et al., 2017): mean gap of the bins, by their counts."""
        gaps = np.nan_to_num(np.abs(self.confidence - self.accuracy))
        return float((gaps * self.counts).sum() / self.counts.sum())


def reliability(probabilities: NDArray[Any], labels: NDArray[Any]) -> Reliability:
    """Sort predictions into ten bins by their confidence, the probability of the predicted class.

    The bins have equal width, from 0 to 1. An edge belongs to the bin below it.

    Args:
        probabilities: float [n, classes].
        labels: int [n].
    """
    bins = 10
    confidence = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    number = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(number, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(number, values, bins) / counts for values in (confidence, right)]
    return Reliability(np.linspace(0, 1, bins + 1), means[0], means[1], counts)


def calibration_error(probabilities: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the expected calibration error, 0 to 1; arguments as for ``reliability``."""
    return reliability(probabilities, labels).error


def tempered(logits: NDArray[Any], temperature: float) -> Floats:
    """Return the softmax of ``logits / temperature``, float64 [n, classes]."""
    return softmax(logits.astype(np.float64) / temperature)


def cross_entropy(logits: NDArray[Any], labels: NDArray[Any], temperature: float = 1.0) -> float:
    """Return the mean cross-entropy in nats of ``logits / temperature``, float [n, classes]."""
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(scaled).sum(axis=1)) - scaled[np.arange(len(labels)), labels]))


def best_temperature(logits: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the temperature of the smallest cross-entropy, from 0.05 to 20, within 0.1 %.

    The cross-entropy is convex in 1 / temperature, so a search by thirds finds its minimum.

    Args:
        logits: float [n, classes], of examples that weren't trained on.
        labels: int [n].
    """
    low, high = np.log(0.05), np.log(20.0)
    while high - low > 1e-3:
        third = (high - low) / 3
        lower, upper = (cross_entropy(logits, labels, np.exp(at)) for at in (low + third, high - third))
        low, high = (low, high - third) if lower < upper else (low + third, high)
    return float(np.exp((low + high) / 2))
