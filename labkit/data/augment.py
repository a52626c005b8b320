"""What is done to training images: random rotation, crop, flip, TrivialAugment, colors and cutout.

The default augmentation of small images is that of He et al. 2016 (arXiv:1512.03385, section 4.2): pad four
zero pixels on each side, then take a random crop of the image's own size, of the image or of its mirror
image. Larger ones get a crop of random size, resized (``random_resized_crop``). Every random
draw is a hash of (seed, epoch, example index), so an example is augmented the same way in any batch, on any
replica and after a restart.

Each function takes arrays or tensors, and returns what it takes. NumPy and TensorFlow give the same bits:
draws are whole numbers, and sums stay so small that float32 holds them exactly. TensorFlow is not imported.
"""

import math
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.data.hashes import drawn, mixed_in, named_key, scaled
from labkit.data.inputs import Augmentation
from labkit.data.manifest import Manifest
from labkit.data.namespace import Array, namespace
from labkit.data.trivial_augment import trivially_augmented
from labkit.errors import InputError
from labkit.parts.code import first_line, named_object

DEFAULT = Augmentation()


def augment(
    images: Array, manifest: Manifest, augmentation: Augmentation, *, key: int, epoch: Array, index: Array
) -> Array:
    """Turn, crop and flip each image, then apply the other changes that are enabled, in this order.

    Args:
        images: uint8 [n, height, width, channels].
        manifest: the data set of the images; cutout uses its mean colour.
        augmentation: the settings.
        key: the result of :func:`augmentation_key`.
        epoch: int64 [n], the epoch of each example.
        index: int64 [n], each example's row within its split.

    Returns:
        uint8, or float32 if the colors change, [n, height, width, channels] of the crop.
    """
    if augmentation.rotation:
        images = rotated(images, augmentation.rotation, key=key, epoch=epoch, index=index)
    size = images.shape[1], images.shape[2]
    offsets = augmentation_offsets(key, epoch, index, augmentation, size)
    if augmentation.random_resized_crop:
        share, flip = augmentation.random_resized_crop, offsets[2]
        images = random_resized_crop(images, share, flip, key=key, epoch=epoch, index=index)
    else:
        images = crop_and_flip(images, *offsets, augmentation)
    if augmentation.trivial:
        images = trivially_augmented(images, key=key, epoch=epoch, index=index)
    if augmentation.brightness > 0 or augmentation.contrast > 0:
        images = change_colors(images, augmentation, key=key, epoch=epoch, index=index)
    if augmentation.cutout_size:
        mean = np.round(255 * np.asarray(manifest.channel_mean)).astype(np.uint8)
        images = cut_out(images, key, epoch, index, augmentation.cutout_size, mean)
    if augmentation.own is not None:
        images = changed_by_own(augmentation.own, images, key=key, epoch=epoch, index=index)
    return images


def changed_by_own(reference: str, images: Array, *, key: int, epoch: Array, index: Array) -> Array:
    """Return the images as a function of somebody's own changes them, uint8 or float32.

    The function gets tensors: the images, and seeds int32 [n, 2], two draws of each example in its epoch.

    Args:
        reference: ``FILE.py:NAME``.
        images, key, epoch, index: as of ``augment``.

    Raises InputError if the function may not be run, or needs TensorFlow in a process that doesn't have it.
    """
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:
        raise InputError(
            f"the training images of this run are changed by {reference}, which needs TensorFlow"
        )
    function = named_object("--augment", reference)
    state = mixed_in(mixed_in(named_key(key, "own"), epoch), index)
    draws = [namespace(index).shift_right(mixed_in(state, number), 33) for number in range(2)]
    seeds = tf.stack([tf.cast(draw, tf.int32) for draw in draws], axis=1)
    made = tf.convert_to_tensor(function(tf.convert_to_tensor(images), seeds))
    made = made if made.dtype == tf.uint8 else tf.cast(made, tf.float32)
    return made.numpy() if isinstance(images, np.ndarray) else tf.ensure_shape(made, images.shape)


