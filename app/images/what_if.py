"""Change an image a little: shift, rotation, flip, blur, brightness, noise, JPEG, a covered part."""

import io
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Changes", "Rectangle", "changed"]

Image = NDArray[np.uint8]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rectangle:
    """A part of an image, in pixels; it may reach over the edge. Without width or height it is empty."""

    left: int = 0
    top: int = 0
    width: int = 0
    height: int = 0


@dataclass(frozen=True)
class Changes:
    """What is done to an image, in this order. The defaults change nothing.

    ``flip``: mirrors it left to right. ``rotate``: degrees, counter-clockwise. ``shift_x``, ``shift_y``:
    pixels to the right and downwards. ``blur``: standard deviation of a Gaussian, in pixels. ``brightness``:
    factor. ``noise``: standard deviation of Gaussian noise, in grey levels, drawn from ``seed``.
    ``jpeg_quality``: 1 to 100, or None for no compression. ``cover``: a part that gets the mean colour.
    """

    flip: bool = False
    rotate: float = 0.0
    shift_x: int = 0
    shift_y: int = 0
    blur: float = 0.0
    brightness: float = 1.0
    noise: float = 0.0
    seed: int = 0
    jpeg_quality: int | None = None
    cover: Rectangle = Rectangle()


def changed(image: Image, changes: Changes) -> Image:
    """Return a changed copy of an image. Pixels that become free get the image's mean colour.

    Args:
        image: uint8 [height, width, channels], 1 or 3 channels.
        changes: what to do.

    Raises ValueError for negative strengths and a JPEG quality out of range.
    """
    if changes.blur < 0 or changes.brightness < 0 or changes.noise < 0:
        raise ValueError("blur, brightness and noise can't be negative")
    mean: Floats = image.mean(axis=(0, 1))
    pixels = image.astype(np.float64)
    if changes.flip:
        pixels = pixels[:, ::-1]
    if changes.rotate % 360:
        pixels = _rotated(pixels, changes.rotate, mean)
    pixels = _shifted(pixels, changes.shift_x, changes.shift_y, mean)
    if changes.blur:
        pixels = _blurred(pixels, changes.blur)
    pixels = pixels * changes.brightness
    if changes.noise:
        pixels = pixels + np.random.default_rng(changes.seed).normal(0.0, changes.noise, pixels.shape)
    result = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    if changes.jpeg_quality is not None:
        result = _compressed(result, changes.jpeg_quality)
    return _covered(result, changes.cover, mean)


def _shifted(pixels: Floats, right: int, down: int, fill: Floats) -> Floats:
    height, width = pixels.shape[:2]
    result = np.broadcast_to(fill, pixels.shape).copy()
    rows, columns = height - abs(down), width - abs(right)
    if rows > 0 and columns > 0:
        part = pixels[max(0, -down) :, max(0, -right) :][:rows, :columns]
        result[max(0, down) :, max(0, right) :][:rows, :columns] = part
    return result


def _rotated(pixels: Floats, degrees: float, fill: Floats) -> Floats:
    """Turn about the middle, with bilinear interpolation."""
    height, width = pixels.shape[:2]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    y, x = np.mgrid[:height, :width]
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    # Where each pixel of the result comes from. Rounding keeps quarter turns exact.
    from_y = np.round(cosine * y + sine * x + (height - 1) / 2, 9)
    from_x = np.round(cosine * x - sine * y + (width - 1) / 2, 9)
    framed = np.pad(pixels, ((1, 1), (1, 1), (0, 0)))
    framed[[0, -1]], framed[:, [0, -1]] = fill, fill
    from_y, from_x = np.clip(from_y + 1, 0, height + 1), np.clip(from_x + 1, 0, width + 1)
    top = np.minimum(from_y.astype(int), height)
    left = np.minimum(from_x.astype(int), width)
    down, right = (from_y - top)[..., None], (from_x - left)[..., None]
    upper = framed[top, left] * (1 - right) + framed[top, left + 1] * right
    lower = framed[top + 1, left] * (1 - right) + framed[top + 1, left + 1] * right
    return upper * (1 - down) + lower * down


def _blurred(pixels: Floats, sigma: float) -> Floats:
    radius = max(1, math.ceil(3 * sigma))
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        around = [(radius, radius) if number == axis else (0, 0) for number in range(3)]
        windows = np.lib.stride_tricks.sliding_window_view(
            np.pad(pixels, around, mode="edge"), len(kernel), axis=axis
        )
        pixels = windows @ kernel
    return pixels


def _compressed(image: Image, quality: int) -> Image:
    if not 1 <= quality <= 100:
        raise ValueError(f"jpeg_quality is {quality}; allowed: 1 to 100, or None")
    import PIL.Image

    buffer = io.BytesIO()
    PIL.Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(
        buffer, "JPEG", quality=quality
    )
    return np.asarray(PIL.Image.open(buffer)).reshape(image.shape)


def _covered(image: Image, part: Rectangle, colour: Floats) -> Image:
    rows = slice(max(0, part.top), max(0, part.top + part.height))
    columns = slice(max(0, part.left), max(0, part.left + part.width))
    result = image.copy()
    result[rows, columns] = np.rint(colour).astype(np.uint8)
    return result
