"""Random-resized-crop: the arithmetic of its draws, and the whole of it with NumPy.

Szegedy et al. 2014, "Going deeper with convolutions" (arXiv:1409.4842, section 6): a part of the image is
cut out, whose share of the area and whose proportions are random, and resized to the whole image's size. The
draws are those of torchvision's ``RandomResizedCrop``: the share is uniform, the logarithm of the proportions
is uniform between those of 3:4 and 4:3, ten tries, then the whole image.

A crop is a grid of sampling points, and everything about it is a whole number of 256ths of a pixel: where its
first point lies, and the distance of its points. A pixel of the result is then a sum of whole numbers below
2^24, which float32 holds exactly. So TensorFlow's result and NumPy's are the same bits, in whatever order
they add.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.data.hashes import crop_key, mix64_array

__all__ = ["CELLS", "SIDES", "TRIES", "CropGrid", "crop_grid", "random_resized_crop"]

Images = NDArray[np.uint8]
Integers = NDArray[np.int64]

CELLS = 256  # parts of a pixel
TRIES = 10  # as torchvision
_LOG_RATIO = math.log(4 / 3)  # as torchvision
_COUNT = 4096  # of proportions: a step changes a side of 1,000 pixels by less than a tenth of a pixel
# sqrt(width / height) of a crop, ascending; read backwards, they are the reciprocals. Rounded, so that the
# last digit of a machine's exp does not matter.
SIDES = np.array(
    [round(math.exp(_LOG_RATIO * ((2 * number + 1) / _COUNT - 1) / 2), 9) for number in range(_COUNT)]
)


class CropGrid(NamedTuple):
    """Where each image is sampled, all int64 [n] in 256ths of a pixel.

    ``top``, ``left``: of the first sampling point, from the centre of the first pixel. ``down``, ``across``:
    from one point to the next, 1 … 256; a crop keeps ``down * across / 256²`` of the area.
    """

    top: Integers
    left: Integers
    down: Integers
    across: Integers


def crop_grid(
    smallest: float, *, key: int, epoch: Integers, index: Integers, height: int, width: int
) -> CropGrid:
    """Draw the crop of each example.

    Args:
        smallest: the smallest share of the area that a crop keeps, above 0.
        key: the result of ``hashes.distortion_key``.
        epoch, index: int64 [n], of each example.
        height, width: of the images.
    """
    state = mix64_array(mix64_array(crop_key(key), epoch), index)
    tries = mix64_array(state[:, None], np.arange(TRIES))
    area = smallest + (1.0 - smallest) * ((tries >> np.uint64(40)).astype(np.float64) * 2.0**-24)
    number = ((tries >> np.uint64(28)) & np.uint64(_COUNT - 1)).astype(np.int64)
    side = CELLS * np.sqrt(area)
    across = np.floor(side * SIDES[number] + 0.5).astype(np.int64)
    down = np.floor(side * SIDES[_COUNT - 1 - number] + 0.5).astype(np.int64)
    fits = (across >= 1) & (across <= CELLS) & (down >= 1) & (down <= CELLS)
    first = np.argmax(fits, axis=1)[:, None]
    fit = np.take_along_axis(fits, first, 1)[:, 0]
    down, across = (
        np.where(fit, np.take_along_axis(steps, first, 1)[:, 0], CELLS) for steps in (down, across)
    )
    place = mix64_array(state, np.full(1, TRIES))
    top = _drawn(place >> np.uint64(32), (CELLS - down) * (height - 1) + 1)
    left = _drawn(place & np.uint64(0xFFFFFFFF), (CELLS - across) * (width - 1) + 1)
    return CropGrid(top, left, down, across)


def _drawn(bits: NDArray[np.uint64], count: Integers) -> Integers:
    """Scale 32 random bits to 0 … count - 1."""
    return (bits * count.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def random_resized_crop(
    images: Images,
    smallest: float,
    flip: NDArray[np.bool_],
    *,
    key: int,
    epoch: Integers,
    index: Integers,
) -> Images:
    """Cut a random part out of each image, resize it to the image's size, and mirror it where ``flip``.

    Args:
        images: uint8 [n, height, width, channels].
        smallest: the smallest share of the area that a crop keeps, above 0.
        flip: bool [n].
        key: the result of ``hashes.distortion_key``.
        epoch, index: int64 [n], of each example.
    """
    count, height, width, _ = images.shape
    grid = crop_grid(smallest, key=key, epoch=epoch, index=index, height=height, width=width)
    rows = grid.top[:, None] + grid.down[:, None] * np.arange(height)
    columns = np.arange(width)[None, :]
    columns = np.where(flip[:, None], width - 1 - columns, columns)
    columns = grid.left[:, None] + grid.across[:, None] * columns
    made = np.empty_like(images)
    for number in range(count):  # one at a time: the sums of a batch would not fit into the processor's cache
        between = _blended(images[number].astype(np.int32), rows[number], 0)
        whole = _blended(between, columns[number], 1)
        made[number] = (whole + CELLS**2 // 2) // CELLS**2
    return made


def _blended(image: NDArray[np.int32], points: Integers, axis: int) -> NDArray[np.int32]:
    """Return CELLS times the image's values at points along an axis, interpolated between two neighbours."""
    near = points // CELLS
    far = np.minimum(near + 1, image.shape[axis] - 1)
    weight = (points % CELLS).astype(np.int32).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    return image.take(near, axis) * (CELLS - weight) + image.take(far, axis) * weight