def check_own(reference: str, image_shape: tuple[int, int, int]) -> None:
    """Raise InputError unless a function of somebody's own changes each image by itself, and always alike."""
    flag = f"--augment {reference}"
    images = np.random.default_rng(0).integers(0, 256, (4, *image_shape)).astype(np.uint8)
    epoch, index = np.arange(4), np.arange(4) + 7

    def made(rows: slice) -> Array:
        return changed_by_own(reference, images[rows], key=1, epoch=epoch[rows], index=index[rows])

    try:
        whole = made(slice(None))
        again, alone = made(slice(None)), np.concatenate([made(slice(row, row + 1)) for row in range(4)])
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{flag} failed for images {[4, *image_shape]}: {first_line(error)}") from None
    if whole.shape != images.shape or not np.isfinite(whole).all():
        raise InputError(
            f"{flag} returned {whole.dtype} {list(whole.shape)} for images {list(images.shape)}; allowed: "
            "finite numbers of the same shape, 0 to 255"
        )
    if whole.max() <= 16:  # scaled to 0 to 1, or standardized
        raise InputError(
            f"{flag} returned numbers up to {whole.max():.3g} for pixels up to 255; keep 0 to 255"
        )
    if not np.array_equal(whole, again):
        raise InputError(
            f"{flag} changes the same images in two ways; draw with the seeds: "
            "tf.random.stateless_uniform(…, seed=seeds[0])"
        )
    if not np.allclose(whole, alone, atol=1e-3):
        raise InputError(
            f"{flag} makes an image depend on the others of its batch, so replicas would see other images; "
            "use each image and its seeds alone, as tf.map_fn does"
        )


def augmentation_offsets(
    key: int,
    epoch: Array,
    index: Array,
    augmentation: Augmentation = DEFAULT,
    size: tuple[int, int] = (0, 0),
) -> tuple[Array, Array, Array]:
    """Draw each example's crop and flip.

    Args:
        key: the result of :func:`augmentation_key`.
        epoch: int64 [n], the epoch of each example.
        index: int64 [n], each example's row within its split.
        augmentation: the settings.
        size: height and width of the images; needed only with a ``crop_size``.

    Returns:
        top and left int32 [n], uniform in 0 … 2·padding (a centred crop has top = left = padding), or with a
        ``crop_size`` wherever the crop is inside the padded image; flip bool [n].
    """
    xp = namespace(index)
    rows, columns = augmentation.positions(*size)
    draw = drawn(key, epoch, index, 2 * rows * columns)
    flip = draw % 2 == 1
    if augmentation.flip == "none":
        flip = draw < 0
    elif augmentation.flip == "alternating":
        first = xp.shift_right(mixed_in(key, index), 63)
        flip = (xp.cast(first, np.int64) + epoch) % 2 == 1
    return draw // (2 * columns), draw // 2 % columns, flip


def crop_and_flip(
    images: Array, top: Array, left: Array, flip: Array, augmentation: Augmentation = DEFAULT
) -> Array:
    """Pad, crop at (top, left) of the padded image, and mirror left-right where `flip` is true.

    With TensorFlow, rows are fetched by one gather. Then all images with the same `left` and `flip` are cut
    at once, in half of the time of fetching single pixels or less (docs/speed.md). NumPy fetches pixels.

    Args:
        images: uint8 [n, height, width, channels].
        top, left: int32 [n] in 0 … 2·padding, or as :func:`augmentation_offsets` draws them.
        flip: bool [n].
        augmentation: gives the width and the mode of the padding, and the size of the crop.

    Returns:
        uint8 [n, height, width, channels] of the crop.
    """
    if not isinstance(images, np.ndarray):
        return _crop_and_flip_tensors(images, top, left, flip, augmentation)
    height, width = (augmentation.crop_size or side for side in images.shape[1:3])
    pad = (augmentation.crop_padding,) * 2
    padded = np.pad(images, ((0, 0), pad, pad, (0, 0)), augmentation.crop_padding_mode)  # type: ignore[call-overload]
    columns = np.arange(width)[None, :]
    columns = np.where(flip[:, None], width - 1 - columns, columns) + left[:, None]
    rows = np.arange(height)[None, :] + top[:, None]
    return padded[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]


def _crop_and_flip_tensors(
    images: Array, top: Array, left: Array, flip: Array, augmentation: Augmentation
) -> Array:
    tf = sys.modules["tensorflow"]
    channels = images.shape[3]
    height, width = (augmentation.crop_size or side for side in images.shape[1:3])
    padded_height, padded_width = (side + 2 * augmentation.crop_padding for side in images.shape[1:3])
    number = tf.range(tf.shape(images)[0])
    rows = (number * padded_height + top)[:, None] + tf.range(height)
    strips = tf.gather(tf.reshape(_padded(images, augmentation), [-1, padded_width * channels]), rows)
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


