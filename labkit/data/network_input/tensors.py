"""The middle of an image, and its standardization, as TensorFlow computes them."""

import math

import numpy as np
import tensorflow as tf

from labkit.data.augment import standardize
from labkit.data.manifest import Manifest
from labkit.data.network_input.settings import NetworkInput, central_corner

__all__ = ["as_input", "central_crop", "standardize_each"]


def as_input(images: tf.Tensor | np.ndarray, manifest: Manifest, settings: NetworkInput) -> tf.Tensor:
    """Return what the network takes, float32 [n, *settings.shape(manifest)].

    Args:
        images: uint8 or float32, of the stored images' shape or already of the network's.
        manifest: the data set that the network is trained on.
        settings: of its run.
    """
    images = central_crop(images, settings.crop_size)
    if settings.standardization == "per_image":
        return standardize_each(images)
    return standardize(images, manifest)


def central_crop(images: tf.Tensor | np.ndarray, size: int | None) -> tf.Tensor | np.ndarray:
    """Return the middle ``size`` x ``size`` pixels of images [n, height, width, channels]; None: all."""
    if size is None or images.shape[1:3] == (size, size):
        return images
    top, left = central_corner(images.shape[1], images.shape[2], size)
    return images[:, top : top + size, left : left + size]


def standardize_each(images: tf.Tensor | np.ndarray) -> tf.Tensor:
    """Return (x - mean) / max(std, 1 / sqrt(n)) of each image, over all of its n values, as float32.

    As ``tf.image.per_image_standardization``, which TensorFlow's CIFAR-10 tutorial uses. Brightness has no
    effect on the result, and contrast only on the ratio of the channels.

    Args:
        images: uint8 or float32 [n, height, width, channels].
    """
    values = tf.cast(images, tf.float32)
    smallest = 1.0 / math.sqrt(math.prod(values.shape[1:]))
    centred = values - tf.reduce_mean(values, axis=[1, 2, 3], keepdims=True)
    std = tf.sqrt(tf.reduce_mean(tf.square(centred), axis=[1, 2, 3], keepdims=True))
    return centred / tf.maximum(std, smallest)
