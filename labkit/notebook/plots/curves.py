"""The figure of a training: loss, accuracy, learning rate and speed over the steps."""

from typing import TYPE_CHECKING

import numpy as np

from labkit.analysis.curves import Curve, Curves, moving_average
from labkit.notebook.plots.style import GREY, MARK, TEST, TRAIN, VALIDATION, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["training_curves"]


def training_curves(curves: Curves, *, smoothing: float = 0.9) -> "Figure":
    """Draw loss, accuracy, learning rate and examples per second over the steps of a run.

    Training steps are drawn as a faint line, and their moving average as a strong one. Dotted vertical lines
    mark where the run was resumed. Crosses at the upper edge mark steps whose value is NaN or infinite.

    Args:
        curves: of ``labkit.analysis.curves.read_curves``.
        smoothing: weight of the past in the moving average, 0 ≤ smoothing < 1; 0 draws the values only.
    """
    panels = (
        ("loss", "Loss", "cross-entropy (nats)"),
        ("accuracy", "Accuracy", "share of examples"),
        ("learning_rate", "Learning rate", "learning rate"),
        ("examples_per_second", "Speed", "examples per second"),
    )
    with styled():
        figure = new_figure(
            9.5, 5.6, "Loss, accuracy, learning rate and examples per second over training steps"
        )
        for axis, (name, title, label) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
            weight = 0.0 if name == "learning_rate" else smoothing
            _draw_training(axis, curves.curve("train", name), weight)
            _draw_evaluations(axis, curves, name)
            _draw_resume_points(axis, curves)
            axis.set(title=title, ylabel=label)
            axis.grid(axis="y")
            axis.set_axisbelow(True)
            if name in ("learning_rate", "examples_per_second"):
                axis.set_ylim(bottom=0)
                axis.set_xlabel("step")
            if len(axis.get_legend_handles_labels()[1]) > 1:
                axis.legend()
    return figure


def _draw_training(axis: "Axes", curve: Curve, weight: float) -> None:
    if not len(curve):
        return
    finite = np.where(np.isfinite(curve.value), curve.value, np.nan)
    label = "train"
    if weight:
        axis.plot(curve.step, finite, color=TRAIN, alpha=0.25, linewidth=0.7)
        label = "train (moving average)"
    axis.plot(curve.step, moving_average(finite, weight), color=TRAIN, linewidth=1.6, label=label)
    not_finite = curve.not_finite
    if len(not_finite):
        edge = axis.get_xaxis_transform()
        heights = np.full(len(not_finite), 0.97)
        axis.plot(not_finite, heights, "x", color=MARK, transform=edge, label="NaN or infinite")


def _draw_evaluations(axis: "Axes", curves: Curves, name: str) -> None:
    for split, color, marker in (("validation", VALIDATION, "o-"), ("test", TEST, "D")):
        if name not in ("loss", "accuracy"):
            continue
        curve = curves.curve(split, name)
        if len(curve):
            axis.plot(
                curve.step, curve.value, marker, color=color, markersize=4.5, linewidth=1.2, label=split
            )


def _draw_resume_points(axis: "Axes", curves: Curves) -> None:
    for number, resume_point in enumerate(curves.resume_points):
        axis.axvline(
            resume_point.step, color=GREY, linestyle=":", linewidth=1, label=None if number else "resumed"
        )
