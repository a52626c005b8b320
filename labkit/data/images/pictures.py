"""Make an image that a network takes of any picture file."""

import io
import warnings
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from labkit.data.images.decode import (
    DEEPEST,
    FORMATS,
    DamagedError,
    resized,
    square,
    white_of,
    without_metadata,
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
) -> Picture:
    """Read a picture of any size and fit it to a network.

    Its middle is cut out in the network's proportions, or the whole is put on black, and it is resized with
    Lanczos's filter. Of an animation the first frame is taken. Transparent parts become white. A rotation
    that its EXIF data ask for is applied.

    Args:
        data: content of the file.
        image_shape: (height, width, channels) that the network takes, 1 or 3 channels.
        resize: ``crop`` or ``letterbox``, as the pictures of the network's data set were prepared: the image
            is then exactly the one that preparation would make. None: the data set came as images.
        white: the value of 16-bit grey that became white in the network's data set; None: that of the bits
            that the picture uses.
        max_bytes: of the file.

    Raises InputError if it isn't a picture, is damaged, or is too large. The size in pixels is read from the
    file's header, before anything is decoded.
    """
    allowed = ", ".join(FORMATS)
    if len(data) > max_bytes:
        raise InputError(
            f"The file has {len(data) / 2**20:.1f} MB; allowed: at most {max_bytes // 2**20} MB. "
            "Save the picture smaller."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PIL, on odd metadata and on sizes that are checked here
            fitted = _fitted_file(data, image_shape, resize, white)
            return fitted if resize is None else _as_prepared(data, fitted, resize, white)
    except Image.DecompressionBombError:
        raise InputError(
            f"The picture has more than {MAX_PIXELS:,} pixels. Save it smaller and try again."
        ) from None
    except UnidentifiedImageError:
        raise InputError(f"This file isn't a picture that can be read here; allowed: {allowed}.") from None
    except InputError:
        raise
    except Exception as error:  # PIL's decoders raise a dozen kinds for damaged files
        raise _damaged(error) from None


def fitted(
    pixels: NDArray[np.uint8], image_shape: tuple[int, int, int], resize: str | None
) -> NDArray[np.uint8]:
    """Return an image of any size as the network takes it, as ``read_picture`` does with a file.

    Args:
        pixels: uint8 [height, width, channels], 1 or 3 channels.
        image_shape, resize: as of ``read_picture``.
    """
    picture = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).convert("RGB")
    height, width, channels = image_shape
    if resize is not None:
        fit = resized(picture, height, resize)
    else:
        fit, _ = _cropped(picture, (width, height))
    return np.asarray(fit.convert("L") if channels == 1 else fit, np.uint8).reshape(image_shape)


def _fitted_file(
    data: bytes, image_shape: tuple[int, int, int], resize: str | None, white: int | None
) -> Picture:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            _check_size(*opened.size)
            return _fitted(opened, image_shape, resize, white)
    except (InputError, Image.DecompressionBombError):
        raise
    except Exception:
        pixels = without_metadata(data)
        if pixels == data:
            raise
        return _fitted_file(pixels, image_shape, resize, white)


def _damaged(error: BaseException) -> InputError:
    reason = next(iter(str(error).splitlines()), "")[:120] or type(error).__name__
    return InputError(f"The picture is damaged or cut off ({reason}). Save it again, or take another one.")


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise InputError(
            f"The picture has {width:,}×{height:,} pixels; allowed: at most {MAX_PIXELS:,} in all. "
            "Save it smaller and try again."
        )
    if not width or not height:
        raise InputError("The picture has no pixels.")


def _as_prepared(data: bytes, fitted: Picture, resize: str, white: int | None) -> Picture:
    """Return the image that the preparation of pictures makes of the file."""
    try:
        image = square(data, fitted.image.shape[0], resize, white)
    except DamagedError:  # values that preparation refuses
        return fitted
    if fitted.image.shape[2] == 1:
        image = image.convert("L")
    return replace(fitted, image=np.asarray(image, np.uint8).reshape(fitted.image.shape))


