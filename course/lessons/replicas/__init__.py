"""What lesson 04 computes and draws: all-reduce, batch statistics, loss scaling, the gradient noise scale."""

from course.lessons.replicas.moments import (
    comparison_flags,
    gradient_bytes,
    layout_name,
    noise_scale,
    place_variable,
    slice_statistics,
    squared_norms,
    stem_outputs,
    step_seconds,
)
from course.lessons.replicas.ring import count_exchanges, ring, ring_moments
from course.lessons.replicas.sweep import DenseNetwork, small_images, sweep_rates

__all__ = [
    "DenseNetwork",
    "comparison_flags",
    "count_exchanges",
    "gradient_bytes",
    "layout_name",
    "noise_scale",
    "place_variable",
    "ring",
    "ring_moments",
    "slice_statistics",
    "small_images",
    "squared_norms",
    "stem_outputs",
    "step_seconds",
    "sweep_rates",
]
