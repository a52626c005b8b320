"""Figures of images, and of what a run took them for."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.plots.style import GREY, MARK, TEST, new_figure, styled
from labkit.plurals import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.analysis.predictions import Predictions

__all__ = ["image_grid", "message", "prediction_grid", "wrong_predictions"]


def image_grid(
    images: NDArray[np.uint8], titles: Sequence[str] = (), rows: Sequence[str] = (), *, columns: int = 10
) -> "Figure":
    """Draw images side by side, line by line.

    Args:
        images: uint8 [n, height, width, channels], 1 or 3 channels.
        titles: one above each of the first ``len(titles)`` images.
        rows: one label left of each of the first lines.
        columns: images in a line.

    Raises ValueError where there is no image.
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
        for place, axis in enumerate(axes.flat):
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if place < len(images):
                axis.imshow(images[place].squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            if place < len(titles):
                axis.set_title(titles[place], fontsize=8, loc="center", fontweight="normal")
        for axis, label in zip(axes[:, 0], rows, strict=False):
            axis.set_ylabel(label, fontsize=8)
    return figure


def wrong_predictions(predictions: "Predictions", count: int = 16, *, columns: int = 8) -> "Figure":
    """Draw the ``count`` most confident mistakes: true class, predicted class and its probability.

    Of several labels per image all that are true and all that are predicted.
    """
    places = predictions.select(wrong_only=True)[:count]
    if not len(places):
        return message("Not one prediction is wrong.")
    return prediction_grid(predictions, places, columns=columns)


def prediction_grid(predictions: "Predictions", places: ArrayLike, *, columns: int = 8) -> "Figure":
    """Draw the examples at ``places``, int [n], each titled with what it is and what it was taken for."""
    places = np.asarray(places)
    titles = []
    for place in places:
        true = predictions.names(predictions.has[place])
        predicted = predictions.names(predictions.given[place])
        if predictions.multi_label:
            titles.append("\n→ ".join(textwrap.fill(names, 20) for names in (true, predicted)))
        else:
            titles.append(f"{true}\n→ {predicted} {predictions.probabilities[place].max():.0%}")
    figure = image_grid(predictions.images[places], titles, columns=columns)
    for axis, place in zip(figure.axes, places, strict=False):
        axis.title.set_color(MARK if predictions.wrong[place] else TEST)
    return figure


def message(text: str) -> "Figure":
    """Draw a line of text where there is nothing else to draw."""
    with styled():
        figure = new_figure(6, 0.6, text)
        figure.text(0.5, 0.5, text, ha="center", va="center", color=GREY)
    return figure
