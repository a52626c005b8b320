"""What people say of single images of a data set: the label is wrong, right, or the image is not to be used.

The marks are a file beside the folder of the data set, ``NAME.marks.json``; docs/data.md has its format.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from labkit.data.manifest import Manifest, files_of, replace_file
from labkit.data.shards import read_labels
from labkit.errors import InputError, unknown_name_error
from labkit.plurals import printable
from labkit.run_directory.files import locked, open_regular

LABEL, EXCLUDE, KEEP = KINDS = ("label", "exclude", "keep")
LOCK_SECONDS = 10.0
Row = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


@dataclass(frozen=True)
class Mark:
    """What somebody said of an image.

    Args:
        mark: ``label``: its label is wrong, and ``new`` is right. ``exclude``: it is not to be used.
            ``keep``: somebody looked at it, and its label is right.
        old: the name of the class that it has.
        at: when that was said, in UTC, as ISO 8601.
        new: the name of its right class.
        file: that it was made from; None where images have numbers only.
    """

    mark: Literal["label", "exclude", "keep"]
    old: str
    at: str = ""
    new: str | None = None
    file: str | None = None


@dataclass(frozen=True)
class Marks:
    """The marks of a data set with this name and checksum, by split and row."""

    dataset: str
    checksum: str
    marks: dict[str, dict[Row, Mark]] = field(default_factory=dict)

    def of(self, split: str, row: int) -> Mark | None:
        """Return the mark of an image; None without one."""
        return self.marks.get(split, {}).get(row)

    def count(self, kind: str) -> int:
        """Return how many marks are of a kind of ``KINDS``."""
        return sum(mark.mark == kind for marks in self.marks.values() for mark in marks.values())

    def to_json(self) -> str:
        """Return the file's content."""
        return json.dumps(msgspec.to_builtins(self, str_keys=True), indent=1) + "\n"


@dataclass(frozen=True)
class Corrections:
    """What the marks of a data set change.

    ``labels``: by split and row, the index of the right class. ``excluded``: by split, the rows that are left
    out, ascending. ``sha256``: of both. ``text``: the file of marks.
    """

    base: Manifest
    labels: Mapping[str, Mapping[int, int]]
    excluded: Mapping[str, list[int]]
    text: str

    @property
    def sha256(self) -> str:
        content = [{split: sorted(rows.items()) for split, rows in self.labels.items()}, self.excluded]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def marks_path(manifest: Manifest) -> Path:
    """Return where the marks of a data set are."""
    return manifest.directory.with_name(f"{manifest.dataset}.marks.json")


def read_marks(manifest: Manifest, path: Path | None = None) -> Marks:
    """Return the marks of a data set; none where there is no file.

    Args:
        manifest: the data set.
        path: a file that somebody names, which must be there.

    Raises InputError if the file can't be read, or has the marks of other data.
    """
    chosen = path or marks_path(manifest)
    try:
        with open_regular(chosen) as file:
            found = msgspec.json.decode(file.read(), type=Marks)
    except FileNotFoundError:
        if path is None:
            return Marks(manifest.dataset, manifest.checksum)
        raise InputError(
            f"--marks {path} does not exist; leave it out for the marks that were made in the dashboard"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{chosen} cannot be read as marks: {printable(str(error))}; repair it, or move it away"
        ) from None
    if found.checksum != manifest.checksum:
        raise InputError(
            f"{chosen} has marks of other data than {manifest.directory} holds (checksum "
            f"{printable(found.checksum[:12])} there, {manifest.checksum[:12]} here); move the file away and "
            "mark this data set anew"
        )
    return found


Place = tuple[str, int]  # split and row


def change_marks(manifest: Manifest, changes: Mapping[Place, Mark | None]) -> dict[Place, Mark | None]:
    """Set marks, or take them away (None); return those that the images had before.

    The file is replaced whole, and one call waits for another, so that none loses what the other one wrote.

    Raises InputError if the file can't be read or written, or has the marks of other data.
    """
    path = marks_path(manifest)
    try:
        with locked(path.with_name(f".{path.name}.lock"), LOCK_SECONDS):
            known = read_marks(manifest)
            before = {place: known.of(*place) for place in changes}
            for (split, row), mark in changes.items():
                rows = known.marks.setdefault(split, {})
                if mark is None:
                    rows.pop(row, None)
                else:
                    rows[row] = mark
            replace_file(path, known.to_json())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; allow it, or copy the data") from None
    return before


def marks_of(
    manifest: Manifest, kind: str, classes: Mapping[Place, tuple[str, str | None]]
) -> dict[Place, Mark]:
    """Return the marks that say one thing of several images, with the time and the images' files.

    Args:
        manifest: the data set.
        kind: of ``KINDS``.
        classes: by split and row, the name of the class that the image has, and with ``label`` that of its
            right one; an image that has this class is kept.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made, files = {}, {split: files_of(manifest, split) for split in {split for split, _ in classes}}
    for (split, row), (old, new) in classes.items():
        said = KEEP if kind == LABEL and new == old else kind
        known = files[split]
        file = known[row] if known is not None else None
        made[split, row] = Mark(said, old, now, new if said == LABEL else None, file)  # type: ignore[arg-type]
    return made


def corrections_of(manifest: Manifest, marks: Marks) -> Corrections:
    """Return what marks change.

    Raises InputError for a split, a row or a class that the data set doesn't have, for a mark whose ``old``
    or ``file`` isn't the image's, where nothing changes, and where labels of marked images can't be read.
    """
    if manifest.targets != "class":
        what = "numbers" if manifest.targets == "numbers" else "several labels for each image"
        raise InputError(f"{manifest.dataset} has {what}; only data sets with one class can be corrected")
    labels: dict[str, dict[int, int]] = {}
    excluded: dict[str, list[int]] = {}
    for split, rows in marks.marks.items():
        if not rows:
            continue
        if (last := max(rows)) >= manifest.count(split):
            raise InputError(
                f"marks name image {last} of {printable(split)!r}; {manifest.dataset} has "
                + ", ".join(f"{part.count:,} of {name}" for name, part in manifest.splits.items())
            )
        marked = sorted(rows.items())
        given, files = read_labels(manifest, split, np.array(sorted(rows))), files_of(manifest, split)
        for (row, mark), label in zip(marked, given.tolist(), strict=True):
            _check_image(manifest, f"image {row} of {split}", mark, label, files[row] if files else None)
            if mark.mark == EXCLUDE:
                excluded.setdefault(split, []).append(row)
            elif mark.mark == LABEL:
                if mark.new not in manifest.classes:
                    raise unknown_name_error("class", mark.new or "", manifest.classes)
                labels.setdefault(split, {})[row] = manifest.classes.index(mark.new)
    if not labels and not excluded:
        raise nothing_marked(manifest)
    return Corrections(manifest, labels, excluded, marks.to_json())


def _check_image(manifest: Manifest, image: str, mark: Mark, label: int, file: str | None) -> None:
    """Raise InputError where a mark says that an image has another class or file than it has."""
    for name, said, own in (("old", mark.old, manifest.classes[label]), ("file", mark.file, file)):
        if said is not None and own is not None and said != own:
            raise InputError(
                f"the mark {mark.mark!r} of {image} says {name} {printable(said)!r}; {manifest.dataset} has "
                f"{printable(own)!r} there; mark the image that was meant, or take this mark away"
            )


def nothing_marked(manifest: Manifest) -> InputError:
    """Return the error for marks that change nothing."""
    return InputError(
        f"no image of {manifest.dataset} is marked with another label or to be excluded; mark some on the "
        "dashboard's pages Data and Predictions"
    )
