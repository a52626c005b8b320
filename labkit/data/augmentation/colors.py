"""Random brightness and contrast of training images."""

import tensorflow as tf

from labkit.data.hashes import brightness_key, contrast_key
from labkit.data.inputs import Distortion
from labkit.data.tensor_hashes import mix64_tensor

__all__ = ["change_colors"]


def change_colors(
    images: tf.Tensor, distortion: Distortion, *, key: int, epoch: tf.Tensor, index: tf.Tensor
) -> tf.Tensor:
    """Add a random number to each image, then scale each pixel's distance from the mean color.

    The order and the formulas are those of TensorFlow's CIFAR-10 tutorial: ``tf.image.random_brightness``,
    then ``tf.image.random_contrast``, on float32 and without clipping. The draws are uniform.

    Args:
        images: uint8 [n, height, width, channels].
        distortion: the settings.
        key: the result of ``distortion_key``.
        epoch, index: int64 [n], the epoch of each example, and its row within the split.

    Returns:
        float32 of ``images``' shape; values may be below 0 or above 255.
    """
    pixels = tf.cast(images, tf.float32)
    added = distortion.brightness * _signed_draw(brightness_key(key), epoch, index)
    if not distortion.contrast:
        return pixels + added
    # From the sum of whole numbers, which is exact: NumPy's twin gets the same value, bit by bit.
    total = tf.reduce_sum(tf.cast(images, tf.int32), axis=[1, 2], keepdims=True)
    mean = tf.cast(total, tf.float32) / float(images.shape[1] * images.shape[2])
    factor = 1.0 + distortion.contrast * _signed_draw(contrast_key(key), epoch, index)
    return (pixels - mean) * factor + (mean + added)


def _signed_draw(key: int, epoch: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Return a multiple of 2^-23 in [-1, 1) for each example, float32 [n, 1, 1, 1]."""
    state = mix64_tensor(mix64_tensor(tf.constant(key, tf.uint64), epoch), index)
    upper = tf.cast(tf.bitwise.right_shift(state, tf.constant(40, tf.uint64)), tf.int32)
    return (tf.cast(upper, tf.float32) / 2.0**23 - 1.0)[:, None, None, None]
