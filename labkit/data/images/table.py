"""Find the pictures that a CSV file lists with their labels."""

import csv
import functools
import hashlib
import io
import os
from pathlib import Path

import numpy as np

from labkit.data.images.layouts import Listing, check_classes, class_numbers, in_float32
from labkit.data.images.walk import begins_as_picture, link_problem, shown, split_of
from labkit.errors import InputError
from labkit.plurals import counted

_MAX_BYTES = 2**30
_LONGEST_NAME = 255
_MAX_MARKS = 2**27  # of pictures times labels, which take 4 bytes each
_ALLOWED = (
    "the first line has to be path,label or path,label,split, or for numbers their names in place of label, "
    "such as path,age"
)

_Row = tuple[str, list[str], str]


def find_rows(file: Path) -> Listing:
    """Return the pictures that a CSV file names.

    Its columns are ``path`` (from the file's folder), ``label`` and, where it is there, ``split``. Several
    labels of a picture are separated by ``;``. Other columns are kept as they are; without ``label``, they
    hold numbers, which are the labels.

    Raises:
        InputError: the file is empty, not UTF-8 or has other columns; or a row lacks a value, names a file
            twice, one that is missing, or one outside the folder of the CSV file.
    """
    content = _content(file)
    names, rows = _rows(file, content)
    unusable = _check_paths(file, [path for path, _, _ in rows])
    kept: list[str] = []
    further: list[list[str]] = []
    if "label" in names:
        place = names.index("label")
        kept = [name for name in names if name != "label"]
        further = [[cell for at, cell in enumerate(cells) if at != place] for _, cells, _ in rows]
        classes, targets = _classes(file, [(path, [cells[place]], split) for path, cells, split in rows])
    else:
        classes, targets = tuple(names), _numbers(file, names, rows)
    order = sorted(range(len(rows)), key=lambda row: rows[row][0])
    return Listing(
        root=file.parent,
        location=file,
        layout="csv",
        classes=classes,
        paths=[rows[row][0] for row in order],
        labels=targets[order],
        splits=[rows[row][2] for row in order],
        table_sha256=hashlib.sha256(content).hexdigest(),
        unusable=unusable,
        columns={name: [further[row][at] for row in order] for at, name in enumerate(kept)},
    )


def _numbers(file: Path, names: list[str], rows: list[_Row]) -> np.ndarray:
    """Return the numbers of each row, float32 [n, names]. Raises InputError for a cell without one."""
    found = np.empty((len(rows), len(names)))
    for row, (path, cells, _) in enumerate(rows):
        for place, cell in enumerate(cells):
            try:
                found[row, place] = float(cell)
            except ValueError:
                found[row, place] = np.nan
            if not abs(found[row, place]) <= np.finfo(np.float32).max:
                raise InputError(
                    f"{shown(file)} has {shown(cell)[:80]!r} in the column {shown(names[place])} of "
                    f"{shown(path)[:200]}, which is no finite number; for classes, name the column label"
                )
    return in_float32(f"the numbers of {shown(file)}", found)


