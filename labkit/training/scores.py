"""Figures of a whole split from its labels and logits, and of its classes. Needs NumPy alone.

Labels are int [n], or int [n, num_classes] of zeros and ones where an image has several; predictions go with
them: int [n], or bool [n, num_classes].
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "class_metrics",
    "first_of_each_class",
    "indicators",
    "multi_label_scores",
    "right",
    "sigmoid",
    "single_label_scores",
    "softmax",
]

Array = NDArray[Any]


def softmax(logits: Array) -> Array:
    """Return probabilities float64 [n, num_classes], each row of sum 1."""
    return np.exp(_log_softmax(logits))


def sigmoid(logits: Array) -> Array:
    """Return probabilities float64 [n, num_classes], each for itself."""
    logits = logits.astype(np.float64)
    small = np.exp(-np.abs(logits))  # never overflows
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def _log_softmax(logits: Array) -> Array:
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def indicators(labels: Array, num_classes: int) -> NDArray[np.bool_]:
    """Return which classes each example has, bool [n, num_classes]."""
    return labels != 0 if labels.ndim == 2 else labels[:, None] == np.arange(num_classes)


def first_of_each_class(labels: Array, num_classes: int) -> dict[int, int]:
    """Return the row of the first example of each class that has one, by class."""
    has = indicators(labels, num_classes)
    return {int(place): int(has[:, place].argmax()) for place in np.flatnonzero(has.any(axis=0))}


def right(predicted: Array, labels: Array) -> NDArray[np.bool_]:
    """Return whether each example's prediction is right, bool [n]: of several labels, every one."""
    equal = predicted == labels
    return equal.all(axis=1) if equal.ndim == 2 else equal


def single_label_scores(labels: Array, logits: Array) -> dict[str, float]:
    """Return the figures of one label per image.

    ``loss``: mean cross-entropy in nats. ``accuracy``: share of images whose label has the largest logit;
    ``top5_accuracy``: is among the five largest (ties: the lower class first).
    """
    best = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    return {
        "loss": float(-_log_softmax(logits)[np.arange(len(labels)), labels].mean()),
        "accuracy": float((logits.argmax(axis=1) == labels).mean()),
        "top5_accuracy": float((best == labels[:, None]).any(axis=1).mean()),
    }


def multi_label_scores(labels: Array, logits: Array) -> dict[str, float]:
    """Return the figures of several labels per image, each predicted where its probability is over one half.

    ``loss``: binary cross-entropy in nats, the sum over the labels, the mean over the images. ``accuracy``:
    share of images with every label right (exact match, subset accuracy); ``binary_accuracy``: share of all
    labels that are right (1 - Hamming loss). ``f1_micro``: F1 of all labels together; ``f1_macro``: the mean
    of the F1 of each label. An F1 without any true or predicted label is 0, as in scikit-learn.
    """
    z, true, predicted = logits.astype(np.float64), labels != 0, logits > 0
    losses = np.maximum(z, 0) - z * true + np.log1p(np.exp(-np.abs(z)))
    hits, either = (true & predicted).sum(axis=0), true.sum(axis=0) + predicted.sum(axis=0)
    return {
        "loss": float(losses.sum(axis=1).mean()),
        "accuracy": float((true == predicted).all(axis=1).mean()),
        "binary_accuracy": float((true == predicted).mean()),
        "f1_micro": float(2 * hits.sum() / max(either.sum(), 1)),
        "f1_macro": float((2 * hits / np.maximum(either, 1)).mean()),
    }


def class_metrics(
    labels: Array, predicted: Array, classes: Sequence[str]
) -> list[dict[str, float | int | str | None]]:
    """Return the figures of each class, None where nothing was counted.

    ``name``, ``count`` of examples that have it, and, of one label per image, ``accuracy`` (recall) and
    ``precision``; of several ``recall``, ``precision`` and ``f1``.
    """
    true, taken = indicators(labels, len(classes)), indicators(predicted, len(classes))
    columns = ((true & taken).sum(axis=0), true.sum(axis=0), taken.sum(axis=0))
    rows: list[dict[str, float | int | str | None]] = []
    for name, hits, count, of_taken in zip(classes, *columns, strict=True):
        recall, precision = _ratio(hits, count), _ratio(hits, of_taken)
        row: dict[str, float | int | str | None] = {"name": name, "count": int(count)}
        if labels.ndim == 1:
            row |= {"accuracy": recall, "precision": precision}
        else:
            row |= {"recall": recall, "precision": precision, "f1": _ratio(2 * hits, count + of_taken)}
        rows.append(row)
    return rows


def _ratio(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None
