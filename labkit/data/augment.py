"""Random crop, flip, colors and cutout of training images ("distortion"), and standardization.

The default distortion of small images is that of He et al. 2016 (arXiv:1512.03385, section 4.2): pad four
zero pixels on each side, then take a random crop of the image's own size, of the image or of its mirror
image. Larger ones get a crop of random size, resized (``augmentation/random_resized_crop.py``). Every random
draw is a hash of (seed, epoch, example index), so an example is distorted the same way in any batch, on any
replica and after a restart.
"""

import numpy as np
import tensorflow as tf

from labkit.data.augmentation.colors import change_colors
from labkit.data.augmentation.random_resized_crop import random_resized_crop
from labkit.data.hashes import cutout_key, distortion_key
from labkit.data.inputs import PADDING, Distortion
from labkit.data.manifest import Manifest
from labkit.data.tensor_hashes import mix64_tensor

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

DEFAULT = Distortion()


def distort(
    images: tf.Tensor,
    manifest: Manifest,
    distortion: Distortion,
    *,
    key: int,
    epoch: tf.Tensor,
    index: tf.Tensor,
) -> tf.Tensor:
    """Crop and flip each image, then change its colors and apply cutout where they are enabled.

    Args:
        images: uint8 [n, height, width, channels].
        manifest: the data set of the images; cutout uses its mean colour.
        distortion: the settings.
        key: the result of :func:`distortion_key`.
        epoch: int64 [n], the epoch of each example.
        index: int64 [n], each example's row within its split.

    Returns:
        uint8, or float32 if the colors change, [n, height, width, channels] of the crop.
    """
    size = images.shape[1], images.shape[2]
    offsets = distortion_offsets(key, epoch, index, distortion, size)
    if distortion.random_resized_crop:
        share, flip = distortion.random_resized_crop, offsets[2]
        images = random_resized_crop(images, share, flip, key=key, epoch=epoch, index=index)
    else:
        images = crop_and_flip(images, *offsets, distortion)
    if distortion.changes_colors:
        images = change_colors(images, distortion, key=key, epoch=epoch, index=index)
    if distortion.cutout_size:
        mean = np.round(255 * np.asarray(manifest.channel_mean)).astype(np.uint8)
        images = cut_out(images, key, epoch, index, distortion.cutout_size, mean)
    return images


