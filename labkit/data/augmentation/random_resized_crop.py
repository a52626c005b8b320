"""Random-resized-crop as a TensorFlow graph; ``labkit.data.numpy_batch.random_resized_crop`` describes it."""

import tensorflow as tf

from labkit.data.hashes import crop_key
from labkit.data.numpy_batch.random_resized_crop import CELLS, SIDES, TRIES
from labkit.data.tensor_hashes import mix64_tensor

__all__ = ["crop_grid", "random_resized_crop"]

_DIGITS = 10  # bits of a number of cells, which is at most 256


def crop_grid(
    smallest: float, *, key: int, epoch: tf.Tensor, index: tf.Tensor, height: int, width: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Draw the crop of each example: top, left, down and across, int32 [n].

    They are those of ``labkit.data.numpy_batch.random_resized_crop.crop_grid``, and so are the arguments.
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
    columns = tf.range(width)[None, :]
    columns = tf.where(flip[:, None], width - 1 - columns, columns)
    points = (
        top[:, None] + down[:, None] * tf.range(height)[None, :],
        left[:, None] + across[:, None] * columns,
    )

    def resized(each: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        image, rows, columns = each
        # Transposed first, so that both gathers copy whole rows or columns, and not pixel by pixel.
        image = tf.reshape(tf.transpose(image, [1, 0, 2]), [width, height * channels])
        between = tf.reshape(_blended(image, columns), [width, height, channels])
        between = tf.reshape(tf.transpose(between, [1, 0, 2]), [height, width * channels])
        whole = tf.reshape(_blended(between, rows), [height, width, channels])
        rounded = (whole + CELLS**2 / 2) * (1 / CELLS**2)  # exact
        return tf.cast(rounded, tf.uint8)  # cuts off

    # One image at a time: the float32 values of a batch do not fit into the processor's cache.
    spec = tf.TensorSpec([height, width, channels], tf.uint8)
    return tf.map_fn(resized, (images, *points), fn_output_signature=spec)


def _blended(rows: tf.Tensor, points: tf.Tensor) -> tf.Tensor:
    """Return CELLS times the values at points between rows, float32 [points, n].

    Args:
        rows: [size, n].
        points: int32 [m], in cells from the first row.
    """
    near = tf.bitwise.right_shift(points, 8)
    far = tf.minimum(near + 1, rows.shape[0] - 1)
    weight = tf.cast(tf.bitwise.bitwise_and(points, CELLS - 1), tf.float32)[:, None]
    before, after = (tf.cast(tf.gather(rows, places), tf.float32) for places in (near, far))
    return before * (CELLS - weight) + after * weight
