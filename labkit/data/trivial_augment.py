"""TrivialAugment: one operation of fourteen, at a random strength, on each training image.

Müller & Hutter, "TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation" (2021),
arXiv:2103.10158: operation and strength are drawn uniformly, with the wide space of strengths (table 1), as
torchvision's ``TrivialAugmentWide``. The paper's operations are Pillow's. Here all numbers are whole, so that
NumPy and TensorFlow give the same bits; a pixel may differ from Pillow's by one grey level.
"""

import functools
from typing import Any

import numpy as np

from labkit.data.hashes import drawn, named_key
from labkit.data.namespace import Array, namespace

LEVELS = 31  # strengths
UNIT = 2**16  # a whole
_STRENGTHS = np.linspace(0.0, 1.0, LEVELS)
_SLOPES = np.round(0.99 * UNIT * _STRENGTHS).astype(np.int32)  # of shears, and of factors
_SHIFTS = np.round(32 * UNIT * _STRENGTHS).astype(np.int32)  # pixels
_ANGLES = np.radians(135 * _STRENGTHS)
_SINES, _COSINES = (np.round(UNIT * turn(_ANGLES)).astype(np.int32) for turn in (np.sin, np.cos))
_DROPPED = (2 ** np.round(6 * _STRENGTHS) - 1).astype(np.int32)  # bits of a value, up to six of eight
_THRESHOLDS = (255 - 255 * np.arange(LEVELS) // (LEVELS - 1)).astype(np.int32)


def trivially_augmented(images: Array, *, key: int, epoch: Array, index: Array) -> Array:
    """Change each image by one random operation.

    Args:
        images: uint8 [n, height, width, channels]; of a tensor, only n may be unknown.
        key: the result of ``labkit.data.hashes.augmentation_key``.
        epoch, index: int64 [n], of each example.

    Returns:
        uint8 of ``images``' shape.
    """
    xp = namespace(images)
    number = drawn(named_key(key, "trivial"), epoch, index, len(OPERATIONS) * LEVELS * 2)

    def changed(each: tuple[Array, Array]) -> Array:
        image, number = each
        level, sign = number // 2 % LEVELS, 1 - 2 * (number % 2)
        values = xp.cast(image, np.int32)
        apply = [functools.partial(operation, values, level, sign) for operation in OPERATIONS.values()]
        made = xp.choose(number // (2 * LEVELS), apply)
        return xp.cast(xp.minimum(xp.maximum(made, 0), 255), np.uint8)

    return xp.for_each(changed, (images, number))


def _rotate(image: Array, level: Array, sign: Array) -> Array:
    sine, cosine = sign * _at(_SINES, level), _at(_COSINES, level)
    return _sampled(image, (cosine, -sine), (sine, cosine), about_centre=True)


def _contrast(image: Array, level: Array, sign: Array) -> Array:
    pixels = image.shape[0] * image.shape[1]
    grey = _grey(image)[..., :1]
    mean = (2 * namespace(image).total(grey, [0, 1, 2]) + pixels) // (2 * pixels)  # rounded, as Pillow does
    return _blended(image, mean, level, sign)


def _sharpness(image: Array, level: Array, sign: Array) -> Array:
    """Go away from, or towards, a mean of 3x3 pixels in which the middle counts five times."""
    xp = namespace(image)
    height, width = image.shape[:2]
    around = xp.pad(image, [[1, 1], [1, 1], [0, 0]])
    total = 4 * image + sum(
        around[row : row + height, column : column + width] for row in range(3) for column in range(3)
    )
    row, column = xp.arange(height)[:, None, None], xp.arange(width)[None, :, None]
    inside = (row > 0) & (row < height - 1) & (column > 0) & (column < width - 1)
    smooth = xp.where(inside, (2 * total + 13) // 26, image)
    return _blended(image, smooth, level, sign)


def _auto_contrast(image: Array, level: Array, sign: Array) -> Array:
    """Stretch the values of each channel to 0 … 255."""
    xp = namespace(image)
    flat = xp.reshape(image, [-1, image.shape[2]])
    low, high = -xp.largest(-flat, axis=0), xp.largest(flat, axis=0)
    return xp.where(high > low, (image - low) * 255 // xp.maximum(high - low, 1), image)


def _equalize(image: Array, level: Array, sign: Array) -> Array:
    """Spread the values of each channel, so that each range of grey levels has as many pixels as others."""
    xp = namespace(image)
    height, width, channels = image.shape
    numbered = image + 256 * xp.arange(channels)
    counts = xp.reshape(xp.counts(xp.reshape(numbered, [-1]), 256 * channels), [channels, 256])
    highest = xp.largest(xp.where(counts > 0, xp.arange(256), 0), axis=1)
    last = xp.take(xp.reshape(counts, [-1]), highest + 256 * xp.arange(channels))
    step = (height * width - last) // 255
    known = xp.maximum(step, 1)[:, None]
    levels = (step[:, None] // 2 + xp.cumsum(counts, axis=1) - counts) // known
    levels = xp.where(step[:, None] > 0, levels, xp.arange(256)[None, :])
    return xp.cast(xp.take(xp.reshape(levels, [-1]), numbered), np.int32)


# Each operation takes an image int32 [height, width, channels], a strength from 0 to 30, and a sign, 1 or -1.
# It returns an image int32 of this shape, whose values are still to be clipped to 0 … 255.
OPERATIONS: dict[str, Any] = {
    "identity": lambda image, level, sign: image,
    "shear_x": lambda image, level, sign: _sampled(image, (UNIT, sign * _at(_SLOPES, level)), (0, UNIT)),
    "shear_y": lambda image, level, sign: _sampled(image, (UNIT, 0), (sign * _at(_SLOPES, level), UNIT)),
    "translate_x": lambda image, level, sign: _sampled(
        image, (UNIT, 0), (0, UNIT), right=sign * _at(_SHIFTS, level)
    ),
    "translate_y": lambda image, level, sign: _sampled(
        image, (UNIT, 0), (0, UNIT), down=sign * _at(_SHIFTS, level)
    ),
    "rotate": _rotate,
    "brightness": lambda image, level, sign: _blended(image, 0 * image, level, sign),
    "color": lambda image, level, sign: _blended(image, _grey(image), level, sign),
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": lambda image, level, sign: image - (image & _at(_DROPPED, level)),
    "solarize": lambda image, level, sign: namespace(image).where(
        image >= _at(_THRESHOLDS, level), 255 - image, image
    ),
    "auto_contrast": _auto_contrast,
    "equalize": _equalize,
}


def _at(table: Any, level: Array) -> Array:
    return namespace(level).take(table, level)


def _sampled(
    image: Array,
    columns: tuple[Array, Array],
    rows: tuple[Array, Array],
    *,
    right: Array = 0,
    down: Array = 0,
    about_centre: bool = False,
) -> Array:
    """Return the nearest pixel at other places of an image, black outside of it.

    Args:
        image: int32 [height, width, channels].
        columns: of the place that is shown at (x, y): x times the first, plus y times the second.
        rows: the same for the row.
        right, down: added to the place.
        about_centre: whether x and y are counted from the middle of the image; else from its corner.
    """
    xp = namespace(image)
    height, width, channels = image.shape
    middle, centre = (height, width) if about_centre else (0, 0)
    # Twice the distance of a pixel's middle.
    x, y = (2 * xp.arange(width) + 1 - centre)[None, :], (2 * xp.arange(height) + 1 - middle)[:, None]
    column = xp.shift_right(columns[0] * x + columns[1] * y + (centre * UNIT + 2 * right), 17)
    row = xp.shift_right(rows[0] * x + rows[1] * y + (middle * UNIT + 2 * down), 17)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    pixels = xp.take(xp.reshape(image, [height * width, channels]), xp.where(inside, row * width + column, 0))
    return xp.where(inside[..., None], pixels, 0)


def _grey(image: Array) -> Array:
    """Return the brightness of each pixel, in all channels; an image that isn't in colour as it is."""
    if image.shape[2] != 3:
        return image
    xp = namespace(image)
    weights = np.array([19595, 38470, 7471], np.int32)  # of 65,536, as Pillow has them
    return xp.shift_right(xp.total(image * weights, [2]) + UNIT // 2, 16) + 0 * image


def _blended(image: Array, other: Array, level: Array, sign: Array) -> Array:
    """Return ``other`` plus 1 ± 0.99 times what the image differs from it."""
    xp = namespace(image)
    factor = UNIT + sign * _at(_SLOPES, level)
    return other + xp.shift_right(factor * (image - other) + UNIT // 2, 16)
