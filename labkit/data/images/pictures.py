"""Make an image that a network takes of any picture file."""

import warnings
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from labkit.data.images.decode import (
    DEEPEST,
    DamagedError,
    decoded,
    extrema,
    is_deep_grey,
    is_transparent,
    orientation,
    resized,
    upright,
    white_of,
)
from labkit.errors import InputError

MAX_BYTES = 10 * 2**20
MAX_PIXELS = 50_000_000  # a telephone's picture has 12 to 50 million


@dataclass(frozen=True)
class Picture:
    """``image``: uint8 [height, width, channels], as the network takes it. ``notes``: what was done to it."""

    image: NDArray[np.uint8]
    notes: tuple[str, ...]


def read_picture(
    data: bytes,
    image_shape: tuple[int, int, int],
    resize: str | None = None,
    white: int | None = None,
    max_bytes: int = MAX_BYTES,
    max_pixels: int | None = None,
) -> Picture:
    """Read a picture of any size and fit it to a network.

    Its middle is cut out in the network's proportions and resized with Lanczos's filter, or it is fitted as
    the pictures of the network's data set were prepared. Of an animation the first frame is taken.
    Transparent parts become white. A rotation that its EXIF data ask for is applied.

    Args:
        data: content of the file.
        image_shape: (height, width, channels) that the network takes, 1 or 3 channels.
        resize: ``crop`` or ``letterbox``, as the pictures of the network's data set were prepared: the image
            is then exactly the one that preparation would make. None: the data set came as images.
        white: the value of 16-bit grey that became white in the network's data set; None: that of the bits
            that the picture uses.
        max_bytes: of the file.
        max_pixels: of the picture. None: ``MAX_PIXELS``.

    Raises InputError if it isn't a picture, is damaged, or is too large. The size in pixels is read from the
    file's header, before anything is decoded.
    """
    if len(data) > max_bytes:
        raise InputError(
            f"The file has {len(data) / 2**20:.1f} MB; allowed: at most {max_bytes // 2**20} MB. "
            "Save the picture smaller."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PIL, on odd metadata
            return _read(data, image_shape, resize, white, max_pixels or MAX_PIXELS)
    except Exception as error:  # PIL's decoders raise a dozen kinds for damaged files
        known = isinstance(error, DamagedError)
        reason = str(error) if known else f"damaged: {str(error)[:100].strip() or type(error).__name__}"
        raise InputError(
            f"This file isn't a picture that can be read here: {reason}. Save it again, or take another one."
        ) from None


def fitted(
    pixels: NDArray[np.uint8], image_shape: tuple[int, int, int], resize: str | None
) -> NDArray[np.uint8]:
    """Return an image of any size as the network takes it, as ``read_picture`` does with a file.

    Args:
        pixels: uint8 [height, width, channels], 1 or 3 channels.
        image_shape, resize: as of ``read_picture``.
    """
    picture = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).convert("RGB")
    return _as_image(picture, image_shape, resize)


def _read(
    data: bytes, image_shape: tuple[int, int, int], resize: str | None, white: int | None, max_pixels: int
) -> Picture:
    opened, size = decoded(data, image_shape[0] if resize else 0, max_pixels)
    notes = ["It was turned upright, as its EXIF data ask for."] if orientation(opened) != 1 else []
    notes += _colour_notes(opened, white)
    if image_shape[2] == 1:
        notes.append("Its colours became shades of grey, because the network sees no colours.")
    image = _as_image(upright(opened, white), image_shape, resize)
    with suppress(Exception):  # of a damaged animation
        if (frames := getattr(opened, "n_frames", 1)) > 1:  # which moves to another frame
            notes.insert(0, f"It has {frames:,} frames; this is the first.")
    return Picture(image, (*notes, _size_note(size, image_shape, resize)))


def _as_image(
    picture: Image.Image, image_shape: tuple[int, int, int], resize: str | None
) -> NDArray[np.uint8]:
    """Return a picture in RGB as the network takes it."""
    height, width, channels = image_shape
    mode = "L" if channels == 1 else "RGB"
    if resize is not None:
        fit = resized(picture, height, resize).convert(mode)
    else:
        fit = _cropped(picture.convert(mode), (width, height))
    return np.asarray(fit, np.uint8).reshape(image_shape)


def _cut(size: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
    """Return how much of a picture has the wanted proportions."""
    scale = min(size[0] / wanted[0], size[1] / wanted[1])
    return max(1, round(wanted[0] * scale)), max(1, round(wanted[1] * scale))


def _cropped(picture: Image.Image, wanted: tuple[int, int]) -> Image.Image:
    cut = _cut(picture.size, wanted)
    left, top = (picture.width - cut[0]) // 2, (picture.height - cut[1]) // 2
    # Cut out first: a filter that sees beyond the part would mix in what lies around it.
    middle = picture.crop((left, top, left + cut[0], top + cut[1]))
    return middle.resize(wanted, Image.Resampling.LANCZOS)


def _colour_notes(opened: Image.Image, white: int | None) -> list[str]:
    """Return what was done to the values of a picture when it became RGB."""
    if is_deep_grey(opened):
        white = white or white_of(min(extrema(opened, True)[1], DEEPEST))
        return [f"Its {white.bit_length()} bits a pixel became 8."]
    if is_transparent(opened):
        thinnest = np.asarray(opened.convert("RGBA").getchannel("A")).min()
        return ["Its transparent parts became white."] if thinnest < 255 else []
    return [f"Its colours were turned from {opened.mode} into RGB."] if opened.mode == "CMYK" else []


def _size_note(whole: tuple[int, int], image_shape: tuple[int, int, int], resize: str | None) -> str:
    height, width, _ = image_shape
    if resize == "letterbox":
        scale = min(width / whole[0], height / whole[1])
        inner = [max(1, round(side * scale)) for side in whole]
        return (
            f"Its {whole[0]:,}×{whole[1]:,} pixels were resized to {inner[0]}×{inner[1]}, and black was "
            f"added to {width}×{height} pixels, as in the data set."
        )
    cut, done = _cut(whole, (width, height)), f"resized to {width}×{height} pixels, which the network takes"
    if cut == whole:
        return f"Its {whole[0]:,}×{whole[1]:,} pixels were {done}."
    return f"Of its {whole[0]:,}×{whole[1]:,} pixels the middle {cut[0]:,}×{cut[1]:,} were taken and {done}."
