"""Metrics of a whole split and of its classes, from labels and logits. Needs only NumPy.

Labels are int [n], or int [n, num_classes] of zeros and ones if an image has several. Predictions are int [n]
or bool [n, num_classes] accordingly. Of labels that are numbers, both are float [n, numbers].
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MAX_CONFUSION_CLASSES = 1_000  # a matrix of 10,000 classes would have 800 MB
_VALUES_AT_ONCE = 2**24  # logits whose order is computed: 128 MB


def softmax(logits: Array) -> Array:
    """Return probabilities float64 [n, num_classes]; each row sums to 1."""
    return np.exp(_log_softmax(logits))


def sigmoid(logits: Array) -> Array:
    """Return independent probabilities float64 [n, num_classes]."""
    logits = logits.astype(np.float64)
    small = np.exp(-np.abs(logits))  # never overflows
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def _log_softmax(logits: Array) -> Array:
    logits = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # an Infinity minus itself is NaN, which is reported as the loss
        shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def indicators(labels: Array, num_classes: int) -> NDArray[np.bool_]:
    """Return which classes each example has, bool [n, num_classes]."""
    return labels != 0 if labels.ndim == 2 else labels[:, None] == np.arange(num_classes)


def first_of_each_class(labels: Array, num_classes: int) -> dict[int, int]:
    """Return the row of each class's first example, by class; classes without examples are left out."""
    has = indicators(labels, num_classes)
    return {int(place): int(has[:, place].argmax()) for place in np.flatnonzero(has.any(axis=0))}


def right(predicted: Array, labels: Array) -> NDArray[np.bool_]:
    """Return whether each example is predicted correctly, in all its labels, bool [n]."""
    equal = predicted == labels
    return equal.all(axis=1) if equal.ndim == 2 else equal


def confusion_counts(labels: Array, predicted: Array, num_classes: int) -> NDArray[np.int64] | None:
    """Return counts, int64 [true class, predicted class].

    None if images have several labels, where it isn't defined, or above ``MAX_CONFUSION_CLASSES``.
    """
    if labels.ndim == 2 or num_classes > MAX_CONFUSION_CLASSES:
        return None
    cells = labels.astype(np.int64) * num_classes + predicted
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def single_label_scores(labels: Array, logits: Array) -> dict[str, float]:
    """Return the metrics for one label per image.

    ``loss``: mean cross-entropy in nats. ``accuracy``: share of images whose label has the largest logit.
    ``top5_accuracy``: share of images whose label is among the five largest (ties: the lower class first);
    left out for at most five classes, where it is always 1.
    """
    rows = max(1, _VALUES_AT_ONCE // logits.shape[1])
    parts = [
        _rows_of_scores(labels[start : start + rows], logits[start : start + rows])
        for start in range(0, max(len(labels), 1), rows)
    ]
    losses, hits, among_five = (np.concatenate(values) for values in zip(*parts, strict=True))
    scores = {"loss": float(losses.mean()), "accuracy": float(hits.mean())}
    return scores | ({"top5_accuracy": float(among_five.mean())} if logits.shape[1] > 5 else {})


def _rows_of_scores(labels: Array, logits: Array) -> tuple[Array, Array, Array]:
    """Return the loss of each example, whether it is right, and whether its label is among the best five."""
    best = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    return (
        -_log_softmax(logits)[np.arange(len(labels)), labels],
        logits.argmax(axis=1) == labels,
        (best == labels[:, None]).any(axis=1),
    )


def multi_label_scores(labels: Array, logits: Array) -> dict[str, float]:
    """Return the metrics for several labels per image, each predicted if its probability is over one half.

    ``loss``: binary cross-entropy in nats, summed over labels and averaged over images. ``accuracy``: share
    of images with every label correct (exact match, subset accuracy). ``binary_accuracy``: share of correct
    labels (1 - Hamming loss). ``f1_micro``: F1 of all labels together. ``f1_macro``: mean F1 of the labels.
    An F1 without any true or predicted label is 0, as in scikit-learn.
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


def scores_of_numbers(labels: Array, predicted: Array, std: Array) -> dict[str, float]:
    """Return the metrics for labels that are numbers, float [n, k], as are the predictions.

    ``loss``: mean squared error in units of ``std`` [k]. ``mean_absolute_error``: in the unit of the labels.
    ``r2``: 1 minus the squared error in proportion to that of the split's own mean (coefficient of
    determination, as in scikit-learn). The last two are means over the numbers of a label.
    """
    errors = predicted.astype(np.float64) - labels
    around = ((labels - labels.mean(axis=0, dtype=np.float64)) ** 2).sum(axis=0)
    # A split of equal numbers has no r2: it is NaN.
    r2 = 1 - (errors**2).sum(axis=0) / np.where(around > 0, around, np.nan)
    return {
        "loss": float(((errors / std) ** 2).mean()),
        "mean_absolute_error": float(np.abs(errors).mean()),
        "r2": float(r2.mean()),
    }


def number_metrics(
    labels: Array, predicted: Array, names: Sequence[str]
) -> list[dict[str, float | int | str | None]]:
    """Return the metrics of each number of a label: ``name``, ``count``, ``mean_absolute_error``, ``r2``."""
    rows: list[dict[str, float | int | str | None]] = []
    for place, name in enumerate(names):
        part = slice(place, place + 1)
        found = scores_of_numbers(labels[:, part], predicted[:, part], np.ones(1))
        r2 = found["r2"] if np.isfinite(found["r2"]) else None
        rows.append(
            {
                "name": name,
                "count": len(labels),
                "mean_absolute_error": found["mean_absolute_error"],
                "r2": r2,
            }
        )
    return rows


def class_metrics(
    labels: Array, predicted: Array, classes: Sequence[str]
) -> list[dict[str, float | int | str | None]]:
    """Return the metrics of each class; a ratio is None if its denominator is 0.

    They are ``name`` and ``count`` (number of examples with the class); with one label per image,
    ``accuracy`` (recall) and ``precision``; with several labels, ``recall``, ``precision`` and ``f1``.
    """
    if labels.ndim == 1:  # without arrays [n, classes], which are large for thousands of classes
        parts = (labels[labels == predicted], labels, predicted)
        columns = tuple(np.bincount(part, minlength=len(classes)) for part in parts)
    else:
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


def balanced_accuracy(labels: Array, logits: Array) -> float:
    """Return the mean recall of the classes that are there, as scikit-learn's ``balanced_accuracy_score``."""
    true, taken = _true_and_taken(labels, logits)
    counts = true.sum(axis=0)
    return float(((true & taken).sum(axis=0)[counts > 0] / counts[counts > 0]).mean())


