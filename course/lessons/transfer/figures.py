"""The other figures of lesson 07: parameters, the grid of trainings, and how far weights moved."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labkit.figures.style import OKABE_ITO, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_parameters(counts: Mapping[str, int]) -> "Figure":
    """Draw the number of parameters of each stage."""
    shown = ", ".join(f"{stage} {count:,}" for stage, count in counts.items())
    with drawing(7, 2.2, f"Parameters of each stage: {shown}") as figure:
        axis = figure.subplots()
        bars = axis.barh(list(counts), list(counts.values()), color=OKABE_ITO[0], height=0.6)
        axis.bar_label(bars, [f"{count:,}" for count in counts.values()], padding=3, fontsize=8)
        axis.invert_yaxis()
        axis.set(title="Parameters", xlabel="trainable parameters", xlim=(0, 1.15 * max(counts.values())))
        axis.tick_params(axis="y", length=0)
    return figure


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


def draw_moved(moved: Mapping[str, Mapping[str, float]], accuracy: Mapping[str, float]) -> "Figure":
    """Draw how far the kernels of each stage moved, and the accuracy, for several trainings.

    Args:
        moved: by training, by stage: norm of the change over norm of the weights.
        accuracy: by training, 0 to 1.
    """
    with drawing(9.5, 2.9, f"Change of each stage and accuracy: {', '.join(moved)}") as figure:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        for number, (name, distances) in enumerate(moved.items()):
            left.plot(list(distances), list(distances.values()), "o-", color=OKABE_ITO[number], label=name)
        left.set(yscale="log", ylabel="change of the kernels\n÷ their norm", xlabel="stage")
        left.yaxis.set_major_formatter("{x:g}")  # no mathematical fonts, which a machine may lack
        left.set_title("How far the weights moved")
        left.grid(axis="y")
        left.legend(title="learning rate", title_fontsize=8)
        values = [100 * value for value in accuracy.values()]
        bars = right.bar(list(accuracy), values, color=OKABE_ITO[: len(values)], width=0.6)
        right.bar_label(bars, [f"{value:.0f} %" for value in values], padding=2, fontsize=8)
        right.set(title="New classes", ylabel="test accuracy, %", xlabel="learning rate")
        right.set_ylim(0, 1.2 * max(values))
    return figure