def distortion_offsets(
    key: int,
    epoch: tf.Tensor,
    index: tf.Tensor,
    distortion: Distortion = DEFAULT,
    size: tuple[int, int] = (0, 0),
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Draw each example's crop and flip.

    Args:
        key: the result of :func:`distortion_key`.
        epoch: int64 [n], the epoch of each example.
        index: int64 [n], each example's row within its split.
        distortion: the settings.
        size: height and width of the images; needed only with a ``crop_size``.

    Returns:
        top and left int32 [n], uniform in 0 … 2·padding (a centred crop has top = left = padding), or with a
        ``crop_size`` wherever the crop is inside the padded image; flip bool [n].
    """
    start = tf.constant(key, tf.uint64)
    state = mix64_tensor(mix64_tensor(start, epoch), index)
    rows, columns = distortion.positions(*size)
    # Scale the upper 32 bits to the number of outcomes; the bias is below 2^-24.
    half = tf.constant(32, tf.uint64)
    upper = tf.bitwise.right_shift(state, half)
    draw = tf.cast(tf.bitwise.right_shift(upper * tf.constant(2 * rows * columns, tf.uint64), half), tf.int32)
    flip = tf.equal(draw % 2, 1)
    if distortion.flip == "none":
        flip = tf.zeros_like(flip)
    elif distortion.flip == "alternating":
        first = tf.bitwise.right_shift(mix64_tensor(start, index), tf.constant(63, tf.uint64))
        flip = tf.equal((tf.cast(first, tf.int64) + epoch) % 2, 1)
    return draw // (2 * columns), draw // 2 % columns, flip


def crop_and_flip(
    images: tf.Tensor,
    top: tf.Tensor,
    left: tf.Tensor,
    flip: tf.Tensor,
    distortion: Distortion = DEFAULT,
) -> tf.Tensor:
    """Pad, crop at (top, left) of the padded image, and mirror left-right where `flip` is true.

    Rows are fetched by one gather. Then all images with the same `left` and `flip` are cut at once, in
    half of the time of fetching single pixels or less (docs/speed.md).

    Args:
        images: uint8 [n, height, width, channels].
        top, left: int32 [n] in 0 … 2·padding, or as :func:`distortion_offsets` draws them.
        flip: bool [n].
        distortion: gives the width and the mode of the padding, and the size of the crop.

    Returns:
        uint8 [n, height, width, channels] of the crop.
    """
    channels = images.shape[3]
    height, width = (distortion.crop_size or side for side in images.shape[1:3])
    padded_height, padded_width = (side + 2 * distortion.crop_padding for side in images.shape[1:3])
    number = tf.range(tf.shape(images)[0])
    rows = (number * padded_height + top)[:, None] + tf.range(height)
    strips = tf.gather(tf.reshape(_padded(images, distortion), [-1, padded_width * channels]), rows)
    lefts = padded_width - width + 1
    group = left + tf.where(flip, lefts, 0)
    parts = []
    for position, part in enumerate(tf.dynamic_partition(strips, group, 2 * lefts)):
        start = position % lefts * channels
        cut = tf.reshape(part[:, :, start : start + width * channels], [-1, width, channels])
        if position >= lefts:
            cut = tf.reverse(cut, [1])  # much faster than a slice with steps of -1
        parts.append(tf.reshape(cut, [-1, height, width, channels]))
    return tf.dynamic_stitch(tf.dynamic_partition(number, group, 2 * lefts), parts)


def _padded(images: tf.Tensor, distortion: Distortion) -> tf.Tensor:
    width, channels = images.shape[2:]
    padding = distortion.crop_padding
    around = [[0, 0], [padding, padding], [padding, padding], [0, 0]]
    if distortion.crop_padding_mode != "constant":
        return tf.pad(images, around, distortion.crop_padding_mode)
    # TensorFlow pads whole rows faster than single pixels.
    around = [*around[:2], [padding * channels, padding * channels]]
    return tf.pad(tf.reshape(images, [-1, images.shape[1], width * channels]), around)


def cut_out(
    images: tf.Tensor, key: int, epoch: tf.Tensor, index: tf.Tensor, size: int, color: np.ndarray
) -> tf.Tensor:
    """Cover one random square in each image (DeVries & Taylor, "Cutout", 2017, arXiv:1708.04552).

    The square is always completely inside the image, and every position is equally likely. In the paper it
    may extend beyond the border.

    Args:
        images: uint8 or float32 [n, height, width, channels].
        key: the result of :func:`distortion_key`.
        epoch, index: int64 [n], as for :func:`distort`.
        size: side of the square in pixels.
        color: uint8 [channels], the colour of the square.

    Returns:
        A tensor of ``images``' shape and dtype.
    """
    height, width = images.shape[1], images.shape[2]
    start = tf.constant(cutout_key(key), tf.uint64)
    state = mix64_tensor(mix64_tensor(start, epoch), index)
    half = tf.constant(32, tf.uint64)
    columns = width - size + 1
    positions = tf.constant((height - size + 1) * columns, tf.uint64)
    upper = tf.bitwise.right_shift(state, half)
    corner = tf.cast(tf.bitwise.right_shift(upper * positions, half), tf.int32)[:, None]
    row, column = tf.range(height)[None, :] - corner // columns, tf.range(width)[None, :] - corner % columns
    tall, wide = (row >= 0) & (row < size), (column >= 0) & (column < size)
    covered = (tall[:, :, None] & wide[:, None, :])[..., None]
    return tf.where(covered, tf.constant(color.astype(images.dtype.as_numpy_dtype)), images)


def standardize(images: tf.Tensor | np.ndarray, manifest: Manifest) -> tf.Tensor:
    """Return (images / 255 − mean) / std as float32, with the training split's mean and std per channel.

    Args:
        images: uint8 or float32 [..., height, width, channels], pixels from 0 to 255.
        manifest: the data set that the model was trained on.
    """
    mean = np.asarray(manifest.channel_mean)
    std = np.asarray(manifest.channel_std)
    # Work on whole rows of pixels: an inner dimension of only three channels leaves the vector units idle.
    width = images.shape[-2]
    scale = tf.constant(np.tile(1.0 / (255.0 * std), width), tf.float32)
    shift = tf.constant(np.tile(-mean / std, width), tf.float32)
    rows = tf.reshape(tf.cast(images, tf.float32), [-1, scale.shape[0]])
    return tf.reshape(rows * scale + shift, tf.shape(images))
