"""Walk through a folder of pictures and tell each of its files apart, without deciding what is a class; names
of files, classes and splits: their order, how they are shown, and which files count as pictures.
"""

import os
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from labkit.errors import InputError
from labkit.plurals import printable

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
    return printable(str(text))


@dataclass
class Tree:
    """What lies in a folder and below it. Paths start from ``root``, with ``/``.

    Args:
        root: the folder.
        pictures: paths of the pictures by the folder in which they lie; the root is ``""``.
        inner: names of the folders in each folder, sorted.
        others: files that aren't pictures.
        system: hidden and system files and folders, with the number of files in each.
        unusable: what is wrong with links that can't be followed; they are listed as pictures.
    """

    root: Path
    pictures: dict[str, list[str]] = field(default_factory=dict)
    inner: dict[str, list[str]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    system: dict[str, int] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    _below: Counter[str] = field(default_factory=Counter)

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder that have pictures in or below them."""
        return [name for name in self.inner[folder] if self._below[_joined(folder, name)]]

    def below(self, folder: str) -> list[str]:
        """Return the paths of all pictures in a folder and in those below it."""
        found, waiting = [], [folder]
        while waiting:
            here = waiting.pop()
            found += self.pictures[here]
            waiting += [_joined(here, name) for name in self.inner[here]]
        return found

    def add_folder(self, folder: str, pictures: list[str], inner: list[str]) -> None:
        """Add a folder with its own pictures, and the names of the folders in it."""
        self.pictures[folder], self.inner[folder] = pictures, inner
        while pictures and folder:
            self._below[folder] += len(pictures)
            folder = folder.rpartition("/")[0]


def walk(root: Path) -> Tree:
    """Return what lies in a folder. System files are counted, not looked at.

    Raises:
        InputError: a folder can't be read, or one in ``root`` itself is a link that can't be followed.
    """
    tree = Tree(root)
    real_root = os.path.realpath(root)
    waiting: list[tuple[str, tuple[str, ...]]] = [("", (real_root,))]
    while waiting:
        folder, above = waiting.pop()
        pictures, inner = [], []
        for entry in _entries(root / folder):
            path = _joined(folder, entry.name)
            if is_system(entry.name):
                tree.system[path] = _files_in(entry)
                continue
            real = os.path.realpath(entry.path) if entry.is_dir() else ""
            problem = link_problem(entry.path, real_root) if entry.is_symlink() else ""
            if real in above:
                problem = "a link to a folder around it"
            # A link that leads nowhere may have been one to a class or a split.
            lost = bool(problem) and not (os.path.exists(entry.path) or Path(entry.name).suffix)
            if problem and (real or lost) and not folder:
                raise InputError(f"{shown(entry.path)} is {problem}; put the pictures themselves there")
            if real and not problem:
                inner.append(entry.name)
                waiting.append((path, (*above, real)))
            elif (
                real
                or lost
                or is_picture_name(entry.name)
                or (entry.is_file() and begins_as_picture(entry.path))
            ):
                pictures.append(path)
                if problem:
                    tree.unusable[path] = problem
            else:
                tree.others.append(path)
        tree.add_folder(folder, pictures, inner)
    return tree


def link_problem(path: str, real_root: str) -> str:
    """Return what is wrong with a link: it leads nowhere, or out of a folder; empty if nothing is."""
    real = os.path.realpath(path)
    if not os.path.exists(real):
        return f"a link to {shown(real)}, which does not exist"
    if os.path.commonpath((real, real_root)) != real_root:
        return f"a link that leads out of {shown(real_root)}, to {shown(real)}"
    return ""


def begins_as_picture(path: str | Path) -> bool:
    """Return whether a file begins as a picture, whatever its name."""
    try:
        with open(path, "rb") as file:
            begin, size = file.read(12), os.fstat(file.fileno()).st_size
    except OSError:
        return False
    if begin.startswith(b"BM"):  # a text may begin so, too, but not with its size
        return int.from_bytes(begin[2:6], "little") == size
    return begin.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a")) or (
        (begin[:4], begin[8:]) == (b"RIFF", b"WEBP")
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"folder {shown(folder)} cannot be read: {error.strerror}") from None


def _files_in(entry: os.DirEntry[str]) -> int:
    """Return how many files a system folder has; 1 for a file, and for a folder that can't be read."""
    if not entry.is_dir(follow_symlinks=False):
        return 1
    return sum(len(files) for _, _, files in os.walk(entry.path)) or 1


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
