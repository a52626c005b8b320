"""What the network takes of an image: which part, how its pixels are standardized, and its size.

Training, evaluation, export and everything that asks a network about an image go through ``as_input``. Arrays
give arrays, and tensors tensors.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.config import DataConfig
from labkit.data.manifest import Manifest
from labkit.data.namespace import Array, namespace


@dataclass(frozen=True)
class NetworkInput:
    """How an image that is not augmented, or already is, becomes what the network takes.

    ``crop_size``: side in pixels of the square in the middle that the network sees; None: the whole image. An
    image of this size stays whole. ``standardization``: ``dataset`` or ``per_image``, as in ``DataConfig``.
    """

    crop_size: int | None = None
    standardization: str = "dataset"

    def shape(self, manifest: Manifest) -> tuple[int, int, int]:
        """Return height, width and channels of what the network takes."""
        height, width, channels = manifest.image_shape
        return self.crop_size or height, self.crop_size or width, channels

    def in_words(self) -> str:
        """Return what the values of the network's input are."""
        part = "" if self.crop_size is None else f" of the middle {self.crop_size} x {self.crop_size} pixels"
        if self.standardization == "dataset":
            return f"(pixel / 255 - mean) / std{part}"
        return f"(pixel - m) / max(s, 1 / sqrt(n)), with mean m and deviation s of the n values{part}"


WHOLE_IMAGE = NetworkInput()


def network_input_of(data: DataConfig) -> NetworkInput:
    """Return what the network of a run takes."""
    return NetworkInput(data.crop_size, data.standardization)


def input_shape(manifest: Manifest, data: DataConfig) -> tuple[int, int, int]:
    """Return height, width and channels of the images that the network of a run takes."""
    return network_input_of(data).shape(manifest)


def as_input(images: Array, manifest: Manifest, settings: NetworkInput) -> Array:
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


def central_corner(height: int, width: int, size: int) -> tuple[int, int]:
    """Return row and column where the middle square begins; as ``tf.image.resize_with_crop_or_pad``."""
    return (height - size) // 2, (width - size) // 2


def central_crop(images: Array, size: int | None) -> Array:
    """Return the middle ``size`` x ``size`` pixels of images [n, height, width, channels]; None: all."""
    if size is None or images.shape[1:3] == (size, size):
        return images
    top, left = central_corner(images.shape[1], images.shape[2], size)
    return images[:, top : top + size, left : left + size]


def standardize(images: Array, manifest: Manifest) -> Array:
    """Return (images / 255 − mean) / std as float32, with the training split's mean and std per channel.

    Args:
        images: uint8 or float32 [..., height, width, channels], pixels from 0 to 255.
        manifest: the data set that the model was trained on.
    """
    xp = namespace(images)
    mean, std = np.asarray(manifest.channel_mean), np.asarray(manifest.channel_std)
    # Work on whole rows of pixels: an inner dimension of only three channels leaves the vector units idle.
    width = images.shape[-2]
    scale = np.tile(1.0 / (255.0 * std), width).astype(np.float32)
    shift = np.tile(-mean / std, width).astype(np.float32)
    rows = xp.reshape(xp.cast(images, np.float32), [-1, len(scale)])
    return xp.reshape(rows * scale + shift, xp.shape(images))


def standardize_each(images: Array) -> Array:
    """Return (x - mean) / max(std, 1 / sqrt(n)) of each image, over all of its n values, as float32.

    As ``tf.image.per_image_standardization``, which TensorFlow's CIFAR-10 tutorial uses. Brightness has no
    effect on the result, and contrast only on the ratio of the channels. NumPy and TensorFlow add in other
    orders, so their results are equal to rounding.

    Args:
        images: uint8 or float32 [n, height, width, channels].
    """
    xp = namespace(images)
    values = xp.cast(images, np.float32)
    centred = values - xp.mean(values, [1, 2, 3])
    std = xp.sqrt(xp.mean(centred * centred, [1, 2, 3]))
    return centred / xp.maximum(std, np.float32(1.0 / math.sqrt(math.prod(values.shape[1:]))))


def as_pixels(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the nearest whole numbers from 0 to 255, uint8 of the images' shape."""
    return images if images.dtype == np.uint8 else np.round(images).clip(0, 255).astype(np.uint8)


def shrunk(images: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return the images reduced to ``size`` x ``size`` by antialiased bilinear interpolation.

    Equals ``labkit.models.variants.shrunk`` to rounding.

    Args:
        images: float32 [n, height, width, channels].
        size: the new side in pixels.
    """
    down, across = (_weights(before, size) for before in images.shape[1:3])
    return np.einsum("ph,bhwc,qw->bpqc", down, images, across, optimize=True)


def _weights(before: int, after: int) -> NDArray[np.float32]:
    """Return the weight of each old pixel of a row in each new pixel, float32 [after, before]."""
    scale = before / after
    centers = (np.arange(after)[:, None] + 0.5) * scale
    distances = np.abs(np.arange(before) + 0.5 - centers) / max(scale, 1.0)
    weights = np.maximum(1.0 - distances, 0.0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
