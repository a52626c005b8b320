"""Figures of images, predictions and classes."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.config.fields import argument
from labkit.errors import InputError
from labkit.figures.style import GREY, MARK, TEST, TRAIN, VALIDATION, drawing, shown_name
from labkit.plurals import counted
from labkit.training.scores import MAX_CONFUSION_CLASSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from labkit.analysis.predictions import Predictions

MAX_PROBABILITIES = 12  # bars of one prediction
MAX_CLASSES_WITH_COUNTS = 20
MAX_NAMED_CLASSES = 50  # on each axis of the matrix; of more, some are named
MAX_BARS = 50  # of classes


def image_grid(
    images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8],
    titles: Sequence[str] = (),
    rows: Sequence[str] = (),
    *,
    columns: int = 10,
) -> "Figure":
    """Draw images in a grid, row by row.

    Args:
        images: uint8 [n, height, width, channels], 1 or 3 channels, or a list of images, of any sizes.
        titles: above the first images, one each; may be fewer than the images.
        rows: labels to the left of the first rows of the grid; may be fewer than the rows.
        columns: images in a row.

    Raises InputError if there is no image, and for images of another kind.
    """
    if not len(images):
        raise InputError("no image to draw; give at least one")
    for image in map(np.asarray, images):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] not in (1, 3):
            kind = f"{image.dtype} {list(image.shape)}"
            raise InputError(f"an image is {kind}; allowed: uint8 [height, width, 1 or 3]")
    if argument("columns", columns, int) < 1:
        raise InputError(f"columns is {columns}; allowed: a whole number of at least 1")
    lines = -(-len(images) // columns)
    titled_lines = -(-len(titles) // columns)
    title_height = 0.15 * max((title.count("\n") + 1 for title in titles), default=0)
    width = 9.5
    height = width / columns * lines + title_height * titled_lines
    with drawing(width, height, counted(len(images), "image")) as figure:
        axes = figure.subplots(lines, columns, squeeze=False)
        for number, axis in enumerate(axes.flat):
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if number < len(images):
                axis.imshow(images[number].squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            if number < len(titles):
                axis.set_title(titles[number], fontsize=8, loc="center", fontweight="normal")
        for axis, label in zip(axes[:, 0], rows, strict=False):
            axis.set_ylabel(label, fontsize=8)
    return figure


def wrong_predictions(predictions: "Predictions", count: int = 16, *, columns: int = 8) -> "Figure":
    """Draw the ``count`` most confident mistakes with their true class, predicted class and its probability.

    Images with several labels show all true labels and all predicted ones. Of labels that are numbers, those
    with the largest errors are drawn.
    """
    if predictions.are_numbers:
        return prediction_grid(predictions, predictions.worst_first[:count], columns=columns)
    indices = predictions.select(wrong_only=True)[:count]
    if not len(indices):
        return message("All predictions are right.")
    return prediction_grid(predictions, indices, columns=columns)


def prediction_grid(predictions: "Predictions", indices: ArrayLike, *, columns: int = 8) -> "Figure":
    """Draw the examples with these indices, int [n], titled with true and predicted class."""
    indices = np.asarray(indices)
    titles = []
    if predictions.are_numbers:
        for index in indices:
            pair = (predictions.labels[index], predictions.probabilities[index])
            titles.append("\n→ ".join(", ".join(f"{value:.4g}" for value in values) for values in pair))
        return image_grid(predictions.images[indices], titles, columns=columns)
    for index in indices:
        both = [predictions.names(classes[index]) for classes in (predictions.has, predictions.given)]
        if predictions.multi_label:
            names = [", ".join(map(shown_name, labels.split(", "))) for labels in both]
            titles.append("\n→ ".join(textwrap.fill(labels, 20) for labels in names))
        else:
            true, predicted = (shown_name(name, 128 // columns) for name in both)
            apart = " " if len(predicted) * columns <= 90 else "\n"
            titles.append(f"{true}\n→ {predicted}{apart}{predictions.probabilities[index].max():.0%}")
    figure = image_grid(predictions.images[indices], titles, columns=columns)
    for axis, index in zip(figure.axes, indices, strict=False):
        axis.title.set_color(MARK if predictions.wrong[index] else TEST)
    return figure


def message(text: str) -> "Figure":
    """Return a figure that holds only a line of text, for when there is nothing to draw."""
    with drawing(6, 0.6, text) as figure:
        figure.text(0.5, 0.5, text, ha="center", va="center", color=GREY)
    return figure


def prediction_detail(
    predictions: "Predictions", index: int, heat: NDArray[np.float64] | None = None, patch: int = 0
) -> "Figure":
    """Draw an example, its probabilities, and where covering it lowers the probability of the prediction.

    Args:
        predictions: of a split.
        index: position of the example.
        heat: float [height, width], of ``labkit.analysis.network.occlusion_map`` for the most probable class;
            None: without.
        patch: side of the covered square in pixels, for the title.
    """
    true, predicted = (
        shown_name(predictions.names(classes[index]), 60) for classes in (predictions.has, predictions.given)
    )
    parts = 2 if heat is None else 3
    with drawing(
        3.2 * parts, 2.9, f"image {predictions.index[index]}: true {true}, predicted {predicted}"
    ) as figure:
        axes = figure.subplots(1, parts, width_ratios=(1, 1.1, 1.25)[:parts])
        axes[0].imshow(predictions.images[index].squeeze(), cmap="gray", vmin=0, vmax=255)
        axes[0].set(xticks=[], yticks=[], title=f"true: {true}", xlabel=f"predicted: {predicted}")
        _draw_probabilities(axes[1], predictions, index)
        if heat is not None:
            shade = draw_heat(axes[2], predictions.images[index], heat)
            axes[2].set_title(f"covered by {patch}×{patch} pixels")
            covered = shown_name(predictions.classes[predictions.probabilities[index].argmax()], 60)
            figure.colorbar(shade, ax=axes[2], label=f"fall of the probability of {covered}")
    return figure


def draw_heat(axis: "Axes", image: NDArray[np.uint8], heat: NDArray[np.float64], limit: float = 0.0) -> Any:
    """Draw ``heat`` [height, width] over the grey image. Returns what a colour bar needs.

    ``limit``: end of the colour scale; 0: the largest absolute value.
    """
    limit = limit or float(np.abs(heat).max()) or 1.0
    axis.imshow(image.mean(axis=-1), cmap="gray", vmin=0, vmax=255)
    axis.set(xticks=[], yticks=[])
    return axis.imshow(heat, cmap="RdBu_r", vmin=-limit, vmax=limit, alpha=0.75)


def _draw_probabilities(axis: "Axes", predictions: "Predictions", index: int) -> None:
    probabilities, has = predictions.probabilities[index], predictions.has[index]
    given = predictions.given[index]
    shown = np.arange(len(probabilities))
    if len(shown) > MAX_PROBABILITIES:  # the most probable, and the true ones
        shown = np.union1d(np.argsort(-probabilities, kind="stable")[:MAX_PROBABILITIES], np.flatnonzero(has))
        shown = shown[np.argsort(-probabilities[shown], kind="stable")]
    colours = [TEST if has[place] else MARK if given[place] else GREY for place in shown]
    bars = axis.barh(range(len(shown)), probabilities[shown], color=colours, height=0.7)
    axis.set_yticks(range(len(shown)), [shown_name(predictions.classes[place]) for place in shown])
    axis.bar_label(bars, [f"{value:.0%}" for value in probabilities[shown]], padding=3, fontsize=7)
    axis.set(xlim=(0, 1.2), xlabel="probability", title="green: the true class")
    axis.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)


def predicted_and_true(predictions: "Predictions") -> "Figure":
    """Draw each predicted number over the true one; on the line both are equal."""
    count = len(predictions.classes)
    with drawing(4.6 * count, 4.2, "Predicted over true numbers") as figure:
        for place, axis in enumerate(figure.subplots(1, count, squeeze=False)[0]):
            true, given = predictions.labels[:, place], predictions.probabilities[:, place]
            axis.plot(true, given, ".", color=TRAIN, markersize=3, alpha=0.5)
            if len(true):
                ends = [min(true.min(), given.min()), max(true.max(), given.max())]
                axis.plot(ends, ends, color=GREY, linewidth=1)
            name, error = shown_name(predictions.classes[place]), predictions.errors[:, place].mean()
            axis.set(xlabel=f"true {name}", ylabel=f"predicted {name}", title=f"mean error {error:.4g}")
    return figure


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
    with drawing(
        size + 1.2, size, "Confusion matrix: true classes in rows, predicted classes in columns"
    ) as figure:
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
    if predictions.are_numbers:
        return message("Labels here are numbers: there are no classes.")
    key, title = "accuracy", "Accuracy of each class"
    if predictions.multi_label:
        key, title = "recall", "Recall of each label"
    rows = [row for row in predictions.per_class() if row[key] is not None]
    rows.sort(key=lambda row: row[key])
    if len(rows) > MAX_BARS:
        title = f"{title}: the lowest {MAX_BARS} of {len(rows):,}"
        rows = rows[:MAX_BARS]
    names, shares = [shown_name(row["class"]) for row in rows], [row[key] for row in rows]
    with drawing(7, max(1.8, 0.28 * len(rows) + 0.8), title) as figure:
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
            axis.set_title(textwrap.fill(f"{title} (line: all examples, {mean:.1%})", 60))
    return figure
