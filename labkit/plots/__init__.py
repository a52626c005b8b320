"""Figures of a run and of its predictions. Matplotlib is loaded when the first one is drawn.

Each function returns a ``matplotlib.figure.Figure`` that belongs to no window and no pyplot state: it can be
saved from anywhere, and shows itself in a notebook when it is the last value of a cell.
"""

from labkit.plots.classes import class_accuracy, confusion_matrix
from labkit.plots.comparison import comparison
from labkit.plots.curves import training_curves
from labkit.plots.images import image_grid, message, prediction_grid, wrong_predictions
from labkit.plots.replicas import replica_curves
from labkit.plots.style import SHOWN_PER_INCH, png
from labkit.plots.workers import worker_throughput

__all__ = [
    "SHOWN_PER_INCH",
    "class_accuracy",
    "comparison",
    "confusion_matrix",
    "image_grid",
    "message",
    "png",
    "prediction_grid",
    "replica_curves",
    "training_curves",
    "worker_throughput",
    "wrong_predictions",
]
