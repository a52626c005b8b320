"""Matplotlib figures of runs, predictions and comparisons. Matplotlib is imported when the first is drawn.

Each function returns a ``matplotlib.figure.Figure``. The figures don't use pyplot, so they need no display
and keep no global state. A notebook displays a figure that is the last value of a cell.
"""

from labkit.notebook.plots.classes import class_accuracy, confusion_matrix
from labkit.notebook.plots.comparison import comparison
from labkit.notebook.plots.curves import training_curves
from labkit.notebook.plots.detail import draw_heat, prediction_detail
from labkit.notebook.plots.images import image_grid, message, prediction_grid, wrong_predictions
from labkit.notebook.plots.replicas import replica_curves
from labkit.notebook.plots.results import run_results
from labkit.notebook.plots.style import SHOWN_PER_INCH, png
from labkit.notebook.plots.workers import worker_throughput

__all__ = [
    "SHOWN_PER_INCH",
    "class_accuracy",
    "comparison",
    "confusion_matrix",
    "draw_heat",
    "image_grid",
    "message",
    "png",
    "prediction_detail",
    "prediction_grid",
    "replica_curves",
    "run_results",
    "training_curves",
    "worker_throughput",
    "wrong_predictions",
]
