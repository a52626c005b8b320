"""Walk through a folder of pictures and tell each of its files apart, without deciding what is a class."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from labkit.data.images.names import is_picture_name, is_system, shown
from labkit.errors import InputError


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