def _padded(images: Array, augmentation: Augmentation) -> Array:
    tf = sys.modules["tensorflow"]
    height, width, channels = images.shape[1:]
    padding = augmentation.crop_padding
    # TensorFlow copies whole rows faster than single pixels, and its own reflection is the slowest.
    rows = tf.reshape(images, [-1, height, width * channels])
    if augmentation.crop_padding_mode == "constant":
        return tf.pad(rows, [[0, 0], [padding, padding], [padding * channels, padding * channels]])
    mirrored = np.pad(np.arange(height), padding, augmentation.crop_padding_mode)  # type: ignore[call-overload]
    pixels = tf.reshape(tf.gather(rows, mirrored, axis=1), [-1, len(mirrored), width, channels])
    left, right = pixels[:, :, 1 : 1 + padding], pixels[:, :, width - 1 - padding : width - 1]
    return tf.concat([tf.reverse(left, [2]), pixels, tf.reverse(right, [2])], axis=2)


def cut_out(images: Array, key: int, epoch: Array, index: Array, size: int, color: NDArray) -> Array:
    """Cover one random square in each image (DeVries & Taylor, "Cutout", 2017, arXiv:1708.04552).

    The square is always completely inside the image, and every position is equally likely. In the paper it
    may extend beyond the border.

    Args:
        images: uint8 or float32 [n, height, width, channels].
        key: the result of :func:`augmentation_key`.
        epoch, index: int64 [n], as for :func:`augment`.
        size: side of the square in pixels.
        color: uint8 [channels], the colour of the square.

    Returns:
        Images of the same shape and type.
    """
    xp = namespace(images)
    height, width = images.shape[1], images.shape[2]
    columns = width - size + 1
    corner = drawn(named_key(key, "cut"), epoch, index, (height - size + 1) * columns)[:, None]
    row, column = xp.arange(height)[None, :] - corner // columns, xp.arange(width)[None, :] - corner % columns
    tall, wide = (row >= 0) & (row < size), (column >= 0) & (column < size)
    covered = (tall[:, :, None] & wide[:, None, :])[..., None]
    return xp.where(covered, xp.cast(color, images.dtype), images)


# ---- random-resized-crop -------------------------------------------------------------------------------

CELLS = 256  # parts of a pixel
_TRIES = 10  # as torchvision
_LOG_RATIO = math.log(4 / 3)  # as torchvision
_COUNT = 4096  # of proportions: a step changes a side of 1,000 pixels by less than a tenth of a pixel
# sqrt(width / height) of a crop, ascending; read backwards, they are the reciprocals. Rounded, so that the
# last digit of a machine's exp does not matter.
_SIDES = np.array(
    [round(math.exp(_LOG_RATIO * ((2 * number + 1) / _COUNT - 1) / 2), 9) for number in range(_COUNT)]
)
_CODE = 1024  # above each number of cells


class CropGrid(NamedTuple):
    """Where each image is sampled, int32 [n] in 256ths of a pixel.

    ``top``, ``left``: of the first sampling point, from the centre of the first pixel. ``down``, ``across``:
    from one point to the next, 1 … 256; a crop keeps ``down * across / 256²`` of the area.
    """

    top: Array
    left: Array
    down: Array
    across: Array


