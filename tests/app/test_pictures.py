"""Any picture becomes an image for the network, and what isn't one is refused with a sentence."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from labkit.data.images import pictures
from labkit.data.images.pictures import MAX_BYTES, fitted, read_picture
from labkit.errors import InputError
from tests.fuzzing import damaged_bytes, value_or_line

SHAPE = (32, 32, 3)


def saved(picture: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return Image.fromarray(values).convert(mode)


def test_the_middle_is_cut_out_in_the_networks_proportions():
    picture = Image.new("RGB", (400, 100), "red")
    picture.paste("blue", (150, 0, 250, 100))
    found = read_picture(saved(picture), SHAPE)
    assert (found.image == (0, 0, 255)).all()
    assert (
        "Of its 400×100 pixels the middle 100×100 were taken and resized to 32×32 pixels" in found.notes[-1]
    )
    assert read_picture(saved(picture), (20, 80, 3)).image.shape == (20, 80, 3)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_picture_of_the_networks_size_stays_as_it_is_in_any_format_and_mode(form):
    for mode in ("RGB", "L", "1", "P"):
        picture = noise(32, 32, mode)
        if (form, mode) in {("JPEG", "P"), ("WEBP", "P"), ("WEBP", "1"), ("WEBP", "L")}:
            picture = picture.convert("RGB")
        data = saved(picture, form)
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        assert form != "PNG" or np.array_equal(pixels, np.asarray(picture.convert("RGB")))
        for resize in (None, "crop", "letterbox"):
            np.testing.assert_array_equal(read_picture(data, SHAPE, resize).image, pixels)


def test_cmyk_becomes_rgb_and_is_mentioned():
    found = read_picture(saved(Image.new("CMYK", (64, 64), (0, 255, 255, 0)), "JPEG", quality=95), SHAPE)
    red, green, blue = found.image[16, 16].tolist()
    assert red > 200 and green < 60 and blue < 60
    assert "from CMYK" in " ".join(found.notes)


def test_transparent_parts_become_white():
    opaque = read_picture(saved(Image.new("RGBA", (32, 32), (1, 2, 3, 255))), SHAPE)
    assert (opaque.image == (1, 2, 3)).all() and "white" not in " ".join(opaque.notes)
    picture = Image.new("RGBA", (32, 32), (255, 0, 0, 255))
    picture.paste((0, 0, 0, 0), (0, 0, 32, 16))
    found = read_picture(saved(picture), SHAPE)
    assert (found.image[:14] == 255).all()
    assert (found.image[18:] == (255, 0, 0)).all()
    assert "white" in " ".join(found.notes)
    palette = Image.new("P", (32, 32), 0)
    palette.putpalette([10, 20, 30, 200, 0, 0])
    assert (read_picture(saved(palette, transparency=0), SHAPE).image == 255).all()


def test_sixteen_bits_become_eight_by_depth():
    values = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    found = read_picture(saved(Image.fromarray(values)), SHAPE)
    np.testing.assert_allclose(found.image[..., 0], values / 257, atol=0.51)
    assert "16 bits" in " ".join(found.notes)


def test_values_beyond_sixteen_bits_are_refused_as_in_preparation():
    for values in (np.full((32, 32), 0.5, np.float32), np.full((32, 32), 70_000, np.int32)):
        with pytest.raises(InputError, match="values other than 0 to 65,535; save it with 8 or 16 bits"):
            read_picture(saved(Image.fromarray(values), "TIFF"), SHAPE)


def test_grey_of_twelve_bits_is_as_bright_as_in_the_data_set():
    """With the value that is white there; by the picture's own bits where the data set has no such grey."""
    values = np.full((32, 32), 2000, np.uint16)
    values[0, 0] = 4000
    data = saved(Image.fromarray(values))
    for resize in (None, "crop", "letterbox"):
        for white, expected in ((None, 125), (4095, 125), (65535, 8)):
            found = read_picture(data, SHAPE, resize, white)
            assert found.image[5, 5, 0] == expected
            assert f"Its {(white or 4095).bit_length()} bits a pixel became 8." in found.notes


def test_the_rotation_of_exif_is_applied():
    picture = Image.new("RGB", (64, 64), "white")
    picture.paste("black", (0, 0, 64, 32))  # the upper half
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    found = read_picture(saved(picture, exif=exif), SHAPE)
    assert found.image[:, 20:].max() < 10 and found.image[:, :12].min() > 245
    assert "EXIF" in " ".join(found.notes)


def test_of_an_animation_the_first_frame_is_taken():
    frames = [Image.new("RGB", (40, 40), colour) for colour in ("red", "lime", "blue")]
    found = read_picture(saved(frames[0], "GIF", save_all=True, append_images=frames[1:]), SHAPE)
    assert found.image[16, 16, 0] > 250
    assert "3 frames" in found.notes[0]