def macro_f1(labels: Array, logits: Array) -> float:
    """Return the mean F1 of the classes that are there or predicted, as scikit-learn's ``f1_score``.

    Where images have several labels, it is that of all classes, and 0 for one that isn't there.
    """
    true, taken = _true_and_taken(labels, logits)
    hits, either = (true & taken).sum(axis=0), true.sum(axis=0) + taken.sum(axis=0)
    found = 2 * hits / np.maximum(either, 1)
    return float((found[either > 0] if labels.ndim == 1 else found).mean())


def auc(labels: Array, logits: Array) -> float:
    """Return the mean area under the ROC curves, each class against the others.

    It is the probability that an example of the class has a larger value (probability, or logit with several
    labels) than one without it, ties counted half; of classes that all or no examples have there is none.
    As scikit-learn's ``roc_auc_score`` with ``multi_class="ovr"``.
    """
    values = softmax(logits) if labels.ndim == 1 else logits.astype(np.float64)
    areas = []
    for place, true in enumerate(indicators(labels, logits.shape[1]).T):
        inside = int(true.sum())
        if 0 < inside < len(true):
            _, where, counts = np.unique(values[:, place], return_inverse=True, return_counts=True)
            ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]  # equal values share their mean rank
            above = ranks[true].sum() - inside * (inside + 1) / 2
            areas.append(above / (inside * (len(true) - inside)))
    return float(np.mean(areas)) if areas else float("nan")


def _true_and_taken(labels: Array, logits: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    predicted = logits.argmax(axis=1) if labels.ndim == 1 else logits > 0
    return indicators(labels, logits.shape[1]), indicators(predicted, logits.shape[1])


# The metrics of ``--metrics``, by name.
FURTHER = {"balanced_accuracy": balanced_accuracy, "f1_macro": macro_f1, "auc": auc}
