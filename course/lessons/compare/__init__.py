"""What lesson 08 computes and draws: many short trainings, and what can be concluded from them."""

from course.lessons.compare.inference import (
    coverage,
    detection,
    half_width,
    mcnemar,
    mean_interval,
    selection_bias,
    t_quantile,
)
from course.lessons.compare.plan import Plan
from course.lessons.compare.trials import Bench

__all__ = [
    "Bench",
    "Plan",
    "coverage",
    "detection",
    "half_width",
    "mcnemar",
    "mean_interval",
    "selection_bias",
    "t_quantile",
]
