"""Pad, crop, flip and standardise: per batch, with draws that are a function of (seed, epoch, example index).

Unless changed the distortion is He et al. 2016 (arXiv:1512.03385, section 4.2): four zero pixels on each
side, a random 32×32 crop of the image or its mirror image. The draws come from a hash instead of a random
generator's state, so that an example is distorted alike whatever batch, replica or restart it comes through.
"""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from labkit.data.hashing import mix64, mix64_tensor
from labkit.data.manifest import Manifest

__all__ = [
    "PADDING",
    "Distortion",
    "crop_and_flip",
    "cut_out",
    "distort",
    "distortion_key",
    "distortion_offsets",
    "standardize",
]

PADDING = 4


@dataclass(frozen=True)
class Distortion:
    """How training images are distorted.

    ``crop_padding`` pixels are added on each side, black (``constant``) or mirrored at the border
    (``reflect``), and a crop of the image's size is taken from a random place. ``flip`` is ``random``,
    ``none``, or ``alternating`` (Jordan, "94% on CIFAR-10 in 3.29 Seconds", 2024, arXiv:2404.00498, section
    3.6): an example's first epoch decides, and from then on it is flipped in every other one, so that two
    epochs show both sides of each. ``cutout_size`` is the side of a square that is covered in each image.
    """

    crop_padding: int = PADDING
    crop_padding_mode: str = "constant"
    flip: str = "random"
    cutout_size: int = 0


def distort(
    images: tf.Tensor,
    manifest: Manifest,
    distortion: Distortion,
    *,
    key: int,
    epoch: tf.Tensor,
    index: tf.Tensor,
) -> tf.Tensor:
    """Return training images as an epoch shows them.

    Args:
        images: uint8 [n, height, width, channels].
        manifest: of their data set.
        distortion: how.
        key: of :func:`distortion_key`.
        epoch: int64 [n], the epoch each example is visited in.
        index: int64 [n], the example's row within its split.

    Returns:
        uint8 of ``images``' shape.
    """
    offsets = distortion_offsets(key, epoch, index, distortion)
    images = crop_and_flip(images, *offsets, distortion)
    if distortion.cutout_size:
        mean = np.round(255 * np.asarray(manifest.channel_mean)).astype(np.uint8)
        images = cut_out(images, key, epoch, index, distortion.cutout_size, mean)
    return images


def distortion_key(seed: int) -> int:
    """Return the 64-bit key of all distortions of a run; apart from every other use of `seed`."""
    return mix64(seed, 0x64697374)  # "dist" in ASCII


def distortion_offsets(
    key: int, epoch: tf.Tensor, index: tf.Tensor, distortion: Distortion = Distortion()
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Draw each example's crop and flip.

    Args:
        key: of :func:`distortion_key`.
        epoch: int64 [n], the epoch each example is visited in.
        index: int64 [n], the example's row within its split.
        distortion: what there is to draw.

    Returns:
        top and left int32 [n], uniform in 0 … 2·padding (padding means centred); flip bool [n].
    """
    start = tf.constant(key, tf.uint64)
    state = mix64_tensor(mix64_tensor(start, epoch), index)
    places = 2 * distortion.crop_padding + 1
    # The upper 32 bits scaled to the number of outcomes; the bias of that is below 2^-24.
    half = tf.constant(32, tf.uint64)
    upper = tf.bitwise.right_shift(state, half)
    draw = tf.cast(tf.bitwise.right_shift(upper * tf.constant(2 * places**2, tf.uint64), half), tf.int32)
    flip = tf.equal(draw % 2, 1)
    if distortion.flip == "none":
        flip = tf.zeros_like(flip)
    elif distortion.flip == "alternating":
        first = tf.bitwise.right_shift(mix64_tensor(start, index), tf.constant(63, tf.uint64))
        flip = tf.equal((tf.cast(first, tf.int64) + epoch) % 2, 1)
    return draw // (2 * places), draw // 2 % places, flip


def crop_and_flip(
    images: tf.Tensor,
    top: tf.Tensor,
    left: tf.Tensor,
    flip: tf.Tensor,
    distortion: Distortion = Distortion(),
) -> tf.Tensor:
    """Pad, crop at (top, left) of the padded image, mirror left-right where `flip`.

    One gather per batch: every output pixel's place in the padded batch is computed, then all are fetched.

    Args:
        images: uint8 [n, height, width, channels].
        top, left: int32 [n] in 0 … 2·padding.
        flip: bool [n].
        distortion: how much is padded, and with what.

    Returns:
        uint8 of `images`' shape.
    """
    height, width = images.shape[1], images.shape[2]
    padding = distortion.crop_padding
    padded = tf.pad(
        images, [[0, 0], [padding, padding], [padding, padding], [0, 0]], distortion.crop_padding_mode
    )
    columns = tf.range(width)[None, :]
    columns = tf.where(flip[:, None], width - 1 - columns, columns) + left[:, None]
    rows = tf.range(height)[None, :] + top[:, None]
    batch = tf.range(tf.shape(images)[0])[:, None]
    padded_width = width + 2 * padding
    first = (batch * (height + 2 * padding) + rows) * padded_width
    pixels = tf.reshape(padded, [-1, images.shape[3]])
    return tf.gather(pixels, first[:, :, None] + columns[:, None, :])


def cut_out(
    images: tf.Tensor, key: int, epoch: tf.Tensor, index: tf.Tensor, size: int, color: np.ndarray
) -> tf.Tensor:
    """Cover a square at a random place in each image (DeVries & Taylor, "Cutout", 2017, arXiv:1708.04552).

    Every place within the image is equally likely; theirs may lie partly outside.

    Args:
        images: uint8 [n, height, width, channels].
        key: of :func:`distortion_key`.
        epoch, index: int64 [n], as for :func:`distort`.
        size: of the square, in pixels.
        color: uint8 [channels], of the square.

    Returns:
        uint8 of ``images``' shape.
    """
    height, width = images.shape[1], images.shape[2]
    start = tf.constant(mix64(key, 0x637574), tf.uint64)  # "cut" in ASCII
    state = mix64_tensor(mix64_tensor(start, epoch), index)
    half = tf.constant(32, tf.uint64)
    columns = width - size + 1
    places = tf.constant((height - size + 1) * columns, tf.uint64)
    upper = tf.bitwise.right_shift(state, half)
    place = tf.cast(tf.bitwise.right_shift(upper * places, half), tf.int32)[:, None]
    row, column = tf.range(height)[None, :] - place // columns, tf.range(width)[None, :] - place % columns
    tall, wide = (row >= 0) & (row < size), (column >= 0) & (column < size)
    covered = (tall[:, :, None] & wide[:, None, :])[..., None]
    return tf.where(covered, tf.constant(color, images.dtype), images)


def standardize(images: tf.Tensor | np.ndarray, manifest: Manifest) -> tf.Tensor:
    """Return (images / 255 − mean) / std per channel of the training split, as float32.

    Args:
        images: uint8 [..., height, width, channels].
        manifest: of the data set that the model was trained on.
    """
    mean = np.asarray(manifest.channel_mean)
    std = np.asarray(manifest.channel_std)
    # Over whole rows of pixels: an inner dimension of three channels leaves the vector units idle.
    width = images.shape[-2]
    scale = tf.constant(np.tile(1.0 / (255.0 * std), width), tf.float32)
    shift = tf.constant(np.tile(-mean / std, width), tf.float32)
    rows = tf.reshape(tf.cast(images, tf.float32), [-1, scale.shape[0]])
    return tf.reshape(rows * scale + shift, tf.shape(images))
