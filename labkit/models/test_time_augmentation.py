"""Test-time augmentation: average a model's logits over several views of each image."""

from collections.abc import Callable

import tensorflow as tf

__all__ = ["averaged_over_views"]


def averaged_over_views(model: Callable[[tf.Tensor], tf.Tensor], images: tf.Tensor, views: str) -> tf.Tensor:
    """Return the mean logits over the views of each image, float32 [batch, num_classes].

    Args:
        model: maps images to logits.
        images: float32 [batch, height, width, channels].
        views: ``none``, ``mirror`` or ``mirror_and_shift``. ``mirror`` averages the image and its mirror
            image. ``mirror_and_shift`` averages six views: the image shifted by one pixel up and left, the
            same down and right, with reflected borders, and the unshifted image with twice their weight, each
            also mirrored (Jordan, 2024, arXiv:2404.00498, section 3.5, "multi-crop").
    """
    if views == "none":
        return model(images)

    def with_mirror(view: tf.Tensor) -> tf.Tensor:
        return (model(view) + model(tf.reverse(view, axis=[2]))) / 2

    logits = with_mirror(images)
    if views == "mirror_and_shift":
        height, width = images.shape[1], images.shape[2]
        padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
        shifted = [padded[:, :height, :width], padded[:, 2:, 2:]]
        logits = (logits + sum(map(with_mirror, shifted)) / 2) / 2
    return logits