def _fitted(
    opened: Image.Image, image_shape: tuple[int, int, int], resize: str | None, white: int | None
) -> Picture:
    notes = []
    frames = getattr(opened, "n_frames", 1)
    if frames > 1:
        opened.seek(0)
        notes.append(f"It has {frames:,} frames; this is the first.")
    picture, turned = _upright(opened)
    if turned:
        notes.append("It was turned upright, as its EXIF data ask for.")
    height, width, channels = image_shape
    picture, colour_notes = _in_colour(picture, white)
    notes += colour_notes
    if channels == 1:
        picture = picture.convert("L")
        notes.append("Its colours became shades of grey, because the network sees no colours.")
    fit, note = (_letterboxed if resize == "letterbox" else _cropped)(picture, (width, height))
    return Picture(np.asarray(fit, np.uint8).reshape(image_shape), (*notes, note))


def _upright(opened: Image.Image) -> tuple[Image.Image, bool]:
    """Return the picture as its EXIF data ask for, and whether it was turned."""
    opened.load()
    try:
        picture = ImageOps.exif_transpose(opened)
        return picture, picture.size != opened.size or opened.getexif().get(0x0112, 1) not in (0, 1)
    except Exception:  # damaged EXIF data don't make the pixels unusable
        return opened, False


def _cropped(picture: Image.Image, wanted: tuple[int, int]) -> tuple[Image.Image, str]:
    scale = min(picture.width / wanted[0], picture.height / wanted[1])
    cut = max(1, round(wanted[0] * scale)), max(1, round(wanted[1] * scale))
    left, top = (picture.width - cut[0]) // 2, (picture.height - cut[1]) // 2
    # Cut out first: a filter that sees beyond the part would mix in what lies around it.
    middle = picture.crop((left, top, left + cut[0], top + cut[1]))
    return middle.resize(wanted, Image.Resampling.LANCZOS), _size_note(picture.size, cut, wanted)


def _letterboxed(picture: Image.Image, wanted: tuple[int, int]) -> tuple[Image.Image, str]:
    scale = min(wanted[0] / picture.width, wanted[1] / picture.height)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    box = Image.new(picture.mode, wanted)
    inner = picture.resize(size, Image.Resampling.LANCZOS)
    box.paste(inner, ((wanted[0] - size[0]) // 2, (wanted[1] - size[1]) // 2))
    return box, (
        f"Its {picture.width:,}×{picture.height:,} pixels were resized to {size[0]}×{size[1]}, and black was "
        f"added to {wanted[0]}×{wanted[1]} pixels, as in the data set."
    )


def _in_colour(picture: Image.Image, white: int | None) -> tuple[Image.Image, list[str]]:
    """Return the picture in the mode RGB, and what was done to it."""
    if picture.mode.startswith(("I", "F")):
        return _from_deep_grey(picture, white)
    if picture.has_transparency_data:
        layered = picture.convert("RGBA")
        flat = Image.new("RGBA", layered.size, "white")
        flat.alpha_composite(layered)
        thinnest = int(np.asarray(layered.getchannel("A")).min())
        return flat.convert("RGB"), ["Its transparent parts became white."] if thinnest < 255 else []
    notes = [f"Its colours were turned from {picture.mode} into RGB."] if picture.mode == "CMYK" else []
    return picture.convert("RGB"), notes


def _from_deep_grey(picture: Image.Image, white: int | None) -> tuple[Image.Image, list[str]]:
    """Reduce a picture of 16 or 32 bits a pixel to 8: by its depth, or by its range if that is unknown."""
    values = np.asarray(picture, np.float64)
    white = white or white_of(int(min(max(values.max(initial=0), 0), DEEPEST)))
    note = f"Its {white.bit_length()} bits a pixel became 8."
    if picture.mode == "F" or values.min() < 0 or values.max() > 65535:
        values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
        low, span = values.min(), max(float(np.ptp(values)), 1e-30)
        values, note = (values - low) / span * white, "Its values were scaled to the range 0 to 255."
    grey = np.rint(values.clip(0, white) * 255 / white).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB"), [note]


def _size_note(whole: tuple[int, int], cut: tuple[int, int], wanted: tuple[int, int]) -> str:
    resized = f"resized to {wanted[0]}×{wanted[1]} pixels, which the network takes"
    if cut == whole:
        return f"Its {whole[0]:,}×{whole[1]:,} pixels were {resized}."
    return (
        f"Of its {whole[0]:,}×{whole[1]:,} pixels the middle {cut[0]:,}×{cut[1]:,} were taken and {resized}."
    )
