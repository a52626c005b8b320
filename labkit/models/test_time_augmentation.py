"""Test-time augmentation: the mean of a model's logits over several views of each image."""

from collections.abc import Callable

import tensorflow as tf

__all__ = ["VIEWS", "averaged_over_views"]

VIEWS = ("none", "mirror", "mirror_and_shift")


def averaged_over_views(model: Callable[[tf.Tensor], tf.Tensor], images: tf.Tensor, views: str) -> tf.Tensor:
    """Return the mean logits of ``images`` over their views, float32 [batch, num_classes].

    ``mirror``: the image and its mirror image. ``mirror_and_shift``: these count one half, and the other half
    both sides of the image shifted by one pixel, up and left, and down and right, with the border mirrored:
    six views (Jordan, 2024, arXiv:2404.00498, section 3.5, "multi-crop").

    Args:
        model: images to logits.
        images: float32 [batch, height, width, channels].
        views: one of ``VIEWS``.
    """
    if views == "none":
        return model(images)

    def both_sides(shown: tf.Tensor) -> tf.Tensor:
        return (model(shown) + model(tf.reverse(shown, axis=[2]))) / 2

    logits = both_sides(images)
    if views == "mirror_and_shift":
        height, width = images.shape[1], images.shape[2]
        padded = tf.pad(images, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
        shifted = [padded[:, :height, :width], padded[:, 2:, 2:]]
        logits = (logits + sum(map(both_sides, shifted)) / 2) / 2
    return logits