def test_a_network_without_colours_gets_grey():
    for resize in ("crop", "letterbox"):
        assert read_picture(saved(noise(50, 40)), (32, 32, 1), resize).image.shape == (32, 32, 1)
    found = read_picture(saved(Image.new("RGB", (50, 50), "red")), (28, 28, 1))
    assert found.image.shape == (28, 28, 1)
    assert (found.image == 76).all()
    assert "grey" in " ".join(found.notes)


@pytest.mark.parametrize("resize", [None, "crop", "letterbox"])
def test_an_array_becomes_the_image_that_a_file_of_it_becomes(resize):
    for channels in (1, 3):
        shape, pixels = (32, 32, channels), np.asarray(noise(50, 40))
        expected = read_picture(saved(noise(50, 40)), shape, resize).image
        np.testing.assert_array_equal(fitted(pixels, shape, resize), expected)


def bomb(width: int, height: int) -> bytes:
    """A PNG of a hundred bytes that claims to be huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100))


@pytest.mark.parametrize(("width", "height"), [(10_000, 9_000), (60_000, 60_000)])
def test_a_picture_that_claims_too_many_pixels_is_never_decoded(monkeypatch, width, height):
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(InputError, match="pixels"):
        read_picture(bomb(width, height), SHAPE)


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"%PDF-1.4", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>"]
)
def test_what_is_no_picture_or_too_large_is_said(data):
    with pytest.raises(InputError, match="at most 10 MB"):
        read_picture(b"\0" * (MAX_BYTES + 1), SHAPE)
    with pytest.raises(InputError, match="isn't a picture"):
        read_picture(data, SHAPE)


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a picture"
    return exif


def _files() -> list[bytes]:
    """Small pictures of each format, with palettes, transparency, 16 bits, several frames and EXIF."""
    base = noise(17, 13)
    frames = {"save_all": True, "append_images": [base.rotate(90), base.rotate(180)]}
    files = [saved(base, form, **more) for form in ("PNG", "WEBP", "GIF", "TIFF") for more in ({}, frames)]
    files += [saved(base, form, exif=_turned()) for form in ("PNG", "JPEG", "WEBP", "TIFF")]
    files += [saved(base.convert(mode)) for mode in ("1", "L", "LA", "P", "RGBA", "I;16")]
    files += [saved(base, "TIFF", compression=how) for how in ("tiff_lzw", "jpeg", "tiff_deflate")]
    files += [saved(base.convert("CMYK"), "JPEG"), saved(base, "JPEG", progressive=True)]
    files += [saved(base, "BMP"), saved(base.convert("P"), "BMP"), saved(base, "WEBP", lossless=True)]
    return [*files, saved(base.convert("P"), "GIF", transparency=3), saved(base.convert("F"), "TIFF")]


def _with_checksums(data: bytes) -> bytes:
    """Return a PNG whose chunks have the right checksums, so that damage gets past them."""
    content, at = bytearray(data), 8
    while at + 12 <= len(content):
        end = at + 8 + struct.unpack(">I", content[at : at + 4])[0]
        if end + 4 > len(content):
            break
        content[end : end + 4] = struct.pack(">I", zlib.crc32(content[at + 4 : end]))
        at = end + 4
    return bytes(content)


_damaged = st.sampled_from(_files()).flatmap(damaged_bytes)


@pytest.mark.filterwarnings("error")
@settings(max_examples=700, deadline=None)
@given(
    data=st.one_of(
        _damaged,
        _damaged,
        _damaged.map(lambda data: _with_checksums(data) if data.startswith(b"\x89PNG") else data),
        st.binary(max_size=60),
    ),
    resize=st.sampled_from([None, "crop", "letterbox"]),
    shape=st.sampled_from([(32, 32, 3), (32, 32, 1), (20, 48, 3)]),
)
def test_any_upload_is_an_image_of_the_networks_shape_or_a_sentence(data, resize, shape):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "MAX_PIXELS", 1_000_000)  # a header may ask for more, which takes seconds
        how = resize if shape[0] == shape[1] else None
        found, line = value_or_line(lambda: read_picture(data, shape, how))
    if found is None:
        assert line.endswith(".")
    else:
        assert found.image.shape == shape and found.image.dtype == np.uint8


def test_damaged_exif_data_and_too_large_texts_leave_the_pixels():
    picture = saved(noise(40, 40), "JPEG", exif=_turned(), quality=95)
    at = picture.index(b"Exif") + 6
    wrong_kind = picture.replace(b"\x01\x0e\x00\x02", b"\x01\x00\x00\x02")  # a width that is a text
    assert wrong_kind != picture
    flipped = [picture[:at] + bytes([picture[at] ^ 255]) + picture[at + 1 :] for at in range(at, at + 48)]
    for damaged in (wrong_kind, *flipped):
        assert read_picture(damaged, SHAPE).image.shape == SHAPE
    data, text = saved(noise(32, 32)), b"zTXtk\0\0" + zlib.compress(b"a" * 5_000_000)
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    for resize in (None, "crop"):
        found = read_picture(data[:33] + chunk + data[33:], SHAPE, resize)
        np.testing.assert_array_equal(found.image, np.asarray(noise(32, 32)))
