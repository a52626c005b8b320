"""Find the pictures of a folder with their classes: a folder for each class, once or in each split."""

import os
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labkit.data.images.names import is_hidden, is_picture_name, natural, shown
from labkit.errors import InputError
from labkit.plurals import counted

__all__ = [
    "MAX_CLASSES",
    "SPLITS",
    "Listing",
    "check_classes",
    "class_numbers",
    "find_folders",
    "split_of",
    "with_classes",
]

MAX_CLASSES = 10_000
SPLITS = ("train", "validation", "test")
_SPLIT_NAMES = {"train": "train", "validation": "validation", "val": "validation", "valid": "validation"}
_SPLIT_NAMES |= {"training": "train", "test": "test", "testing": "test"}
_LAYOUTS = (
    "a folder with a folder of pictures for each class, train/, validation/ and test/ with such folders, or "
    "a CSV file with the columns path,label"
)


@dataclass(frozen=True)
class Listing:
    """The pictures of a source, not yet opened.

    Args:
        root: the folder that paths start from.
        location: what the user named: the folder or the CSV file.
        layout: ``classes``, ``splits`` or ``csv``.
        classes: names in the order of the labels.
        paths: of each picture, from ``root``, with ``/``.
        labels: int32 [n], or zeros and ones [n, classes] where a picture may have several.
        splits: of each picture: one of ``SPLITS``, or empty where labkit is to choose.
        table_sha256: of the CSV file; empty for folders.
        passed_over: files that aren't pictures.
        all_classes: the source's classes if only some of them were chosen; None otherwise.
    """

    root: Path
    location: Path
    layout: str
    classes: tuple[str, ...]
    paths: list[str]
    labels: np.ndarray
    splits: list[str]
    table_sha256: str = ""
    passed_over: tuple[str, ...] = ()
    all_classes: tuple[str, ...] | None = None

    @property
    def multi_label(self) -> bool:
        """Whether a picture may have several labels."""
        return self.labels.ndim == 2


def split_of(name: str) -> str | None:
    """Return the split that a folder or a cell of a table names, or None."""
    return _SPLIT_NAMES.get(name.casefold())


def find_folders(root: Path) -> Listing:
    """Return the pictures in the class folders of ``root``.

    Raises:
        InputError: there are no class folders or one only, too many, one without pictures, names that differ
            in nothing but case, or links that lead out of ``root``.
    """
    walk = _Walk(root)
    folders = walk.folders("")
    parts = {name: split_of(name) for name in folders}
    if "train" in parts.values() and None not in parts.values():
        train = next(name for name, split in parts.items() if split == "train")
        if walk.folders(train):
            return _find_splits(walk, {name: split for name, split in parts.items() if split})
    _check_some(walk, folders)
    check_classes(root, folders)
    found = [(path, name, "") for name in folders for path in walk.pictures(name)]
    return _listing(walk, "classes", folders, found)


def _find_splits(walk: "_Walk", parts: dict[str, str]) -> Listing:
    if len(set(parts.values())) < len(parts):
        raise InputError(
            f"{shown(walk.root)} has two folders for one split ({', '.join(map(shown, parts))}); keep one"
        )
    classes: dict[str, None] = {}
    found = []
    for part, split in sorted(parts.items(), key=lambda item: SPLITS.index(item[1])):  # training first
        for name in walk.folders(part):
            if split != "train" and name not in classes:
                raise InputError(
                    f"class folder {shown(f'{part}/{name}')} in {shown(walk.root)} has no counterpart in "
                    "the training split; every class needs pictures to train on"
                )
            classes[name] = None
            found += [(path, name, split) for path in walk.pictures(f"{part}/{name}")]
    check_classes(walk.root, list(classes))
    return _listing(walk, "splits", list(classes), found)


def _listing(walk: "_Walk", layout: str, folders: list[str], found: list[tuple[str, str, str]]) -> Listing:
    if not found:
        raise _no_pictures(walk)
    training = {name for _, name, split in found if split in ("", "train")}
    empty = [name for name in folders if name not in training]
    if empty:
        raise InputError(
            f"class folder {shown(empty[0])!s} in {shown(walk.root)} has no pictures to train on"
            f"{f', and {len(empty) - 1} more have none' if len(empty) > 1 else ''}; add pictures or remove it"
        )
    names, numbers = class_numbers(folders)
    found.sort()
    return Listing(
        root=walk.root,
        location=walk.root,
        layout=layout,
        classes=names,
        paths=[path for path, _, _ in found],
        labels=np.array([numbers[name] for _, name, _ in found], np.int32),
        splits=[split for _, _, split in found],
        passed_over=tuple(walk.passed_over),
    )


