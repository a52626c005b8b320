"""Figures of the classes: the confusion matrix, and the accuracy of each class."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from labkit.notebook.plots.images import message
from labkit.notebook.plots.style import TRAIN, VALIDATION, new_figure, shown_name, styled
from labkit.training.scores import MAX_CONFUSION_CLASSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.analysis.predictions import Predictions

__all__ = ["class_accuracy", "confusion_matrix"]

MAX_CLASSES_WITH_COUNTS = 20
MAX_NAMED_CLASSES = 50  # on each axis of the matrix; of more, some are named
MAX_BARS = 50


def confusion_matrix(confusion: ArrayLike | None, classes: Sequence[str]) -> "Figure":
    """Draw a confusion matrix. The shade of a cell is its share of the true class.

    Args:
        confusion: counts, int [true class, predicted class]. None, for images with several labels or very
            many classes, draws a line of text that says so.
        classes: names.

    Raises ValueError if the matrix doesn't have one row and one column for each class.
    """
    if confusion is None:
        many = len(classes) > MAX_CONFUSION_CLASSES
        what = f"more than {MAX_CONFUSION_CLASSES:,} classes" if many else "images with several labels"
        return message(f"There is no confusion matrix for {what}.")
    counts = np.asarray(confusion)
    if counts.shape != (len(classes), len(classes)):
        raise ValueError(f"confusion has shape {counts.shape}; allowed: {(len(classes), len(classes))}")
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(10.0, max(4.0, 0.5 * len(classes)))
    with styled():
        figure = new_figure(
            size + 1.2, size, "Confusion matrix: true classes in rows, predicted classes in columns"
        )
        axis = figure.subplots()
        shade = axis.imshow(share, cmap="Blues", vmin=0, vmax=1)
        ticks = range(0, len(classes), -(-len(classes) // MAX_NAMED_CLASSES))
        names = [shown_name(classes[number]) for number in ticks]
        size = 6 if len(classes) > MAX_CLASSES_WITH_COUNTS else 9
        axis.set_xticks(ticks, names, rotation=45, ha="right", rotation_mode="anchor", fontsize=size)
        axis.set_yticks(ticks, names, fontsize=size)
        axis.set(xlabel="predicted class", ylabel="true class", title="Confusion matrix")
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        figure.colorbar(shade, ax=axis, label="share of the true class", shrink=0.8).outline.set_visible(
            False
        )
        if len(classes) <= MAX_CLASSES_WITH_COUNTS:
            for (true, predicted), count in np.ndenumerate(counts):
                if count:
                    dark = share[true, predicted] > 0.5
                    axis.text(
                        predicted, true, f"{count:,}", ha="center", va="center", fontsize=8,
                        color="white" if dark else "#1f2937",
                    )  # fmt: skip
    return figure


def class_accuracy(predictions: "Predictions") -> "Figure":
    """Draw the accuracy of each class, sorted, and a line at the accuracy over all examples.

    For images with several labels, draw the recall of each label, without the line. Of very many classes,
    those with the lowest values are drawn.
    """
    key, title = "accuracy", "Accuracy of each class"
    if predictions.multi_label:
        key, title = "recall", "Recall of each label"
    rows = [row for row in predictions.per_class() if row[key] is not None]
    rows.sort(key=lambda row: row[key])
    if len(rows) > MAX_BARS:
        title = f"{title}: the lowest {MAX_BARS} of {len(rows):,}"
        rows = rows[:MAX_BARS]
    names, shares = [shown_name(row["class"]) for row in rows], [row[key] for row in rows]
    with styled():
        figure = new_figure(7, max(1.8, 0.28 * len(rows) + 0.8), title)
        axis = figure.subplots()
        bars = axis.barh(range(len(names)), shares, color=TRAIN, height=0.7)
        axis.set_yticks(range(len(names)), names)  # equal names would be one bar
        axis.bar_label(bars, [f"{share:.1%}" for share in shares], padding=3, fontsize=8)
        axis.set(xlim=(0, 1.1), xlabel="share recognised (recall)", title=title)
        axis.set_xticks(np.linspace(0, 1, 6), [f"{share:.0%}" for share in np.linspace(0, 1, 6)])
        axis.tick_params(axis="y", length=0)
        if len(predictions) and not predictions.multi_label:
            mean = 1 - float(predictions.wrong.mean())
            axis.axvline(mean, color=VALIDATION, linewidth=1.2)
            axis.set_title(f"{title} (line: all examples, {mean:.1%})")
    return figure
