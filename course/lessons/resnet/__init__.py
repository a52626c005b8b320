"""Lesson 02: networks with and without shortcuts, and what they do to a signal."""

from course.lessons.resnet.fields import ReceptiveField, gradient_fields
from course.lessons.resnet.figures import (
    batch_norm_figure,
    depth_figure,
    feature_maps,
    field_figure,
    first_kernels,
    loss_figure,
)
from course.lessons.resnet.networks import (
    SmallImages,
    TrainedNetwork,
    WithoutShortcuts,
    observe,
    small_images,
    small_network,
    train_small,
)

__all__ = [
    "ReceptiveField",
    "SmallImages",
    "TrainedNetwork",
    "WithoutShortcuts",
    "batch_norm_figure",
    "depth_figure",
    "feature_maps",
    "field_figure",
    "first_kernels",
    "gradient_fields",
    "loss_figure",
    "observe",
    "small_images",
    "small_network",
    "train_small",
]
