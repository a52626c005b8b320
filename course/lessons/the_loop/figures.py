"""The figures of lesson 03."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labkit.figures.style import GREY, MARK, OKABE_ITO, TRAIN, VALIDATION, drawing
from labkit.run_directory.layers import LayerRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from course.lessons.the_loop.surface import Surface

RATE = 0.03  # learning rate on the quadratic


def _contours(axis: "Axes") -> None:
    across, up = np.meshgrid(np.linspace(-4.5, 4.5, 120), np.linspace(-2.6, 2.6, 100))
    losses = loss_at(np.stack([across, up], axis=-1))
    axis.contour(across, up, losses, levels=np.geomspace(0.3, 90, 9), colors="#d1d5db", linewidths=0.8)
    axis.plot(*MINIMUM, "*", color=GREY, markersize=11, label="minimum")
    axis.plot(*START, "s", color=GREY, markersize=5, label="start")
    axis.set(xlabel="weight in the flat direction", ylabel="weight in the steep direction")


def momentum_figure(momentum: float) -> "Figure":
    """Draw the path of SGD with and without ``momentum`` on the quadratic, and its loss over the steps."""
    paths = {"no momentum": descend(RATE), f"momentum {momentum:g}": descend(RATE, momentum)}
    with drawing(9.5, 3.2, f"Paths on a quadratic without momentum and with momentum {momentum:g}") as figure:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _contours(left)
        for (name, path), color in zip(paths.items(), (GREY, TRAIN), strict=True):
            left.plot(*path.T, ".-", color=color, linewidth=1, markersize=4, label=name)
            right.plot(np.arange(len(path)), np.maximum(loss_at(path), 1e-6), color=color, label=name)
        left.set(title=f"Momentum {momentum:g}, rate {RATE:g}", xlim=(-4.5, 4.5), ylim=(-2.6, 2.6))
        left.legend(loc="lower right", fontsize=7)
        right.set(title="Loss", xlabel="step", ylabel="loss", yscale="log", ylim=(1e-5, 100))
        right.grid(axis="y")
        right.legend()
    return figure


def decay_figure() -> "Figure":
    """Draw where SGD with momentum 0.5 ends on the quadratic with some coefficients of weight decay."""
    decays = (0.0, 0.3, 3.0)
    with drawing(6.0, 3.4, f"Paths on a quadratic with weight decay {', '.join(map(str, decays))}") as figure:
        axis = figure.subplots()
        _contours(axis)
        for decay, color in zip(decays, OKABE_ITO, strict=False):
            path = descend(RATE, 0.5, decay, steps=150)
            axis.plot(*path.T, "-", color=color, linewidth=1)
            axis.plot(*path[-1], "o", color=color, label=f"end with decay {decay:g}")
        axis.plot(0, 0, "+", color="black", markersize=9, label="weights 0")
        axis.set(title="Weight decay moves the end towards 0", xlim=(-4.5, 4.5), ylim=(-2.6, 2.6))
        axis.legend(loc="lower right", fontsize=7)
    return figure


def ratio_figure(rows: Sequence[LayerRow]) -> "Figure":
    """Draw the update ratio of each layer with trained weights at some inspected steps."""
    first = rows[0]
    trained = [
        index
        for index, name in enumerate(first.layers)
        if first.values["update_ratio"][index] is not None and ("conv" in name or name == "logits")
    ]
    with drawing(9.5, 3.4, "Update ratio of each layer at some steps, with a line at 0.001") as figure:
        axis = figure.subplots()
        for row, shade in zip(rows, np.linspace(0.25, 1, len(rows)), strict=True):
            ratios = [float(row.values["update_ratio"][index] or np.nan) for index in trained]
            axis.plot(ratios, "o-", color=TRAIN, alpha=shade, markersize=4, label=f"step {row.step}")
        axis.axhline(1e-3, color=MARK, linewidth=1, linestyle="--", label="0.001")
        names = [
            first.layers[index].replace("_conv", " conv").replace("_block", " block ") for index in trained
        ]
        axis.set_xticks(range(len(trained)), names, rotation=30, ha="right", fontsize=8)
        axis.set(title="Change of a layer's weights in a step, relative to the weights", yscale="log")
        axis.set_ylabel("update ratio")
        axis.grid(axis="y")
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def range_figure(rates: NDArray[np.float64], losses: NDArray[np.float64], chosen: float) -> "Figure":
    """Draw the loss of a range test, with the rate of the lesson's run; losses over 5, and NaN, are at 5."""
    with drawing(7.5, 3.0, "Loss over the learning rate, which grows by a factor at each step") as figure:
        axis = figure.subplots()
        axis.plot(rates, np.clip(np.nan_to_num(losses, nan=5.0), 0, 5), ".-", color=TRAIN)
        axis.axvline(chosen, color=VALIDATION, linestyle="--", label=f"peak of the run, {chosen:g}")
        axis.set(title="Learning-rate range test", xscale="log", xlabel="learning rate", ylim=(0, 5.2))
        axis.set_ylabel("cross-entropy (nats), up to 5")
        axis.grid(axis="y")
        axis.legend()
    return figure


def surface_figure(surfaces: "Sequence[Surface]") -> "Figure":
    """Draw the loss surfaces side by side, as maps with contours, on one scale of colours."""
    lowest = min(surface.losses.min() for surface in surfaces)
    highest = max(np.quantile(surface.losses, 0.95) for surface in surfaces)
    levels = np.linspace(lowest, highest, 15)
    names = " and ".join(surface.name for surface in surfaces)
    with drawing(9.5, 3.9, f"Loss in a random plane around the trained weights of {names}") as figure:
        axes = figure.subplots(1, len(surfaces), sharey=True, squeeze=False)[0]
        for axis, surface in zip(axes, surfaces, strict=True):
            offsets = surface.offsets
            shown = axis.contourf(offsets, offsets, surface.losses, levels, cmap="cividis", extend="both")
            lines = axis.contour(
                offsets, offsets, surface.losses, levels[::2], colors="white", linewidths=0.6
            )
            axis.clabel(lines, fontsize=7, fmt="%.1f")
            axis.plot(0, 0, "*", color=MARK, markersize=10)
            axis.set(title=surface.name, xlabel="first direction (filter norms)", aspect="equal")
        axes[0].set_ylabel("second direction (filter norms)")
        figure.colorbar(shown, ax=list(axes), label="cross-entropy (nats)")
    return figure


CURVATURE = np.array([1.0, 25.0])  # of the two directions: flat and steep
MINIMUM = np.array([3.0, 1.0])
START = np.array([-3.0, -1.0])


def loss_at(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the loss at ``weights`` float64 [..., 2]: half the curvature times the squared distance."""
    return 0.5 * ((weights - MINIMUM) ** 2 * CURVATURE).sum(axis=-1)


def descend(rate: float, momentum: float = 0.0, decay: float = 0.0, steps: int = 40) -> NDArray[np.float64]:
    """Return the weights from ``START`` on, float64 [steps + 1, 2], under SGD with labkit's rule."""
    weights, velocity = START.copy(), np.zeros(2)
    path = [weights]
    for _ in range(steps):
        gradient = CURVATURE * (weights - MINIMUM) + decay * weights
        velocity = momentum * velocity + gradient
        weights = weights - rate * velocity
        path.append(weights)
    return np.array(path)
