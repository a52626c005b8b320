"""What lesson 04 computes and draws: all-reduce, batch statistics, loss scaling, the gradient noise scale."""

from labkit.lessons.replicas.moments import (
    gradient_bytes,
    noise_scale,
    place_variable,
    slice_statistics,
    squared_norms,
    stem_outputs,
    step_seconds,
)
from labkit.lessons.replicas.ring import EXCHANGES, ring, ring_moments
from labkit.lessons.replicas.sweep import Sweep, small_images

__all__ = [
    "EXCHANGES",
    "Sweep",
    "gradient_bytes",
    "noise_scale",
    "place_variable",
    "ring",
    "ring_moments",
    "slice_statistics",
    "small_images",
    "squared_norms",
    "stem_outputs",
    "step_seconds",
]
