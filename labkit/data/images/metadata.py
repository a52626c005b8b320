"""Take out of a file what isn't needed for its pixels, where Pillow refuses the file because of it."""

import struct
import zlib

__all__ = ["without_metadata"]

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
