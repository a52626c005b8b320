"""Read one picture: its content as upright RGB pixels, and as a square of the wanted size."""

import io
import struct
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
DEEPEST = 65535  # the highest value of 16 bits
MAX_PIXELS = 100_000_000  # 400 MB while it is decoded
MAX_BYTES = 2**29
# registers them
_PLUGINS = (
    *(BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin),
    *(TiffImagePlugin, WebPImagePlugin),
)
_limit_lock = threading.Lock()  # of a setting of the whole process
_BACKGROUND = (255, 255, 255)  # behind transparent parts
_BARS = (0, 0, 0)  # of a letterbox
# Pillow first averages whole blocks of pixels down to this many times the size: as good as direct
# resampling from 3 on (Pillow's documentation of Image.resize), and much faster.
_REDUCING_GAP = 3.0
_ORIENTATION = 0x0112  # EXIF 2.3, table 4
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_METADATA = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}
_MAGIC = {
    b"%PDF": "PDF",
    b"<svg": "SVG",
    b"<?xm": "SVG or XML",
    b"8BPS": "PSD",
    b"\x00\x00\x01\x00": "ICO",
}
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF")
_TIFF = (b"II*\x00", b"MM\x00*")
_BRANDS = {b"avif": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC", b"jxl ": "JPEG XL"}


class DamagedError(Exception):
    """A file that cannot be used as a picture; the message says why, without the file's name."""


@dataclass(frozen=True)
class Look:
    """What a complete decoding tells of a picture: upright width and height, whether it is transparent.

    ``deep``: the lowest and the highest value of a picture with 16 bits, 0 to 65535; empty for others.
    ``grey``: whether these are values of grey, with all 16 bits; of colours the upper 8 are known.
    """

    width: int
    height: int
    transparent: bool
    deep: tuple[int, ...] = ()
    grey: bool = False


def examine(content: bytes, size: int) -> Look:
    """Decode a picture to the end and return what it is.

    Args:
        content: the file's bytes.
        size: the side in pixels to which it will be reduced.

    Raises:
        DamagedError: it is no picture of a known format, is truncated or damaged, or has too many pixels.
    """
    image, (width, height) = decoded(content, size)
    grey = is_deep_grey(image)
    deep = extrema(image, grey) if grey or _has_16_bits(content) else ()
    return Look(width, height, is_transparent(image), deep, grey)


def square(content: bytes, size: int, resize: str, white: int | None = None) -> Image.Image:
    """Return a picture as RGB of ``size`` × ``size``: upright, without transparency, antialiased.

    A picture that has this size already keeps its pixels.

    Args:
        content: the file's bytes.
        size: the side in pixels.
        resize: ``crop`` keeps the centre, ``letterbox`` the whole picture between black bars.
        white: the value of 16-bit grey that becomes white: 4095 if the data have 12 bits. None: that of the
            bits that the picture uses.

    Raises:
        DamagedError: as by :func:`examine`.
    """
    try:
        image, _ = decoded(content, size)
        return resized(upright(image, white), size, resize)
    except MemoryError:
        raise DamagedError("not enough memory to decode it") from None


def square_of_pixels(pixels: np.ndarray, size: int, resize: str) -> Image.Image:
    """Return pixels, uint8 [height, width, 1 or 3], as :func:`square` returns a file of them."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    return resized(image.convert("RGB"), size, resize)


def pixels_of_picture(image: Image.Image) -> np.ndarray:
    """Return an open picture, upright and without transparency, as uint8 [height, width, 3]; 1 if grey."""
    if image.mode == "L" and not is_transparent(image) and orientation(image) == 1:
        return np.asarray(image)[..., None]
    return np.asarray(upright(image, None))


def upright(image: Image.Image, white: int | None) -> Image.Image:
    """Return a decoded picture as RGB, as the camera was held. ``white``: as of :func:`square`."""
    method = _UPRIGHT.get(orientation(image))
    image = _rgb(image, white)
    return image if method is None else image.transpose(method)


def decoded(content: bytes, size: int, max_pixels: int = MAX_PIXELS) -> tuple[Image.Image, tuple[int, int]]:
    """Return the decoded first frame, and the width and height of the upright picture.

    Metadata that can't be read don't make the pixels unusable. A large JPEG is decoded at a part of its size,
    but at least 3 times ``size``; 0 decodes it whole.

    Raises:
        DamagedError: it is no picture of a known format, is damaged, or has too many pixels or bits.
    """
    with suppress(Exception):
        return _loaded(content, size, max_pixels)
    try:
        return _loaded(without_metadata(content), size, max_pixels)
    except DamagedError:
        raise
    except UnidentifiedImageError:
        raise DamagedError(_what_it_is(content)) from None
    except Exception as error:  # Pillow raises a dozen kinds on damaged files
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise DamagedError(f"damaged: {reason}") from None


def _loaded(content: bytes, size: int, max_pixels: int) -> tuple[Image.Image, tuple[int, int]]:
    image = _opened(content)
    width, height = image.size
    if width * height > max_pixels:
        raise DamagedError(
            f"{width:,} × {height:,} pixels; at most {max_pixels // 1_000_000} million allowed"
        )
    if size and isinstance(image, JpegImagePlugin.JpegImageFile):
        image.draft(None, (int(_REDUCING_GAP * size),) * 2)
    image.load()
    low, high = extrema(image, True) if image.mode == "I" else (0, 0)
    if image.mode == "F" or low < 0 or high > DEEPEST:
        raise DamagedError("values other than 0 to 65,535; save it with 8 or 16 bits a channel")
    return image, ((height, width) if orientation(image) >= 5 else (width, height))


def _opened(content: bytes) -> Image.Image:
    """Return the picture, not decoded yet, whatever its size: the caller's limit is lower than Pillow's."""
    with _limit_lock:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(io.BytesIO(content), formats=FORMATS)
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _what_it_is(content: bytes) -> str:
    if not content:
        return "an empty file"
    if content.startswith(_BEGINNINGS):
        return "damaged or cut off near its beginning"
    if content.startswith(_TIFF):
        return "a TIFF that is damaged, or of a kind that isn't read, as with 16 bits of each colour"
    name = _MAGIC.get(content[:4]) or (_BRANDS.get(content[8:12]) if content[4:8] == b"ftyp" else None)
    allowed = "JPEG, PNG, BMP, GIF, WebP or TIFF"
    return f"{name}, not {allowed}" if name else f"not a picture in {allowed}"


def orientation(image: Image.Image) -> int:
    """Return the orientation that the camera noted, 1 to 8; 1 where there is none that can be read."""
    if not _METADATA & image.info.keys():
        return 1
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged metadata don't make the pixels unusable
        return 1
    return value if isinstance(value, int) and value in _UPRIGHT else 1


def is_transparent(image: Image.Image) -> bool:
    """Return whether a decoded picture may have transparent parts."""
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def white_of(highest: int) -> int:
    """Return the highest value of the bits that a value of 16-bit grey needs: 4095 of 12; at least 255."""
    return int(2 ** max(highest.bit_length(), 8) - 1)


def is_deep_grey(image: Image.Image) -> bool:
    """Return whether a decoded picture has values of grey with more than 8 bits."""
    return image.mode.startswith("I")


def _has_16_bits(content: bytes) -> bool:
    """Return whether a file is a PNG with 16 bits a channel, as its header says."""
    return content.startswith(b"\x89PNG") and content[24:25] == b"\x10"


def extrema(image: Image.Image, grey: bool) -> tuple[int, int]:
    """Return the lowest and the highest value: of grey as it is, of colours scaled to 0 to 65535."""
    values, factor = (np.asarray(image), 1) if grey else (np.asarray(image.convert("RGB")), 257)
    return int(values.min()) * factor, int(values.max()) * factor


def _rgb(image: Image.Image, white: int | None) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if is_deep_grey(image):  # Pillow's own conversion would clip it
        white = white or white_of(extrema(image, True)[1])
        values = np.asarray(image).astype(np.int64).clip(0, white)
        grey = ((values * 255 + white // 2) // white).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if not is_transparent(image):
        return image.convert("RGB")
    picture = image.convert("RGBA")
    background = Image.new("RGBA", picture.size, (*_BACKGROUND, 255))
    return Image.alpha_composite(background, picture).convert("RGB")


def resized(image: Image.Image, size: int, resize: str) -> Image.Image:
    width, height = image.size
    if (width, height) == (size, size):
        return image
    if resize == "crop":
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        return _scaled(image, (size, size), (left, top, left + side, top + side))
    scale = size / max(width, height)
    inner = (max(1, round(width * scale)), max(1, round(height * scale)))
    canvas = Image.new("RGB", (size, size), _BARS)
    canvas.paste(
        _scaled(image, inner, (0, 0, width, height)), ((size - inner[0]) // 2, (size - inner[1]) // 2)
    )
    return canvas


def _scaled(image: Image.Image, size: tuple[int, int], box: tuple[int, int, int, int]) -> Image.Image:
    return image.resize(size, Image.Resampling.BICUBIC, box=box, reducing_gap=_REDUCING_GAP)


_PNG = b"\x89PNG\r\n\x1a\n"
# Of the ancillary chunks, transparency is part of the picture, and eXIf may say how the camera was held.
_KEPT_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS")
_JPEG = b"\xff\xd8"
_START_OF_SCAN, _COMMENT, _EXIF, _ADOBE = 0xDA, 0xFE, 0xE1, 0xEE
_ADOBE_BYTES = 12  # of its segment, which says how colours are stored


def without_metadata(content: bytes) -> bytes:
    """Return a PNG or JPEG file without texts, colour profiles and the like; another file as it is.

    The orientation of EXIF is kept where it can be. What isn't a whole part of the format is kept, so that
    decoding still finds truncated and damaged files.
    """
    if content.startswith(_PNG):
        return _png(content)
    return _jpeg(content) if content.startswith(_JPEG) else content


def _png(content: bytes) -> bytes:
    kept, start = [_PNG], len(_PNG)
    while start + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, start)
        end = start + 12 + length
        if end > len(content):
            break
        right = kind == b"eXIf" and content[end - 4 : end] == struct.pack(
            ">I", zlib.crc32(content[start + 4 : end - 4])
        )
        if kind in _KEPT_CHUNKS or right:
            kept.append(content[start:end])
        start = end
    return b"".join([*kept, content[start:]])


def _jpeg(content: bytes) -> bytes:
    kept, start = [_JPEG], len(_JPEG)
    while start + 4 <= len(content) and content[start] == 0xFF and content[start + 1] != _START_OF_SCAN:
        kind, length = struct.unpack_from(">xBH", content, start)
        end = start + 2 + length
        is_metadata = 0xE0 <= kind <= 0xEF or kind == _COMMENT
        is_exif = kind == _EXIF and content[start + 4 :].startswith(b"Exif\0\0")
        if not is_metadata or is_exif or (kind == _ADOBE and length - 2 >= _ADOBE_BYTES):
            kept.append(content[start:end])
        start = end
    return b"".join([*kept, content[start:]])