def crop_grid(smallest: float, *, key: int, epoch: Array, index: Array, height: int, width: int) -> CropGrid:
    """Draw the crop of each example: a grid of sampling points, all in whole 256ths of a pixel.

    Args:
        smallest: the smallest share of the area that a crop keeps, above 0.
        key: the result of :func:`augmentation_key`.
        epoch, index: int64 [n], of each example.
        height, width: of the images.
    """
    xp = namespace(index)
    state = mixed_in(mixed_in(named_key(key, "crop"), epoch), index)
    tries = mixed_in(state[:, None], xp.arange(_TRIES))
    area = smallest + (1.0 - smallest) * (xp.cast(xp.shift_right(tries, 40), np.float64) * 2.0**-24)
    number = xp.cast(xp.shift_right(tries, 28) & xp.uint64(_COUNT - 1), np.int32)
    side = CELLS * xp.sqrt(area)
    across, down = (
        xp.cast(xp.floor(side * xp.take(_SIDES, places) + 0.5), np.int32)
        for places in (number, _COUNT - 1 - number)
    )
    fits = (across >= 1) & (across <= CELLS) & (down >= 1) & (down <= CELLS)
    # The first try that fits has the largest of these numbers, which hold its turn, down and across.
    turn = xp.arange(_TRIES, 0, -1)
    coded = xp.cast(turn * _CODE + down, np.int32) * _CODE + across
    best = xp.largest(xp.where(fits, coded, CELLS * _CODE + CELLS), axis=1)
    down, across = best // _CODE % _CODE, best % _CODE
    place = mixed_in(state, xp.uint64(_TRIES))
    top = scaled(xp.shift_right(place, 32), (CELLS - down) * (height - 1) + 1)
    left = scaled(place & xp.uint64(0xFFFFFFFF), (CELLS - across) * (width - 1) + 1)
    return CropGrid(top, left, down, across)


def random_resized_crop(
    images: Array, smallest: float, flip: Array, *, key: int, epoch: Array, index: Array
) -> Array:
    """Cut a random part out of each image, resize it to the image's size, and mirror it where ``flip``.

    As Szegedy et al. 2014, "Going deeper with convolutions" (arXiv:1409.4842, section 6), with the draws of
    torchvision's ``RandomResizedCrop``: the share of the area is uniform, the logarithm of the proportions is
    uniform between those of 3:4 and 4:3, ten tries, then the whole image. A pixel of the result is a sum of
    whole numbers below 2^24, which float32 holds exactly.

    Args:
        images: uint8 [n, height, width, channels]; of a tensor, only n may be unknown.
        smallest: the smallest share of the area that a crop keeps, above 0.
        flip: bool [n].
        key: the result of :func:`augmentation_key`.
        epoch, index: int64 [n], of each example.

    Returns:
        uint8 of ``images``' shape.
    """
    xp = namespace(images)
    _, height, width, channels = images.shape
    grid = crop_grid(smallest, key=key, epoch=epoch, index=index, height=height, width=width)
    columns = xp.arange(width)[None, :]
    columns = xp.where(flip[:, None], width - 1 - columns, columns)
    rows = grid.top[:, None] + grid.down[:, None] * xp.arange(height)[None, :]
    columns = grid.left[:, None] + grid.across[:, None] * columns

    def resized(each: tuple[Array, Array, Array]) -> Array:
        image, rows, columns = each
        # Transposed first, so that both gathers copy whole rows or columns, and not pixel by pixel.
        image = xp.reshape(xp.transpose(image, [1, 0, 2]), [width, height * channels])
        between = xp.reshape(_blended(image, columns), [width, height, channels])
        between = xp.reshape(xp.transpose(between, [1, 0, 2]), [height, width * channels])
        whole = xp.reshape(_blended(between, rows), [height, width, channels])
        rounded = (whole + CELLS**2 / 2) * (1 / CELLS**2)  # exact
        return xp.cast(rounded, np.uint8)  # cuts off

    # One image at a time: the float32 values of a batch do not fit into the processor's cache.
    return xp.for_each(resized, (images, rows, columns))


def _blended(rows: Array, points: Array) -> Array:
    """Return CELLS times the values at points between rows, float32 [points, n].

    Args:
        rows: [size, n].
        points: int32 [m], in cells from the first row.
    """
    xp = namespace(rows)
    near = xp.shift_right(points, 8)  # faster than a division
    far = xp.minimum(near + 1, rows.shape[0] - 1)
    weight = xp.cast(points & (CELLS - 1), np.float32)[:, None]
    before, after = (xp.cast(xp.take(rows, places), np.float32) for places in (near, far))
    return before * (CELLS - weight) + after * weight


# ---- rotation ------------------------------------------------------------------------------------------

_UNIT_BITS = 16  # of a whole in the numbers that stand for sines and cosines


