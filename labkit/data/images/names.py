"""Names of files and classes: their order, how they are shown, and which files count as pictures."""

import re
import unicodedata
from pathlib import Path

__all__ = ["is_hidden", "is_picture_name", "natural", "shown"]

_HIDDEN = ("thumbs.db", "desktop.ini", "__macosx")  # what Windows and macOS leave in folders and archives
_READ = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp")
# Refused by name instead of being passed over.
_NOT_READ = (
    ".tif",
    ".tiff",
    ".heic",
    ".heif",
    ".avif",
    ".jxl",
    ".jp2",
    ".psd",
    ".svg",
    ".ico",
    ".tga",
    ".dng",
)
_JOINERS = "\u200c\u200d"  # Persian and the scripts of India need them


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is passed over without a word."""
    return name.startswith(".") or name.casefold() in _HIDDEN


def is_picture_name(name: str) -> bool:
    """Return whether a file's name says that it is a picture."""
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and f"{dot}{suffix.lower()}" in _READ + _NOT_READ


def natural(name: str) -> tuple[list[str | int], str]:
    """Return a key that sorts ``class2`` before ``class10``, on every machine alike, whatever its locale."""
    parts = re.split(r"(\d+)", unicodedata.normalize("NFC", name).casefold())
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], name


def shown(text: str | Path) -> str:
    """Return text that is safe on a terminal: control characters and bytes of no script are escaped."""
    return "".join(
        mark if mark.isprintable() or mark in _JOINERS else mark.encode("unicode_escape").decode()
        for mark in str(text)
    )
