"""Names of files, classes and splits: their order, how they are shown, and which files count as pictures."""

import re
import unicodedata
from pathlib import Path

# What systems, network drives and programs leave in folders and archives, besides names with a dot first.
_SYSTEM = frozenset(
    (
        # Windows
        *("thumbs.db", "thumbs.db:encryptable", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini"),
        *("$recycle.bin", "system volume information", "found.000"),
        *("__macosx", "icon\r", "network trash folder", "temporary items"),  # macOS
        # Linux, Python, programs for pictures
        *("lost+found", "__pycache__", "picasa.ini", "zbthumbnail.info"),
        *("@eadir", "@tmp", "#recycle", "#snapshot", "@sharebin"),  # Synology
        *("@recycle", "@recently-snapshot", "@__thumb"),  # QNAP
    )
)
_READ = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# Refused by name instead of being passed over.
_NOT_READ = (
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
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("validation", "validate", "validating", "val", "valid"), "validation"),
    **dict.fromkeys(("dev", "devel", "development", "eval", "evaluation"), "validation"),
    **dict.fromkeys(("test", "testing", "tst"), "test"),
}
_FILLERS = frozenset(
    (
        *("set", "sets", "data", "dataset", "split", "part", "folder", "dir", "v"),
        *("image", "images", "img", "imgs", "picture", "pictures", "pic", "pics", "photo", "photos"),
        *("sample", "samples", "example", "examples"),
    )
)
_JOINED = re.compile(f"^({'|'.join(sorted(_SPLIT_WORDS, key=len, reverse=True))})({'|'.join(_FILLERS)})$")
_JOINERS = "\u200c\u200d"  # Persian and the scripts of India need them


def is_system(name: str) -> bool:
    """Return whether a file or folder is hidden or belongs to the system, such as its thumbnails."""
    return name.startswith((".", "SYNOPHOTO_THUMB", "SYNOFILE_THUMB")) or name.casefold() in _SYSTEM


def split_of(name: str) -> str | None:
    """Return the split that a folder or a cell of a table names, or None.

    Case, digits and what joins words don't count, nor do words such as "set": ``Training-Set_2``.
    """
    words = _words(name)
    found = {_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS}
    plain = all(word in _SPLIT_WORDS or word in _FILLERS for word in words)
    return found.pop() if plain and len(found) == 1 else None


def splits_in(name: str) -> set[str]:
    """Return the splits that a name has among its words, also beside others: ``cats_train``."""
    return {_SPLIT_WORDS[word] for word in _words(name) if word in _SPLIT_WORDS}


def _words(name: str) -> list[str]:
    """Return the words of a name, small; ``trainset`` and ``TrainSet`` are two words."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", unicodedata.normalize("NFC", name))
    words = re.findall(r"[^\W\d_]+", parted.casefold())
    return [part for word in words for part in _JOINED.sub(r"\1 \2", word).split()]


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
