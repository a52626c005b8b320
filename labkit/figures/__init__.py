"""Figures of runs, predictions and comparisons, and widgets around them, for notebooks.

Each figure is a ``matplotlib.figure.Figure``. It doesn't use pyplot, so it needs no display and keeps no
global state; Matplotlib is imported when the first is drawn. A notebook displays a figure that is the last
value of a cell. Each widget shows a static figure first, which stands alone in a saved notebook.
"""

from labkit.figures.compare_runs import comparison
from labkit.figures.predictions import (
    class_accuracy,
    confusion_matrix,
    draw_heat,
    image_grid,
    message,
    prediction_detail,
    prediction_grid,
    wrong_predictions,
)
from labkit.figures.runs import (
    loss_curves,
    range_test,
    replica_curves,
    run_results,
    training_curves,
    worker_throughput,
)
from labkit.figures.style import SHOWN_PER_INCH, png

__all__ = [
    "SHOWN_PER_INCH",
    "class_accuracy",
    "comparison",
    "confusion_matrix",
    "draw_heat",
    "image_grid",
    "loss_curves",
    "message",
    "png",
    "prediction_detail",
    "prediction_grid",
    "range_test",
    "replica_curves",
    "run_results",
    "training_curves",
    "worker_throughput",
    "wrong_predictions",
]
