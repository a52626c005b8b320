"""What lesson 06 computes and draws: event files, a timeline, measurements that find bugs, and five patients.

Nothing here imports TensorFlow before it is needed, except ``course.lessons.debug.broken``.
"""

from course.lessons.debug.events import (
    EventFiles,
    draw_distributions,
    draw_histograms,
    draw_layer_spread,
    draw_scalars,
)
from course.lessons.debug.patients import Patient, leaky_split
from course.lessons.debug.probes import (
    baseline_losses,
    dependency,
    draw_curves,
    draw_dependency,
    draw_patients,
    draw_values,
    first_loss,
    mixing,
    numerics_report,
    one_batch_losses,
    run_tests,
    scripted_pdb,
    symptoms,
)
from course.lessons.debug.timeline import draw_timeline, operations, seconds_by_kind

__all__ = [
    "EventFiles",
    "Patient",
    "baseline_losses",
    "dependency",
    "draw_curves",
    "draw_dependency",
    "draw_distributions",
    "draw_histograms",
    "draw_layer_spread",
    "draw_patients",
    "draw_scalars",
    "draw_timeline",
    "draw_values",
    "first_loss",
    "leaky_split",
    "mixing",
    "numerics_report",
    "one_batch_losses",
    "operations",
    "run_tests",
    "scripted_pdb",
    "seconds_by_kind",
    "symptoms",
]
