"""Random crop, flip, colors and cutout of training images ("distortion"), and standardization.

The default distortion of small images is that of He et al. 2016 (arXiv:1512.03385, section 4.2): pad four
zero pixels on each side, then take a random crop of the image's own size, of the image or of its mirror
image. Larger ones get a crop of random size, resized (``random_resized_crop``). Every random
draw is a hash of (seed, epoch, example index), so an example is distorted the same way in any batch, on any
replica and after a restart.
"""

import numpy as np
import tensorflow as tf

from labkit.data.hashes import brightness_key, contrast_key, crop_key, cutout_key, distortion_key
from labkit.data.inputs import PADDING, Distortion
from labkit.data.manifest import Manifest
from labkit.data.numpy_batch.mixing import SHARES, beta_shares, partner_key, share_key
from labkit.data.numpy_batch.random_resized_crop import CELLS, SIDES, TRIES
from labkit.data.tensor_hashes import mix64_tensor, permutation

__all__ = [
    "PADDING",
    "Distortion",
    "change_colors",
    "crop_and_flip",
    "crop_grid",
    "cut_out",
    "distort",
    "distortion_key",
    "distortion_offsets",
    "mix",
    "partners_of_step",
    "random_resized_crop",
    "share_of_step",
    "soft_targets",
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


def partners_of_step(seed: int, step: tf.Tensor, global_batch_size: int) -> tf.Tensor:
    """Return the position in the global batch of each example's partner: a permutation, int64 [n].

    Args:
        seed: of the run.
        step: int64 scalar, from 0.
        global_batch_size: n, over all replicas.
    """
    return permutation(global_batch_size, partner_key(seed), step)


def share_of_step(seed: int, step: tf.Tensor, alpha: float) -> tf.Tensor:
    """Return the share of each example's own image in a step, a float32 scalar from Beta(alpha, alpha).

    Args:
        seed: of the run.
        step: int64 scalar, from 0.
        alpha: above 0.
    """
    state = mix64_tensor(tf.constant(share_key(seed), tf.uint64), step)
    bits = SHARES.bit_length() - 1
    number = tf.bitwise.right_shift(state, tf.constant(64 - bits, tf.uint64))
    return tf.gather(tf.constant(beta_shares(alpha)), tf.cast(number, tf.int64))


def soft_targets(labels: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Return labels as probabilities, float32 [n, num_classes].

    Args:
        labels: int32 [n], or zeros and ones [n, num_classes].
        num_classes: of the data set.
    """
    if labels.shape.rank == 2:
        return tf.cast(labels, tf.float32)
    return tf.one_hot(labels, num_classes)


def mix(share: tf.Tensor, own: tf.Tensor, partner: tf.Tensor) -> tf.Tensor:
    """Return share * own + (1 - share) * partner (Zhang et al., 2017, arXiv:1710.09412, section 2).

    Args:
        share: float32 scalar.
        own, partner: float32 [n, ...], images or targets.
    """
    return share * own + (1.0 - share) * partner
