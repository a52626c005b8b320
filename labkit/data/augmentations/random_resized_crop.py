"""Random-resized-crop as a TensorFlow graph; ``labkit.data.step_batch.random_resized_crop`` describes it."""

import tensorflow as tf

from labkit.data.hashing import mix64_tensor
from labkit.data.step_batch.hashes import crop_key
from labkit.data.step_batch.random_resized_crop import CELLS, SIDES, TRIES

__all__ = ["crop_grid", "random_resized_crop"]

_DIGITS = 10  # bits of a number of cells, which is at most 256


def crop_grid(
    smallest: float, *, key: int, epoch: tf.Tensor, index: tf.Tensor, height: int, width: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Draw the crop of each example: top, left, down and across, int32 [n].

    They are those of ``labkit.data.step_batch.random_resized_crop.crop_grid``, and so are the arguments.
    """
    state = mix64_tensor(mix64_tensor(tf.constant(crop_key(key), tf.uint64), epoch), index)
    tries = mix64_tensor(state[:, None], tf.range(TRIES, dtype=tf.int64))
    share = tf.cast(_shifted(tries, 40), tf.float64) * tf.constant(2.0**-24, tf.float64)
    area = tf.constant(smallest, tf.float64) + tf.constant(1.0 - smallest, tf.float64) * share
    last = len(SIDES) - 1
    number = tf.cast(tf.bitwise.bitwise_and(_shifted(tries, 28), tf.constant(last, tf.uint64)), tf.int32)
    side, half = tf.constant(CELLS, tf.float64) * tf.sqrt(area), tf.constant(0.5, tf.float64)
    across, down = (
        tf.cast(tf.floor(side * tf.gather(SIDES, places) + half), tf.int32)
        for places in (number, last - number)
    )
    fits = (across >= 1) & (across <= CELLS) & (down >= 1) & (down <= CELLS)
    # The first try that fits has the largest of these numbers, which hold its turn, down and across.
    turn = tf.range(TRIES, 0, -1)
    coded = tf.bitwise.left_shift(tf.bitwise.left_shift(turn, _DIGITS) + down, _DIGITS) + across
    best = tf.reduce_max(tf.where(fits, coded, (CELLS << _DIGITS) + CELLS), axis=1)
    digits = (1 << _DIGITS) - 1
    down = tf.bitwise.bitwise_and(tf.bitwise.right_shift(best, _DIGITS), digits)
    across = tf.bitwise.bitwise_and(best, digits)
    place = mix64_tensor(state, tf.constant(TRIES, tf.int64))
    low = tf.bitwise.bitwise_and(place, tf.constant(0xFFFFFFFF, tf.uint64))
    top = _drawn(_shifted(place, 32), (CELLS - down) * (height - 1) + 1)
    left = _drawn(low, (CELLS - across) * (width - 1) + 1)
    return top, left, down, across


def _shifted(bits: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.right_shift(bits, tf.constant(by, tf.uint64))


def _drawn(bits: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Scale 32 random bits to 0 … count - 1."""
    return tf.cast(_shifted(bits * tf.cast(count, tf.uint64), 32), tf.int32)


def random_resized_crop(
    images: tf.Tensor, smallest: float, flip: tf.Tensor, *, key: int, epoch: tf.Tensor, index: tf.Tensor
) -> tf.Tensor:
    """Cut a random part out of each image, resize it to the image's size, and mirror it where ``flip``.

    Args:
        images: uint8 [n, height, width, channels] with static height, width and channels.
        smallest: the smallest share of the area that a crop keeps, above 0.
        flip: bool [n].
        key: the result of ``labkit.data.augment.distortion_key``.
        epoch, index: int64 [n], of each example.

    Returns:
        uint8 of ``images``' shape.
    """
    _, height, width, channels = images.shape
    top, left, down, across = crop_grid(
        smallest, key=key, epoch=epoch, index=index, height=height, width=width
    )
    rows = top[:, None] + down[:, None] * tf.range(height)[None, :]
    columns = tf.range(width)[None, :]
    columns = tf.where(flip[:, None], width - 1 - columns, columns)
    columns = left[:, None] + across[:, None] * columns
    near, far, weight = _neighbours(rows, height)
    # Whole rows of pixels are the inner dimension: three channels alone would leave the vector units idle.
    upper, lower = (
        tf.reshape(tf.gather(images, places, axis=1, batch_dims=1), [-1, width * channels])
        for places in (near, far)
    )
    between = _blended(*(tf.cast(row, tf.float32) for row in (upper, lower)), tf.reshape(weight, [-1, 1]))
    between = tf.reshape(between, [-1, height, width, channels])
    near, far, weight = _neighbours(columns, width)
    before, after = (
        tf.reshape(tf.gather(between, places, axis=2, batch_dims=1), [-1, height, width * channels])
        for places in (near, far)
    )
    whole = _blended(before, after, tf.repeat(weight, channels, axis=1)[:, None, :])
    rounded = (whole + CELLS**2 / 2) * (1 / CELLS**2)  # exact; the cast cuts off
    return tf.reshape(tf.cast(rounded, tf.uint8), tf.shape(images))


def _neighbours(points: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the pixels before and behind points of an axis, and the weight of the second, 0 … 255."""
    near = tf.bitwise.right_shift(points, 8)
    weight = tf.cast(tf.bitwise.bitwise_and(points, CELLS - 1), tf.float32)
    return near, tf.minimum(near + 1, size - 1), weight


def _blended(near: tf.Tensor, far: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Return CELLS times the interpolated value."""
    return near * (CELLS - weight) + far * weight
