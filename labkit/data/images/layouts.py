"""Find the pictures of a folder with their classes: a folder for each class, once or in each split."""

import shlex
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from labkit.data.images.walk import Tree, natural, shown, split_of, splits_in, walk
from labkit.data.subset import class_counts, relabelled
from labkit.errors import InputError
from labkit.plurals import counted, listed

MAX_CLASSES = 10_000
SPLITS = ("train", "validation", "test")
_PURPOSES = {"train": "training", "validation": "validation", "test": "testing"}
_NAMED = 5  # folders in a sentence
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
        labels: int32 [n], zeros and ones [n, classes] where a picture may have several, or float32
            [n, numbers], whose names ``classes`` then are.
        splits: of each picture: one of ``SPLITS``, or empty where labkit is to choose.
        table_sha256: of the CSV file; empty for folders.
        notes: lines that say what was done with the other files, and which splits were recognised.
        unusable: what is wrong with links among the pictures, by path.
        all_classes: the source's classes if only some of them were chosen; None otherwise.
        columns: what else a table has of each picture, by column.
    """

    root: Path
    location: Path
    layout: str
    classes: tuple[str, ...]
    paths: list[str]
    labels: np.ndarray
    splits: list[str]
    table_sha256: str = ""
    notes: tuple[str, ...] = ()
    unusable: Mapping[str, str] = field(default_factory=dict)
    all_classes: tuple[str, ...] | None = None
    columns: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def multi_label(self) -> bool:
        """Whether a picture may have several labels."""
        return self.labels.ndim == 2 and not self.are_numbers

    @property
    def are_numbers(self) -> bool:
        """Whether labels are numbers."""
        return self.labels.dtype.kind == "f"

    def counts(self, rows: np.ndarray) -> np.ndarray:
        """Return how many of the rows each class has, int [classes]; each number has all."""
        return class_counts(self.labels[rows], len(self.classes))


def find_folders(root: Path, classes: Collection[str] = ()) -> Listing:
    """Return the pictures in the class folders of ``root``.

    Args:
        root: the folder.
        classes: names of folders in ``root`` that are classes, whatever they are called; others are ignored.

    Raises:
        InputError: there are no class folders or one only, too many, one without pictures, names that differ
            in nothing but case, a class folder that is a link out of ``root``, or folders that could be
            classes as well as something else.
    """
    tree = walk(root)
    full, folders = tree.folders(""), tree.inner[""]
    chosen = bool(classes) and set(classes) <= set(folders)
    if chosen:
        folders = [name for name in folders if name in full or name in classes]
    elif full:
        parts = {name: split for name in full if (split := split_of(name))}
        if len(parts) == len(full):
            return _find_splits(
                tree,
                {name: parts[name] for name in sorted(parts, key=lambda name: SPLITS.index(parts[name]))},
            )
        _check_wrapper(tree, full)
        _check_names(tree, "", full, full)
    if len(folders) > 1:
        check_classes(root, folders)
    if not full:
        raise _no_pictures(tree)
    if len(folders) == 1:
        raise InputError(
            f"{shown(root)} has one class only, {shown(folders[0])}; a classifier needs two or more"
            f"{_or_table(tree)}"
        )
    if not chosen:
        _check_deeper(tree, "", full)
    found = [(path, name, "") for name in folders for path in tree.below(name)]
    return _listing(tree, "classes", folders, found, [])


def _find_splits(tree: Tree, parts: dict[str, str]) -> Listing:
    """Return the pictures of class folders in folders that are all named like splits, training first."""
    root, names = shown(tree.root), ", ".join(map(shown, parts))
    if len(set(parts.values())) < len(parts):
        raise InputError(
            f"{root} has two folders for one split ({names}); keep one, or name them train, validation "
            "and test"
        )
    for part in parts:
        _check_part(tree, part, list(parts))
    if "train" not in parts.values():
        raise InputError(
            f"{root} has folders that are named like splits ({names}), but none for training; name it "
            f"train{_or_classes(parts)}"
        )
    classes: dict[str, None] = {}
    found = []
    for part, split in parts.items():
        for name in tree.inner[part]:
            if split != "train" and name not in classes:
                raise InputError(
                    f"class folder {shown(f'{part}/{name}')} in {root} has no counterpart in "
                    "the training split; every class needs pictures to train on"
                )
            classes[name] = None
            found += [(path, name, split) for path in tree.below(f"{part}/{name}")]
    check_classes(tree.root, list(classes))
    for part in parts:
        _check_deeper(tree, f"{part}/", tree.folders(part))
    means = [f"{shown(part)} for {_PURPOSES[split]}" for part, split in parts.items()]
    return _listing(tree, "splits", list(classes), found, [f"splits by folder: {', '.join(means)}"])


def _check_part(tree: Tree, part: str, parts: list[str]) -> None:
    """Raise InputError unless the folder of a split has class folders; the first of ``parts`` does."""
    folders, path = tree.folders(part), shown(tree.root / part)
    if not folders:
        train = shlex.quote(str(tree.root / parts[0]))
        leave = _or_table(tree) if part == parts[0] else f", or leave it out with --images {shown(train)}"
        raise InputError(
            f"{path} is named like a split and has {counted(len(tree.pictures[part]), 'picture')}, but no "
            f"class folders; put them into {shown(part)}/CLASS{leave}{_or_classes(parts)}"
        )
    if len(folders) == 1 and not tree.pictures[part] and (inner := tree.folders(f"{part}/{folders[0]}")):
        raise InputError(
            f"{path} has one folder only, {shown(folders[0])}, with folders in it "
            f"({listed([*map(shown, inner)], _NAMED)}); if these are the classes, move them up into {path}"
        )


def _check_wrapper(tree: Tree, full: list[str]) -> None:
    """Raise InputError where all pictures are in one folder, and the classes in that, as archives unpack."""
    folder = full[0]
    while len(full) == 1 and not tree.pictures[folder] and len(inner := tree.folders(folder)) == 1:
        folder = f"{folder}/{inner[0]}"
    if len(full) == 1 and len(tree.folders(folder)) > 1:
        find_folders(tree.root / folder)  # or its own error
        raise InputError(
            f"{shown(tree.root)} has one folder only, {shown(folder)}; its folders look like the "
            f"classes, so give --images {shown(shlex.quote(str(tree.root / folder)))}"
        )


def _check_names(tree: Tree, inside: str, names: list[str], classes: list[str]) -> None:
    """Raise InputError where folders beside each other are named like splits, at least some of them.

    A folder ``train`` that has pictures itself is a class beside others, as in CIFAR-100.

    Args:
        tree: the folders.
        inside: the path of the folder in which they are, with a slash at its end; empty for the root.
        names: of the folders.
        classes: of the folders that are the classes if all is as it should be.
    """
    splits = [name for name in names if split_of(name)]
    if [name.casefold() for name in splits] == ["train"] and not tree.folders(f"{inside}{splits[0]}"):
        splits = []
    if not splits and len(set().union(*map(splits_in, names))) > 1:
        splits = [name for name in names if splits_in(name)]
    if not splits:
        return
    seen = listed([shown(f"{inside}{name}") for name in splits], _NAMED)
    others = [shown(f"{inside}{name}") for name in names if name not in splits]
    beside = f" beside {listed(others, _NAMED)}" if others else ""
    if inside:
        way_out = "put the folders of splits around those of classes, as in train/cat and test/cat"
    else:
        way_out = "name the splits train, validation and test, each with a folder for each class"
    raise InputError(
        f"{shown(tree.root)} has folders that are named like splits ({seen}){beside}; {way_out}"
        f"{_or_classes(classes)}"
    )


def _check_deeper(tree: Tree, inside: str, names: list[str]) -> None:
    """Raise InputError where the folders in the supposed class folders are rather splits or classes."""
    inner = {name: tree.folders(f"{inside}{name}") for name in names}
    classes = [] if inside else names
    for name, deeper in inner.items():
        if deeper:
            _check_names(tree, f"{inside}{name}/", deeper, classes)
    counts = Counter(deeper for found in inner.values() for deeper in found)
    shared = sorted(deeper for deeper, count in counts.items() if count > 1)
    if len(shared) > 1 and not any(tree.pictures[f"{inside}{name}"] for name in names):
        outer = listed([shown(f"{inside}{name}") for name in names], _NAMED)
        same = listed([*map(shown, shared)], _NAMED)
        raise InputError(
            f"{shown(tree.root)} has the same folders ({same}) in several of {outer}, so that either could "
            f"be the classes; join those of a class in one folder{_or_classes(classes)}"
        )


def _or_classes(names: Collection[str]) -> str:
    """Return the end of an error: what to give if folders are classes, whatever they are called."""
    if not names:
        return ""
    named = len(names) <= _NAMED and "," not in "".join(names)
    given = shown(shlex.quote(",".join(names))) if named else "NAMES"
    return f"; if the folders are classes, give those to use with --classes {given}"


def _listing(
    tree: Tree, layout: str, folders: list[str], found: list[tuple[str, str, str]], notes: list[str]
) -> Listing:
    training = {name for _, name, split in found if split in ("", "train")}
    empty = [name for name in folders if name not in training]
    if empty:
        raise InputError(
            f"class folder {shown(empty[0])!s} in {shown(tree.root)} has no pictures to train on"
            f"{f', and {len(empty) - 1} more have none' if len(empty) > 1 else ''}; add pictures or remove it"
        )
    names, numbers = class_numbers(folders)
    found.sort()
    depth = 1 if layout == "classes" else 2
    deeper = [path for path, _, _ in found if path.count("/") > depth]
    used = {path for path, _, _ in found}
    loose = [path for paths in tree.pictures.values() for path in paths if path not in used]
    system = [path for path, _ in sorted(tree.system.items())]
    notes = [
        *notes,
        *_note(deeper, "{} in deeper folders, counted to the class around them"),
        *_note(loose, "warning: {} outside of the class folders left out"),
        *_note(tree.others, "{} passed over, not pictures", "file"),
        *_note(system, "{} ignored", "hidden or system file", sum(tree.system.values())),
    ]
    return Listing(
        root=tree.root,
        location=tree.root,
        layout=layout,
        classes=names,
        paths=[path for path, _, _ in found],
        labels=np.array([numbers[name] for _, name, _ in found], np.int32),
        splits=[split for _, _, split in found],
        notes=tuple(notes),
        unusable=tree.unusable,
    )


def _note(paths: list[str], text: str, noun: str = "picture", count: int = 0) -> list[str]:
    """Return a line about some files, with the first of them; none about no files."""
    if not paths:
        return []
    some = ", ".join(shown(path) for path in paths[:3]) + (" …" if len(paths) > 3 else "")
    return [f"{text.format(counted(count or len(paths), noun))}: {some}"]


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
        if not name:
            raise InputError(f"{shown(location)} has a class without a name; give each a name")
        if any("\ud800" <= mark <= "\udfff" for mark in name):
            raise InputError(f"class {shown(name)} in {shown(location)} is not UTF-8; rename it")
        folded = unicodedata.normalize("NFC", name).casefold()
        if folded in seen:
            raise InputError(
                f"classes {shown(seen[folded])} and {shown(name)} in {shown(location)} differ only in "
                "case or in how accents are encoded; join them or rename one"
            )
        seen[folded] = name


def in_float32(what: str, numbers: np.ndarray) -> np.ndarray:
    """Return numbers, floats [n, numbers], as float32.

    Raises InputError, with the name ``what``, where this makes most different numbers equal.
    """
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float32)
    if not np.isfinite(rounded).all():
        raise InputError(f"{what}: NaN, or beyond float32; give finite numbers")
    for given, kept in zip(numbers.T, rounded.T, strict=True):
        if 2 * len(np.unique(kept)) < len(np.unique(given)):
            raise InputError(
                f"{what}: from {given.min():.17g} to {given.max():.17g}; in float32, most of them become "
                "equal to others; subtract one number from all, in all splits"
            )
    return rounded


def with_classes(listing: Listing, names: tuple[str, ...]) -> Listing:
    """Return only the pictures of some classes; a label is the index into ``names``.

    Raises InputError if pictures may have several labels.
    """
    if names == listing.classes:
        return listing
    labels = relabelled(listing.labels, listing.classes, names)
    kept = np.flatnonzero(labels >= 0).tolist()
    return replace(
        listing,
        classes=names,
        paths=[listing.paths[row] for row in kept],
        labels=labels[kept],
        splits=[listing.splits[row] for row in kept],
        columns={name: [values[row] for row in kept] for name, values in listing.columns.items()},
        notes=(
            *listing.notes,
            f"{counted(len(listing.paths) - len(kept), 'picture')} of other classes left out",
        ),
        all_classes=listing.classes,
    )


def _no_pictures(tree: Tree) -> InputError:
    root, loose = shown(tree.root), tree.pictures[""]
    if loose:
        return InputError(
            f"{counted(len(loose), 'picture')} directly in {root}, such as {shown(loose[0])}, but no class "
            f"folders; a class is a folder: put the pictures of each into {root}/CLASS/{_or_table(tree)}"
        )
    others = f" ({counted(len(tree.others), 'file')} of other kinds)" if tree.others else ""
    return InputError(f"no class folders with pictures in {root}{others}; allowed: {_LAYOUTS}")


def _or_table(tree: Tree) -> str:
    """Return the end of an error: that a CSV file can name the classes, and which are there."""
    tables = [name for name in tree.others if "/" not in name and name.casefold().endswith(".csv")]
    columns = "with the columns path,label"
    if not tables:
        return f", or give --images a CSV file {columns}"
    return f", or give --images {shown(shlex.quote(str(tree.root / tables[0])))}, {columns}"
