"""Lesson 03: momentum and decay on a quadratic, update ratios, the loss surface, and the loop in one file."""

from course.lessons.short_training import one_file_beside_labkit
from course.lessons.the_loop.figures import (
    decay_figure,
    descend,
    loss_comparison,
    momentum_figure,
    range_figure,
    ratio_figure,
    surface_figure,
    update_ratios,
)
from course.lessons.the_loop.surface import Surface, filter_normalized, loss_surface

__all__ = [
    "Surface",
    "decay_figure",
    "descend",
    "filter_normalized",
    "loss_comparison",
    "loss_surface",
    "momentum_figure",
    "one_file_beside_labkit",
    "range_figure",
    "ratio_figure",
    "surface_figure",
    "update_ratios",
]
