"""Pixels and labels of arrays: their shape, type and range are checked and brought to one form."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.data.images.layouts import MAX_CLASSES
from labkit.errors import InputError, short

_WHITE = 255
_LEAST_HIGHEST = 16  # of values from 0 to 255: images that are all as dark as this have another scale
_BLOCK = 1_000  # images that are converted at once
_SHAPES = "[n, height, width], [n, height, width, 1 or 3] or [n, 1 or 3, height, width]"
_SCALES = "whole numbers from 0 to 255, or floats from 0 to 1 or from 0 to 255"
_LABELS = "whole numbers from 0, [n] or [n, 1]; zeros and ones, [n, classes]; or floats, [n] or [n, numbers]"


@dataclass(frozen=True)
class Part:
    """The examples of a split.

    Args:
        images: by row, uint8 [height, width, 1 or 3]; they may have different sizes.
        labels: int32 [n], zeros and ones [n, classes], or float32 [n, numbers].
        sizes: width and height of each image, as it was given.
        sha256: of all pixels and sizes that were given.
        classes: names of the classes, where whoever gives the examples knows them.
        notes: lines that say how the pixels were read.
    """

    images: Any
    labels: np.ndarray
    sizes: Sequence[tuple[int, int]] = field(repr=False)
    sha256: str
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def part_of_arrays(where: str, images: Any, labels: Any) -> Part:
    """Return the examples of two arrays. Raises InputError for arrays that can't be images and their labels.

    Args:
        where: how the user calls them: ``train``.
        images: [n, height, width], [n, height, width, 1 or 3] or [n, 1 or 3, height, width]: whole numbers
            from 0 to 255, or floats from 0 to 1 or from 0 to 255.
        labels: whole numbers [n] or [n, 1], zeros and ones [n, classes], or floats [n] or [n, numbers].
    """
    pixels, scale = as_pixels(f"the images of {where}", as_array(f"the images of {where}", images))
    targets = as_labels(f"the labels of {where}", as_array(f"the labels of {where}", labels))
    if len(pixels) != len(targets):
        raise lengths_error(where, len(pixels), len(targets))
    check_brightness(where, int(pixels.max()))
    height, width = pixels.shape[1:3]
    digest = hashlib.sha256()
    for image in pixels:
        add_image(digest, image)
    sizes = [(width, height)] * len(pixels)
    return Part(pixels, targets, sizes, digest.hexdigest(), notes=scale_notes(where, scale))


def add_image(digest: Any, pixels: np.ndarray) -> None:
    """Add an image to a checksum: its pixels, uint8 [height, width, 1 or 3], and their shape."""
    digest.update(f"{pixels.shape}".encode())
    digest.update(pixels.tobytes())


def lengths_error(where: str, images: int, labels: int) -> InputError:
    """Return the error of a split that has another number of labels than of images."""
    return InputError(f"{where} has {images:,} images and {labels:,} labels; give a label for each image")


def as_array(what: str, values: Any) -> np.ndarray:
    """Return what NumPy can read as an array. Raises InputError, with the name ``what``, for other things."""
    try:
        array = np.asarray(values)
    except Exception as error:  # of any library whose tensors these are
        raise InputError(f"{what} can't be read as an array: {short(str(error))}") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what}: {array.dtype} {list(array.shape)}; allowed: numbers")
    return array


def as_pixels(what: str, images: np.ndarray, scale: int | None = None) -> tuple[np.ndarray, int]:
    """Return images as uint8 [n, height, width, 1 or 3], and what floats were multiplied by; 0 for integers.

    Args:
        what: their name in messages.
        images: numbers, see ``part_of_arrays``.
        scale: 255 or 1 where other images have decided; None: the values of these do.

    Raises:
        InputError: no image, a shape that no images have, or values beyond the scales.
    """
    given = list(images.shape)
    if images.ndim == 3:
        images = images[..., None]
    elif images.ndim == 4 and given[3] not in (1, 3) and given[1] in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
        raise InputError(f"{what}: the shape {given}; allowed: {_SHAPES}")
    if not len(images):
        raise InputError(f"{what}: none; give one at least")
    if images.dtype == np.uint8:
        return images, 0
    low, high = images.min(), images.max()  # NaN if one of the values is
    whole = images.dtype.kind != "f"
    if images.dtype == bool or not (low >= 0 and high <= _WHITE):
        raise InputError(f"{what}: {images.dtype} from {low} to {high}; allowed: {_SCALES}")
    factor = scale or (1 if whole or high > 1 else _WHITE)
    if not whole and (high > 1 if factor == _WHITE else scale is None and high < _LEAST_HIGHEST):
        reason = ", and those before up to 1" if scale else ""
        raise InputError(f"{what}: floats up to {high:.4g}{reason}; allowed: {_SCALES}, the same for all")
    pixels = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), _BLOCK):
        block = images[start : start + _BLOCK]
        pixels[start : start + _BLOCK] = block if whole else np.rint(block.astype(np.float32) * factor)
    return pixels, 0 if whole else factor


def check_brightness(where: str, highest: int) -> None:
    """Raise InputError for images that are black but for a scale that got lost when they became integers."""
    if highest <= 1:
        raise InputError(
            f"the images of {where} have no value above {highest}, of 255; give floats from 0 to 1, or "
            "multiply them by 255"
        )


def scale_notes(where: str, scale: int | None) -> tuple[str, ...]:
    """Return the line that says how floats were read; none for other images."""
    if not scale:
        return ()
    how = "1 are multiplied by 255 and" if scale == _WHITE else "255 are"
    return (f"{where}: values from 0 to {how} rounded",)


def as_labels(what: str, labels: np.ndarray) -> np.ndarray:
    """Return labels as int32 [n], as zeros and ones int32 [n, classes], or as numbers, float32 [n, numbers].

    Floats are numbers, but for several in a row that are zeros and ones.

    Raises InputError, with the name ``what``, for another shape, and for values that are no labels.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "f" and not (labels.ndim == 2 and np.isin(labels, (0, 1)).all()):
        return _numbers(what, labels)
    if labels.ndim not in (1, 2):
        raise InputError(f"{what}: {labels.dtype} {list(labels.shape)}; allowed: {_LABELS}")
    most = 1 if labels.ndim == 2 else MAX_CLASSES - 1
    if labels.size and not (labels.min() >= 0 and labels.max() <= most):
        raise InputError(f"{what}: from {labels.min()} to {labels.max()}; allowed: {_LABELS}")
    return labels.astype(np.int32)


def _numbers(what: str, labels: np.ndarray) -> np.ndarray:
    if labels.ndim not in (1, 2) or not labels.size:
        raise InputError(f"{what}: {labels.dtype} {list(labels.shape)}; allowed: {_LABELS}")
    with np.errstate(over="ignore"):
        numbers = labels.astype(np.float32).reshape(len(labels), -1)
    if not np.isfinite(numbers).all():
        raise InputError(f"{what}: NaN, or beyond float32; give finite numbers")
    if numbers.shape[1] > 1 and (numbers >= 0).all() and np.allclose(numbers.sum(axis=1), 1, atol=1e-3):
        raise InputError(f"{what}: shares of classes, which sum to 1; give the class of each image")
    return numbers
