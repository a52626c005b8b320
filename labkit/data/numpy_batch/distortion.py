"""Crop, flip, colors, cutout, standardization and resizing with NumPy, equal to those of ``labkit.data``."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.data.hashes import brightness_key, contrast_key, cutout_key, mix64_array
from labkit.data.inputs import Distortion
from labkit.data.manifest import Manifest
from labkit.data.network_input.settings import NetworkInput, central_corner
from labkit.data.numpy_batch.random_resized_crop import random_resized_crop

__all__ = [
    "as_input",
    "as_pixels",
    "central_crop",
    "distorted",
    "offsets_of",
    "shrunk",
    "standardized",
]

Images = NDArray[Any]  # uint8, or float32 with changed colors: [n, height, width, channels]
Integers = NDArray[np.int64]
_HALF = np.uint64(32)


def distorted(
    images: Images, manifest: Manifest, distortion: Distortion, *, key: int, epoch: Integers, index: Integers
) -> Images:
    """Crop and flip each image, change its colors and apply cutout; see ``augment.distort``."""
    top, left, flip = offsets_of(key, epoch, index, distortion, images.shape[1:3])
    if distortion.random_resized_crop:
        share = distortion.random_resized_crop
        images = random_resized_crop(images, share, flip, key=key, epoch=epoch, index=index)
    else:
        images = _cropped_and_flipped(images, top, left, flip, distortion)
    if distortion.changes_colors:
        images = _with_changed_colors(images, distortion, key, epoch, index)
    if not distortion.cutout_size:
        return images
    mean = np.round(255 * np.asarray(manifest.channel_mean)).astype(np.uint8)
    return _cut_out(images, key, epoch, index, distortion.cutout_size, mean)


def offsets_of(
    key: int, epoch: Integers, index: Integers, distortion: Distortion, size: tuple[int, ...] = (0, 0)
):
    """Return top and left of the crop, int64 [n], and flip, bool [n], of each example; see ``distorted``.

    ``size``: height and width of the images; needed only with a ``crop_size``.
    """
    state = mix64_array(mix64_array(key, epoch), index)
    rows, columns = distortion.positions(*size)
    draw = ((state >> _HALF) * np.uint64(2 * rows * columns) >> _HALF).astype(np.int64)
    flip = draw % 2 == 1
    if distortion.flip == "none":
        flip = np.zeros_like(flip)
    elif distortion.flip == "alternating":
        first = (mix64_array(key, index) >> np.uint64(63)).astype(np.int64)
        flip = (first + epoch) % 2 == 1
    return draw // (2 * columns), draw // 2 % columns, flip


def _cropped_and_flipped(images: Images, top, left, flip, distortion: Distortion) -> Images:
    height, width = (distortion.crop_size or side for side in images.shape[1:3])
    pad = (distortion.crop_padding,) * 2
    padded = np.pad(images, ((0, 0), pad, pad, (0, 0)), distortion.crop_padding_mode)  # type: ignore[call-overload]
    columns = np.arange(width)[None, :]
    columns = np.where(flip[:, None], width - 1 - columns, columns) + left[:, None]
    rows = np.arange(height)[None, :] + top[:, None]
    return padded[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]


def _with_changed_colors(
    images: Images, distortion: Distortion, key: int, epoch: Integers, index: Integers
) -> NDArray[np.float32]:
    pixels = images.astype(np.float32)
    added = np.float32(distortion.brightness) * _signed_draw(brightness_key(key), epoch, index)
    if not distortion.contrast:
        return pixels + added
    total = images.sum(axis=(1, 2), keepdims=True, dtype=np.int32)
    mean = total.astype(np.float32) / np.float32(images.shape[1] * images.shape[2])
    factor = np.float32(1) + np.float32(distortion.contrast) * _signed_draw(contrast_key(key), epoch, index)
    return (pixels - mean) * factor + (mean + added)


def _signed_draw(key: int, epoch: Integers, index: Integers) -> NDArray[np.float32]:
    state = mix64_array(mix64_array(key, epoch), index)
    upper = (state >> np.uint64(40)).astype(np.float32)
    return (upper / np.float32(2**23) - np.float32(1))[:, None, None, None]


def _cut_out(images: Images, key: int, epoch: Integers, index: Integers, size: int, color: Images) -> Images:
    height, width = images.shape[1:3]
    state = mix64_array(mix64_array(cutout_key(key), epoch), index)
    columns = width - size + 1
    corner = ((state >> _HALF) * np.uint64((height - size + 1) * columns) >> _HALF).astype(np.int64)[:, None]
    row, column = np.arange(height) - corner // columns, np.arange(width) - corner % columns
    tall, wide = (row >= 0) & (row < size), (column >= 0) & (column < size)
    covered = (tall[:, :, None] & wide[:, None, :])[..., None]
    return np.where(covered, color.astype(images.dtype), images)


def as_input(images: Images, manifest: Manifest, settings: NetworkInput) -> NDArray[np.float32]:
    """Return what the network takes; see ``labkit.data.network_input.tensors.as_input``."""
    images = central_crop(images, settings.crop_size)
    if settings.standardization == "dataset":
        return standardized(images, manifest)
    values = images.astype(np.float32)
    centred = values - values.mean(axis=(1, 2, 3), keepdims=True)
    std = np.sqrt(np.square(centred).mean(axis=(1, 2, 3), keepdims=True))
    return centred / np.maximum(std, np.float32(1 / math.sqrt(math.prod(values.shape[1:]))))


def central_crop(images: Images, size: int | None) -> Images:
    """Return the middle ``size`` x ``size`` pixels; None: all."""
    if size is None:
        return images
    top, left = central_corner(images.shape[1], images.shape[2], size)
    return images[:, top : top + size, left : left + size]


def as_pixels(images: Images) -> NDArray[np.uint8]:
    """Return the nearest whole numbers from 0 to 255, uint8 of the images' shape."""
    return images if images.dtype == np.uint8 else np.round(images).clip(0, 255).astype(np.uint8)


def standardized(images: Images, manifest: Manifest) -> NDArray[np.float32]:
    """Return (images / 255 − mean) / std as float32, of the images' shape."""
    mean, std = np.asarray(manifest.channel_mean), np.asarray(manifest.channel_std)
    scale, shift = (1.0 / (255.0 * std)).astype(np.float32), (-mean / std).astype(np.float32)
    return images.astype(np.float32) * scale + shift


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
