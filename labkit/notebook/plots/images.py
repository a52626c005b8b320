"""Figures of images and their predictions."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.notebook.plots.style import GREY, MARK, TEST, new_figure, shown_name, styled
from labkit.plurals import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.analysis.predictions import Predictions

__all__ = ["image_grid", "message", "prediction_grid", "wrong_predictions"]


def image_grid(
    images: NDArray[np.uint8], titles: Sequence[str] = (), rows: Sequence[str] = (), *, columns: int = 10
) -> "Figure":
    """Draw images in a grid, row by row.

    Args:
        images: uint8 [n, height, width, channels], 1 or 3 channels.
        titles: above the first images, one each; may be fewer than the images.
        rows: labels to the left of the first rows of the grid; may be fewer than the rows.
        columns: images in a row.

    Raises ValueError if there is no image.
    """
    if not len(images):
        raise ValueError("no image to draw; give at least one")
    lines = -(-len(images) // columns)
    titled_lines = -(-len(titles) // columns)
    title_height = 0.15 * max((title.count("\n") + 1 for title in titles), default=0)
    width = 9.5
    height = width / columns * lines + title_height * titled_lines
    with styled():
        figure = new_figure(width, height, counted(len(images), "image"))
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

    Images with several labels show all true labels and all predicted ones.
    """
    indices = predictions.select(wrong_only=True)[:count]
    if not len(indices):
        return message("All predictions are right.")
    return prediction_grid(predictions, indices, columns=columns)


def prediction_grid(predictions: "Predictions", indices: ArrayLike, *, columns: int = 8) -> "Figure":
    """Draw the examples with these indices, int [n], titled with true and predicted class."""
    indices = np.asarray(indices)
    titles = []
    for index in indices:
        both = [predictions.names(classes[index]) for classes in (predictions.has, predictions.given)]
        if predictions.multi_label:
            names = [", ".join(map(shown_name, labels.split(", "))) for labels in both]
            titles.append("\n→ ".join(textwrap.fill(labels, 20) for labels in names))
        else:
            true, predicted = (shown_name(name, 18) for name in both)
            titles.append(f"{true}\n→ {predicted} {predictions.probabilities[index].max():.0%}")
    figure = image_grid(predictions.images[indices], titles, columns=columns)
    for axis, index in zip(figure.axes, indices, strict=False):
        axis.title.set_color(MARK if predictions.wrong[index] else TEST)
    return figure


def message(text: str) -> "Figure":
    """Return a figure that holds only a line of text, for when there is nothing to draw."""
    with styled():
        figure = new_figure(6, 0.6, text)
        figure.text(0.5, 0.5, text, ha="center", va="center", color=GREY)
    return figure
