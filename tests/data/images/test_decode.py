"""Any kind of picture becomes upright RGB of the wanted size."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from labkit.data.images.decode import MAX_PIXELS, DamagedError, examine, square


def _file(image: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _pixels(content: bytes, size: int = 8, resize: str = "crop") -> np.ndarray:
    return np.asarray(square(content, size, resize))


@pytest.mark.parametrize(
    ("form", "options"),
    [
        *(("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True}), ("GIF", {})),
        *(("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"})),
    ],
)
def test_a_picture_of_the_right_size_keeps_its_pixels(form, options):
    grey = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    values = np.stack([grey] * 3, axis=-1)  # 64 colours at most, so that a GIF can hold them
    assert np.array_equal(_pixels(_file(Image.fromarray(values), form, **options)), values)


def test_a_jpeg_of_the_right_size_is_decoded_as_pillow_does(make_pixels):
    content = _file(Image.fromarray(make_pixels(1, 8)), "JPEG")
    assert np.array_equal(_pixels(content), np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_pictures_stand_as_the_camera_was_held(form, orientation, make_pixels):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if form == "WEBP" else {}
    content = _file(Image.fromarray(make_pixels(2, 16)[:, :8]), form, exif=exif, **options)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    height, width = 16, 8
    if orientation >= 5:
        height, width = width, height
    look = examine(content, 8)
    assert (look.width, look.height) == (width, height) == upright.size
    expected = np.asarray(upright)[(height - 8) // 2 :, (width - 8) // 2 :][:8, :8]
    assert np.array_equal(_pixels(content), expected)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
@pytest.mark.parametrize("white", [4095, 65535])
def test_grey_of_sixteen_bits_becomes_white_at_the_value_that_is_white_in_its_data_set(white, form):
    grey = np.linspace(0, white, 64).round().astype(np.uint16).reshape(8, 8)
    content = _file(Image.fromarray(grey), form)
    for given in (0, white) if white == 4095 else (white,):  # alone: its own bits
        found = np.asarray(square(content, 8, "crop", given) if given else square(content, 8, "crop"))
        assert np.abs(found - (grey * (255 / white))[..., None]).max() <= 0.5
    look = examine(content, 8)
    assert (look.deep, look.grey) == ((0, white), True)


def _chunk(kind: bytes, data: bytes, *, right: bool = True) -> bytes:
    checksum = zlib.crc32(kind + data) ^ (not right)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def _sixteen_bit_colours(*colour: int) -> bytes:
    rows = b"".join(b"\0" + struct.pack(">3H", *colour) * 8 for _ in range(8))
    header = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows))
    return content + _chunk(b"IEND", b"")


def test_colours_of_sixteen_bits_are_scaled():
    assert (_pixels(_sixteen_bit_colours(65535, 32896, 257)) == (255, 128, 1)).all()
    look = examine(_sixteen_bit_colours(4095, 1000, 600), 8)
    assert look.deep == (2 * 257, 15 * 257) and not look.grey
    assert examine(_file(Image.new("RGB", (8, 8), "red"), "PNG"), 8).deep == ()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_becomes_white(mode):
    image = Image.new("RGBA", (8, 8), (10, 10, 10, 0))
    image.paste((10, 10, 10, 255), (0, 0, 4, 8))
    content = _file(image.quantize(4) if mode == "P" else image.convert(mode), "PNG")
    found = _pixels(content)
    assert (found[:, :4] == 10).all() and (found[:, 4:] == 255).all()
    assert examine(content, 8).transparent


_RED = Image.new("RGB", (8, 8), (255, 0, 0))


@pytest.mark.parametrize(
    ("image", "form", "options", "colour"),
    [
        (Image.new("RGBA", (8, 8), (0, 0, 0, 128)), "PNG", {}, (127, 127, 127)),  # mixed with white
        (Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", {"quality": 100}, (255, 0, 0)),
        (Image.new("1", (8, 8), 1), "PNG", {}, (255, 255, 255)),
        (Image.new("RGB", (8, 8), (200, 30, 4)).quantize(2), "PNG", {}, (200, 30, 4)),
        (_RED, "GIF", {"save_all": True, "append_images": [Image.new("RGB", (8, 8))]}, (255, 0, 0)),
    ],
    ids=["half transparent", "cmyk", "black and white", "palette", "first frame"],
)
def test_any_kind_of_colour_becomes_rgb(image, form, options, colour):
    assert np.abs(_pixels(_file(image, form, **options)).astype(int) - colour).max() <= 2


def test_crop_keeps_the_centre_and_letterbox_everything():
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = 255
    content = _file(Image.fromarray(wide), "PNG")
    assert (_pixels(content) == 255).all()
    wide[:] = 255
    boxed = _pixels(_file(Image.fromarray(wide), "PNG"), 24, "letterbox")
    assert (boxed[8:16] == 255).all() and (boxed[:8] == 0).all() and (boxed[16:] == 0).all()


def test_reducing_averages_instead_of_picking():
    board = np.indices((64, 64)).sum(axis=0) % 2 * 255
    content = _file(Image.fromarray(np.stack([board] * 3, axis=-1).astype(np.uint8)), "PNG")
    assert np.abs(_pixels(content)[1:-1, 1:-1].astype(int) - 127).max() <= 2


def test_a_large_jpeg_is_reduced_to_about_the_same_as_its_pixels():
    ramp = np.linspace(0, 255, 640).astype(np.uint8)
    image = Image.fromarray(np.stack([np.tile(ramp, (640, 1))] * 3, axis=-1))
    assert np.abs(_pixels(_file(image, "JPEG")).astype(int) - _pixels(_file(image, "PNG"))).max() <= 2


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_truncated_files_and_a_flipped_bit_in_a_png_are_found(form, make_pixels):
    content = _file(Image.fromarray(make_pixels(0, 40)), form)
    middle = len(content) // 2
    damaged = [content[:middle]]
    if form == "PNG":
        damaged.append(content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :])
    for other in damaged:
        with pytest.raises(DamagedError):
            examine(other, 8)


def _png_of(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + b"\0\0\0\1IDAT"


def _tiff(values: list[list[float]], dtype: type) -> bytes:
    return _file(Image.fromarray(np.array(values, dtype)), "TIFF")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "an empty file"),
        (b"no picture at all", "not a picture"),
        (b"\x89PNG\r\n\x1a\n", "damaged or cut off"),
        (b"II*\0" + bytes(100), "a TIFF that is damaged, or of a kind that isn't read"),
        (_tiff([[0.5, 1e9]], np.float32), "values other than 0 to 65,535; save it with 8 or 16 bits"),
        (_tiff([[0, 65536]], np.int32), "values other than 0 to 65,535"),
        (_tiff([[0, -1]], np.int32), "values other than 0 to 65,535"),
        (b"\0\0\0\x18ftypheic" + bytes(100), "HEIC, not JPEG"),
        (_png_of(30_000, 30_000), "30,000 × 30,000 pixels; at most 100 million"),
        (_png_of(MAX_PIXELS + 1, 1), "at most 100 million"),
    ],
)
def test_what_cannot_be_used_is_named(content, reason):
    with pytest.raises(DamagedError, match=reason):
        examine(content, 8)


def test_damaged_metadata_leave_the_picture(make_pixels):
    values = make_pixels(4, 8)
    content = _file(Image.fromarray(values), "PNG", exif=b"Exif\0\0MM\0*\0\0\xff\xff")
    assert np.array_equal(_pixels(content), values)
    content = _file(Image.fromarray(values), "PNG")
    content = content[:33] + _chunk(b"eXIf", b"MM\0*", right=False) + content[33:]
    assert np.array_equal(_pixels(content), values)


_LARGE = zlib.compress(b"a" * 5_000_000)


@pytest.mark.parametrize(
    "chunks",
    [
        _chunk(b"zTXt", b"k\0\0" + _LARGE),
        _chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + _LARGE),
        _chunk(b"iCCP", b"profile\0\0" + _LARGE),
        _chunk(b"tEXt", b"k\0v", right=False),
        _chunk(b"gAMA", b"x"),
        b"".join(_chunk(b"zTXt", b"%d\0\0" % n + zlib.compress(b"a" * 1_000_000)) for n in range(70)),
    ],
    ids=["text", "xmp", "profile", "checksum", "short", "many texts"],
)
@pytest.mark.parametrize("place", [33, -12])
def test_metadata_that_pillow_refuses_leave_a_png_its_pixels_and_its_orientation(chunks, place, make_pixels):
    exif = Image.Exif()
    exif[0x0112] = 3
    content = _file(Image.fromarray(make_pixels(5, 8)), "PNG", exif=exif)
    content = content[:place] + chunks + content[place:]
    assert np.array_equal(_pixels(content), make_pixels(5, 8)[::-1, ::-1])
    with pytest.raises(DamagedError):  # what belongs to the pixels still counts
        examine(content.replace(b"IDAT", b"IDAT\1"), 8)


@pytest.mark.parametrize(
    ("kind", "data"),
    [(0xE2, b"ICC_PROFILE\0"), (0xEE, b"Adobe"), (0xE0, b"JFIF"), (0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff")],
)
def test_metadata_that_pillow_refuses_leave_a_jpeg_its_pixels(kind, data, make_pixels):
    content = _file(Image.fromarray(make_pixels(6, 8)), "JPEG")
    segment = bytes([0xFF, kind]) + struct.pack(">H", len(data) + 2) + data
    assert np.array_equal(_pixels(content[:2] + segment + content[2:]), _pixels(content))