def rotated(images: Array, degrees: float, *, key: int, epoch: Array, index: Array) -> Array:
    """Turn each image about its centre, by bilinear interpolation; what was outside of it is black.

    The angle is one of 4096, uniform from -degrees to degrees. All numbers are whole: places in 256ths of a
    pixel, from sines and cosines in 65,536ths.

    Args:
        images: uint8 [n, height, width, channels]; of a tensor, only n may be unknown.
        degrees: the largest angle, to either side.
        key: the result of :func:`augmentation_key`.
        epoch, index: int64 [n], of each example.

    Returns:
        uint8 of ``images``' shape.
    """
    xp = namespace(images)
    _, height, width, channels = images.shape
    number = drawn(named_key(key, "rotate"), epoch, index, _COUNT)
    angles = np.radians(degrees) * ((2 * np.arange(_COUNT) + 1) / _COUNT - 1)
    sines, cosines = (
        xp.take(np.round(values * 2**_UNIT_BITS).astype(np.int32), number)
        for values in (np.sin(angles), np.cos(angles))
    )
    # Twice the distance from the centre, which may lie between two pixels.
    down = (2 * xp.arange(height) - (height - 1))[:, None]
    across = (2 * xp.arange(width) - (width - 1))[None, :]

    def cells(doubled: Array, size: int) -> Array:
        """Return places along a side in cells, of twice the distances from its middle in units."""
        half = 2 ** (_UNIT_BITS - 8)  # of a cell, for rounding
        return xp.shift_right(doubled + ((size - 1) * 2**_UNIT_BITS + half), _UNIT_BITS - 7)

    def turned(each: tuple[Array, Array, Array]) -> Array:
        image, sine, cosine = each
        pixels = xp.reshape(image, [height * width, channels])
        rows = _neighbours(cells(cosine * down - sine * across, height), height)
        columns = _neighbours(cells(sine * down + cosine * across, width), width)
        total = sum(
            (by_row * by_column)[..., None] * xp.cast(xp.take(pixels, row * width + column), np.int32)
            for row, by_row in rows
            for column, by_column in columns
        )
        return xp.cast(xp.shift_right(total + CELLS**2 // 2, 16), np.uint8)

    return xp.for_each(turned, (images, sines, cosines))


def _neighbours(points: Array, size: int) -> list[tuple[Array, Array]]:
    """Return the pixels before and behind some points of a side, and their weights, which add up to CELLS.

    A pixel outside of the image has the weight 0.

    Args:
        points: int32, in cells from the first pixel.
        size: the number of pixels.
    """
    xp = namespace(points)
    before, weight = xp.shift_right(points, 8), points & (CELLS - 1)
    found = []
    for pixel, share in ((before, CELLS - weight), (before + 1, weight)):
        inside = (pixel >= 0) & (pixel < size)
        found.append((xp.minimum(xp.maximum(pixel, 0), size - 1), xp.where(inside, share, 0)))
    return found


# ---- colors --------------------------------------------------------------------------------------------


def change_colors(
    images: Array, augmentation: Augmentation, *, key: int, epoch: Array, index: Array
) -> Array:
    """Add a random number to each image, then scale each pixel's distance from the mean color.

    The order and the formulas are those of TensorFlow's CIFAR-10 tutorial: ``tf.image.random_brightness``,
    then ``tf.image.random_contrast``, on float32 and without clipping. The draws are uniform.

    Args:
        images: uint8 [n, height, width, channels].
        augmentation: the settings.
        key: the result of :func:`augmentation_key`.
        epoch, index: int64 [n], the epoch of each example, and its row within the split.

    Returns:
        float32 of ``images``' shape; values may be below 0 or above 255.
    """
    xp = namespace(images)
    pixels = xp.cast(images, np.float32)
    added = augmentation.brightness * _signed_draw(named_key(key, "bright"), epoch, index)
    if not augmentation.contrast:
        return pixels + added
    # From the sum of whole numbers, which is exact.
    mean = xp.cast(xp.total(images, [1, 2]), np.float32) / float(images.shape[1] * images.shape[2])
    factor = 1.0 + augmentation.contrast * _signed_draw(named_key(key, "contrast"), epoch, index)
    return (pixels - mean) * factor + (mean + added)


def _signed_draw(key: int, epoch: Array, index: Array) -> Array:
    """Return a multiple of 2^-23 in [-1, 1) for each example, float32 [n, 1, 1, 1]."""
    xp = namespace(index)
    upper = xp.cast(xp.shift_right(mixed_in(mixed_in(key, epoch), index), 40), np.int32)
    return (xp.cast(upper, np.float32) / 2.0**23 - 1.0)[:, None, None, None]
