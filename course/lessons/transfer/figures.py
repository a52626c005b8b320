"""The heat map of lesson 07: accuracies of many trainings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labkit.figures.style import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_grid(accuracy: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str]) -> "Figure":
    """Draw accuracies as a heat map.

    Args:
        accuracy: mean test accuracy, 0 to 1, [rows, columns].
        rows: what was trained.
        columns: how many images there were.
    """
    with drawing(7.5, 0.46 * len(rows) + 1.1, "Test accuracy by images a class and frozen stages") as figure:
        axis = figure.subplots()
        shown = axis.imshow(100 * accuracy, cmap="viridis", aspect="auto", vmin=0, vmax=100 * accuracy.max())
        for (row, column), value in np.ndenumerate(accuracy):
            color = "black" if value > 0.6 * accuracy.max() else "white"
            axis.text(column, row, f"{100 * value:.0f}", ha="center", va="center", color=color)
        axis.set_yticks(range(len(rows)), rows)
        axis.set_xticks(range(len(columns)), columns)
        axis.set_xlabel("training images of each new class")
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        figure.colorbar(shown, ax=axis, label="test accuracy, %")
    return figure
