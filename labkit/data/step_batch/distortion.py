"""Crop, flip, cutout, standardization and resizing with NumPy, equal to those of ``labkit.data.augment``."""

import numpy as np
from numpy.typing import NDArray

from labkit.data.inputs import Distortion
from labkit.data.manifest import Manifest
from labkit.data.step_batch.hashes import cutout_key, mix64_array
from labkit.data.step_batch.random_resized_crop import random_resized_crop

__all__ = ["distorted", "offsets_of", "shrunk", "standardized"]

Images = NDArray[np.uint8]
Integers = NDArray[np.int64]
_HALF = np.uint64(32)


def distorted(
    images: Images, manifest: Manifest, distortion: Distortion, *, key: int, epoch: Integers, index: Integers
) -> Images:
    """Crop and flip each image, then apply cutout where it is enabled; see ``augment.distort``."""
    top, left, flip = offsets_of(key, epoch, index, distortion)
    if distortion.random_resized_crop:
        share = distortion.random_resized_crop
        images = random_resized_crop(images, share, flip, key=key, epoch=epoch, index=index)
    else:
        images = _cropped_and_flipped(images, top, left, flip, distortion)
    if not distortion.cutout_size:
        return images
    mean = np.round(255 * np.asarray(manifest.channel_mean)).astype(np.uint8)
    return _cut_out(images, key, epoch, index, distortion.cutout_size, mean)


def offsets_of(key: int, epoch: Integers, index: Integers, distortion: Distortion):
    """Return top and left of the crop, int64 [n], and flip, bool [n], of each example; see ``distorted``."""
    state = mix64_array(mix64_array(key, epoch), index)
    offsets = 2 * distortion.crop_padding + 1
    draw = ((state >> _HALF) * np.uint64(2 * offsets**2) >> _HALF).astype(np.int64)
    flip = draw % 2 == 1
    if distortion.flip == "none":
        flip = np.zeros_like(flip)
    elif distortion.flip == "alternating":
        first = (mix64_array(key, index) >> np.uint64(63)).astype(np.int64)
        flip = (first + epoch) % 2 == 1
    return draw // (2 * offsets), draw // 2 % offsets, flip


def _cropped_and_flipped(images: Images, top, left, flip, distortion: Distortion) -> Images:
    count, height, width, _ = images.shape
    pad = (distortion.crop_padding,) * 2
    padded = np.pad(images, ((0, 0), pad, pad, (0, 0)), distortion.crop_padding_mode)  # type: ignore[call-overload]
    columns = np.arange(width)[None, :]
    columns = np.where(flip[:, None], width - 1 - columns, columns) + left[:, None]
    rows = np.arange(height)[None, :] + top[:, None]
    return padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def _cut_out(images: Images, key: int, epoch: Integers, index: Integers, size: int, color: Images) -> Images:
    height, width = images.shape[1:3]
    state = mix64_array(mix64_array(cutout_key(key), epoch), index)
    columns = width - size + 1
    corner = ((state >> _HALF) * np.uint64((height - size + 1) * columns) >> _HALF).astype(np.int64)[:, None]
    row, column = np.arange(height) - corner // columns, np.arange(width) - corner % columns
    tall, wide = (row >= 0) & (row < size), (column >= 0) & (column < size)
    return np.where((tall[:, :, None] & wide[:, None, :])[..., None], color, images)


def standardized(images: Images, manifest: Manifest) -> NDArray[np.float32]:
    """Return (images / 255 − mean) / std as float32, of the images' shape."""
    mean, std = np.asarray(manifest.channel_mean), np.asarray(manifest.channel_std)
    scale, shift = (1.0 / (255.0 * std)).astype(np.float32), (-mean / std).astype(np.float32)
    return images.astype(np.float32) * scale + shift


def shrunk(images: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return the images reduced to ``size`` x ``size`` by antialiased bilinear interpolation.

    Equals ``labkit.models.resizing.shrunk`` to rounding.

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