def _classes(file: Path, rows: list[_Row]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the classes, and labels int32 [n], or zeros and ones [n, classes]."""
    labels = [[part.strip() for part in label.split(";")] for _, (label,), _ in rows]
    labels = [[part for part in parts if part] for parts in labels]
    several = any(len(parts) > 1 for parts in labels)
    for number, parts in enumerate(labels):
        if not parts and not several:
            raise InputError(
                f"{shown(file)} has no label for {shown(rows[number][0])}; each picture needs one"
            )
        if len(set(parts)) < len(parts):
            raise InputError(f"{shown(file)} names a label of {shown(rows[number][0])} twice; name it once")
    found = list(dict.fromkeys(part for parts in labels for part in parts))
    too_long = [name for name in found if len(name) > _LONGEST_NAME]
    if too_long:
        raise InputError(
            f"{shown(file)} has a label of {len(too_long[0]):,} characters, {shown(too_long[0][:40])}…; "
            f"allowed: {_LONGEST_NAME} at most"
        )
    check_classes(file, found)
    classes, numbers = class_numbers(found)
    if several:
        if len(rows) * len(classes) > _MAX_MARKS:
            raise InputError(
                f"{shown(file)} has {len(rows):,} pictures and {len(classes):,} labels, with several for a "
                f"picture; allowed: up to {_MAX_MARKS:,} of pictures times labels; leave out rare labels"
            )
        targets = np.zeros((len(rows), len(classes)), np.int32)
        for row, parts in enumerate(labels):
            targets[row, [numbers[part] for part in parts]] = 1
    else:
        targets = np.array([numbers[part] for (part,) in labels], np.int32)
    return classes, targets


def _content(file: Path) -> bytes:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise InputError(f"{shown(file)} is larger than 1 GB; it can't be a list of pictures")
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{shown(file)} cannot be read: {error.strerror}") from None
    if not content.strip():
        raise InputError(f"{shown(file)} is empty; {_ALLOWED}, and each other line names a picture")
    return content


def _rows(file: Path, content: bytes) -> tuple[list[str], list[_Row]]:
    """Return the names of the columns but path and split, and the rows with their cells."""
    if begins_as_picture(file):
        raise InputError(f"{shown(file)} is a picture; give the folder that has a folder for each class")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{shown(file)} is not UTF-8 (line {line}); save it as CSV in UTF-8") from None
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise InputError(f"{shown(file)} is not a CSV file: {error}") from None
    titles = [name.strip() for name in table[0]]
    header = [name.casefold() for name in titles]
    others = [place for place, name in enumerate(header) if name not in ("path", "split")]
    is_known = "path" in header and len(set(header)) == len(header) and all(header) and others
    if not is_known:
        first = ",".join(table[0])
        if len(table[0]) == 1 and (other := next((mark for mark in ";\t|" if mark in first), "")):
            name = {";": "semicolons", "\t": "tabs"}.get(other, other)
            raise InputError(f"{shown(file)} has {name} between its columns; save it with commas")
        raise InputError(
            f"{shown(file)} has {f'the columns {shown(first)[:200]}' if first else 'an empty first line'}; "
            f"{_ALLOWED}"
        )
    rows: list[_Row] = []
    for number, cells in enumerate(table[1:], start=2):
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise InputError(
                f"{shown(file)} has {counted(len(cells), 'cell')} in row {number} instead of {len(header)}; "
                "put values with commas in quotes"
            )
        path = cells[header.index("path")].strip()
        split = split_of(cells[header.index("split")].strip()) if "split" in header else ""
        if not path or split is None:
            raise InputError(
                f"{shown(file)} has {shown(','.join(cells))[:200]} in row {number}; a row has a path, and "
                "where there is a column split, train, validation or test"
            )
        rows.append((path, [cells[place].strip() for place in others], split))
    if not rows:
        raise InputError(f"{shown(file)} lists no pictures; write a line for each below the first")
    return ["label" if header[place] == "label" else titles[place] for place in others], rows


def _check_paths(file: Path, paths: list[str]) -> dict[str, str]:
    """Return what is wrong with links among the files, by path. Raises InputError for other wrong paths."""
    unusable = {}
    root = os.path.realpath(file.parent)
    real_folder = functools.lru_cache(2**16)(os.path.realpath)
    missing = []
    seen: dict[str, str] = {}
    for path in paths:
        full = os.path.join(file.parent, path)
        if "\0" in path:
            raise InputError(f"{shown(file)} names the impossible path {shown(path)[:200]}")
        folder, name = os.path.split(full)
        real = os.path.join(real_folder(folder), name)
        inside = os.path.commonpath((real, root)) == root
        if inside and os.path.islink(real) and (problem := link_problem(real, root)):
            unusable[path] = problem
            continue
        if os.path.islink(real) or name in (".", "..", ""):
            real = os.path.realpath(full)
        if os.path.commonpath((real, root)) != root:
            raise InputError(
                f"{shown(file)} names {shown(path)[:200]}, which leads out of its folder; paths start from "
                f"{shown(file.parent)}"
            )
        if real in seen:
            raise InputError(
                f"{shown(file)} names {shown(path)[:200]} twice; give several labels in one row, with ; "
                "between them"
            )
        seen[real] = path
        if not os.path.isfile(real):
            missing.append(path)
    if missing:
        some = ", ".join(shown(path)[:200] for path in missing[:3])
        raise InputError(
            f"{counted(len(missing), 'file')} named in {shown(file)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: {some}{' …' if len(missing) > 3 else ''}; "
            f"paths start from {shown(file.parent)}"
        )
    return unusable