def class_numbers(folders: list[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the class names in their natural order, and the number of each name as it was found."""
    ordered = sorted(folders, key=natural)
    names = tuple(unicodedata.normalize("NFC", name) for name in ordered)
    return names, {name: number for number, name in enumerate(ordered)}


def check_classes(location: Path, names: list[str]) -> None:
    """Raise InputError unless these can be the classes of a data set.

    Args:
        location: the folder or file that they come from.
        names: of the classes, as found.
    """
    if len(names) == 1:
        raise InputError(
            f"{shown(location)} has one class only, {shown(names[0])}; a classifier needs two or more"
        )
    if len(names) > MAX_CLASSES:
        raise InputError(f"{shown(location)} has {len(names):,} classes; allowed: {MAX_CLASSES:,} at most")
    seen: dict[str, str] = {}
    for name in names:
        if any("\ud800" <= mark <= "\udfff" for mark in name):
            raise InputError(f"class {shown(name)} in {shown(location)} is not UTF-8; rename it")
        folded = unicodedata.normalize("NFC", name).casefold()
        if folded in seen:
            raise InputError(
                f"classes {shown(seen[folded])} and {shown(name)} in {shown(location)} differ only in "
                "case or in how accents are encoded; join them or rename one"
            )
        seen[folded] = name


def with_classes(listing: Listing, names: tuple[str, ...]) -> Listing:
    """Return only the pictures of some classes; a label is the index into ``names``.

    Raises InputError if pictures may have several labels.
    """
    if names == listing.classes:
        return listing
    if listing.multi_label:
        raise InputError("--classes needs a data set with one label per image; leave it out")
    numbers = np.full(len(listing.classes), -1, np.int32)
    numbers[[listing.classes.index(name) for name in names]] = range(len(names))
    labels = numbers[listing.labels]
    kept = np.flatnonzero(labels >= 0).tolist()
    return replace(
        listing,
        classes=names,
        paths=[listing.paths[row] for row in kept],
        labels=labels[kept],
        splits=[listing.splits[row] for row in kept],
        all_classes=listing.classes,
    )


def _check_some(walk: "_Walk", folders: list[str]) -> None:
    """Raise InputError, with a hint, unless there are folders that can be classes."""
    if not folders:
        raise _no_pictures(walk)
    inner = walk.folders(folders[0]) if len(folders) == 1 else []
    if len(inner) > 1:
        raise InputError(
            f"{shown(walk.root)} has one folder only, {shown(folders[0])}; its folders look like the "
            f"classes, so give --images {shown(str(walk.root / folders[0]))}"
        )


def _no_pictures(walk: "_Walk") -> InputError:
    others = f" ({counted(len(walk.passed_over), 'file')} of other kinds)" if walk.passed_over else ""
    return InputError(f"no class folders with pictures in {shown(walk.root)}{others}; allowed: {_LAYOUTS}")


class _Walk:
    """Lists folders, remembers files that aren't pictures, and refuses links that lead out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.passed_over: list[str] = []
        self._real = os.path.realpath(root)

    def folders(self, inner: str) -> list[str]:
        """Return the names of the folders in a folder; its files are passed over."""
        names = []
        for entry in self._entries(inner):
            if entry.is_dir():
                self._check_link(entry)
                names.append(entry.name)
            elif inner == "":
                self.passed_over.append(entry.name)
        return names

    def pictures(self, folder: str) -> list[str]:
        """Return the paths of all pictures in a folder and in those below it."""
        found: list[str] = []
        waiting: list[tuple[str, tuple[str, ...]]] = [(folder, (os.path.realpath(self.root / folder),))]
        while waiting:
            inner, above = waiting.pop()
            for entry in self._entries(inner):
                path = f"{inner}/{entry.name}"
                if entry.is_symlink():
                    self._check_link(entry)
                if entry.is_dir():
                    real = os.path.realpath(entry.path)
                    if real in above:
                        raise InputError(f"{shown(entry.path)} links to a folder around it; remove the link")
                    waiting.append((path, (*above, real)))
                elif is_picture_name(entry.name) or (entry.is_file() and begins_as_picture(entry.path)):
                    found.append(path)
                else:
                    self.passed_over.append(path)
        return found

    def _entries(self, inner: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / inner) as entries:
                return sorted((e for e in entries if not is_hidden(e.name)), key=lambda entry: entry.name)
        except OSError as error:
            raise InputError(f"folder {shown(self.root / inner)} cannot be read: {error.strerror}") from None

    def _check_link(self, entry: os.DirEntry[str]) -> None:
        if not entry.is_symlink():
            return
        real = os.path.realpath(entry.path)
        if os.path.commonpath((real, self._real)) != self._real:
            raise InputError(
                f"{shown(entry.path)} is a link that leads out of {shown(self.root)}, to {shown(real)}; "
                "put the pictures themselves there"
            )


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
