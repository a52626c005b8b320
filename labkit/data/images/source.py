"""People's own pictures as a source: find them in folders or a CSV file, check them, choose size and splits.

Nothing here imports TensorFlow: the work is done by processes that have to start quickly.
"""

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL
from PIL import Image

from labkit.config.data_sets import IMAGES
from labkit.data.hashes import named_key
from labkit.data.images.check import (
    Fact,
    check_damage,
    check_pictures,
    read_picture,
    remarks,
    source_sha256,
)
from labkit.data.images.decode import DEEPEST, DamagedError, square, white_of
from labkit.data.images.layouts import SPLITS, Listing, find_folders, with_classes
from labkit.data.images.table import find_rows
from labkit.data.images.walk import shown
from labkit.data.manifest import Manifest
from labkit.data.request import SMALLEST_IMAGE, Request
from labkit.data.subset import (
    DIVISOR,
    are_mixed,
    check_all_classes,
    class_names,
    random_order,
    stratified_rows,
    with_train_examples,
)
from labkit.data.write import Journal, Plan, Written, hashes_of, shard_tasks
from labkit.errors import InputError
from labkit.plurals import counted, listed

LARGEST_DEFAULT = 64  # pixels; above it images are stored as JPEG, and training takes minutes to hours


def choose_size(facts: Sequence[Fact]) -> tuple[int, str]:
    """Return the side that suits the pictures, and a line that says why.

    That of all pictures if they are equal squares of up to 64 pixels; otherwise 64, or the median of the
    shorter sides where that is less.

    Args:
        facts: of pictures that can be used.
    """
    sizes = Counter((fact.width, fact.height) for fact in facts)
    (width, height), _ = sizes.most_common(1)[0]
    if len(sizes) == 1 and width == height and SMALLEST_IMAGE <= width <= LARGEST_DEFAULT:
        return width, f"image size {width}: that of all pictures"
    shorter = int(np.median([min(fact.width, fact.height) for fact in facts]))
    size = min(max(shorter, SMALLEST_IMAGE), LARGEST_DEFAULT)
    if len(sizes) == 1:
        found = f"all pictures are {width} × {height}"
    else:
        ordered = sorted(sizes, key=lambda pair: (pair[0] * pair[1], *pair))  # some lie, some stand
        low, high = (f"{width} × {height}" for width, height in (ordered[0], ordered[-1]))
        found = f"the pictures have {len(sizes):,} sizes, from {low} to {high}"
    return size, f"image size {size}: {found}; --image-size chooses another"


@dataclass(frozen=True)
class Parts:
    """The rows of each split, in the order in which they are written, and what is to be said of it."""

    rows: dict[str, np.ndarray]
    lines: tuple[str, ...]


def choose_splits(
    listing: Listing,
    usable: np.ndarray,
    *,
    validation_size: int | None,
    train_examples: int | None,
    seed: int,
) -> Parts:
    """Choose the rows of each split; a split that the source doesn't name is held out of the training data.

    A tenth becomes the test split, and a tenth of the rest the validation split, with each class (or each set
    of labels) in proportion. The order within a split is random, so that a stream doesn't see class by class;
    the rows of a table in which the classes are mixed stay as they are.

    Args:
        listing: the pictures.
        usable: bool [n], false for what is left out.
        validation_size: the number of validation images; None for a tenth.
        train_examples: how many training images to keep; None for all.
        seed: decides which are held out, and the order.

    Raises:
        InputError: a size that isn't possible, or a class has no picture to train on.
    """
    named = np.array(listing.splits)
    rows = {name: np.flatnonzero(usable & (named == name)) for name in SPLITS}
    lines = []
    if not named.any():
        rows["train"] = np.flatnonzero(usable)
    total = len(rows["train"])
    given = [name for name in ("validation", "test") if len(rows[name])]
    if "validation" in given and validation_size is not None:
        raise InputError(
            f"--validation-size is {validation_size}, but the pictures for validation are named; leave it out"
        )
    sizes = {"test": max(1, total // DIVISOR)} if "test" not in given else {}
    left = total - sum(sizes.values())
    if "validation" not in given:
        sizes["validation"] = max(1, left // DIVISOR) if validation_size is None else validation_size
        left -= sizes["validation"]
    if left < 1 and validation_size and left + validation_size > 0:
        raise InputError(
            f"validation size {validation_size} leaves nothing to train on; give less than "
            f"{left + validation_size}"
        )
    if left < 1:
        raise InputError(
            f"{counted(total, 'picture')} to train on, of which some are held out: too few; add pictures to "
            f"{shown(listing.location)}"
        )
    for name, size in sizes.items():
        labels = listing.labels[rows["train"]]
        chosen = stratified_rows(labels, len(listing.classes), size, named_key(seed, name[:8]))
        rows[name], rows["train"] = rows["train"][chosen], rows["train"][~chosen]
        if size and named.any():
            lines.append(f"no {name} pictures are named: {size:,} of the training pictures are held out")
    if train_examples is not None:
        train = rows["train"]
        rows["train"], _ = with_train_examples(
            train, listing.labels[train], len(listing.classes), train_examples, seed
        )
    way_out = "add pictures, leave the class out, or name the splits yourself"
    check_all_classes(listing.labels[rows["train"]], listing.classes, way_out)
    written = {
        name: part
        if listing.layout == "csv" and are_mixed(listing.labels[part])
        else part[random_order(len(part), named_key(seed, name[:8]), "order")]
        for name, part in rows.items()
        if len(part)
    }
    return Parts(written, tuple(lines))


DEFAULT_RESIZE = "crop"
_NAMED = 10  # classes in the first line
_LEAST_RANGE = 1 / 16  # of the values: 16 shades of 256 are left
JPEG_ABOVE = 64  # pixels; up to here images are stored as they are
_QUALITY = 95
PIXELS_PER_SHARD = 2**27  # fewer images in a shard when they are large: it is about 100 MB of JPEG
_LEAST_SHARDS, _LEAST_PER_SHARD = 16, 32  # so that all processes have work, also with few large pictures


@dataclass(frozen=True)
class _Pictures:
    """The pictures of a shard: their paths and checksums, and how to make images of them."""

    root: Path
    paths: tuple[str, ...]
    sha256: tuple[str, ...]
    size: int
    resize: str
    white: int
    parallel: ClassVar[bool] = True

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for path, sha256 in zip(self.paths, self.sha256, strict=True):
            image = self._image(os.path.join(self.root, path), sha256)
            pixels = image.tobytes()
            yield pixels, jpeg(image) if self.size > JPEG_ABOVE else pixels

    def bytes(self) -> int:
        # Photographs as JPEG have up to 8 bits a pixel.
        return len(self.paths) * self.size**2 * (1 if self.size > JPEG_ABOVE else 3)

    def identity(self) -> Any:
        return [PIL.__version__, self.paths, self.sha256, self.size, self.resize, self.white]

    def _image(self, path: str, sha256: str) -> Image.Image:
        try:
            content = read_picture(path)
            if hashlib.sha256(content).hexdigest() == sha256:
                return square(content, self.size, self.resize, self.white)
            reason = ""
        except DamagedError as error:
            reason = f" ({error})"
        raise InputError(
            f"{shown(path)} has changed since it was checked a moment ago{reason}; run the command again"
        )


def jpeg(image: Image.Image) -> bytes:
    """Return the JPEG of an image as records hold it."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY, subsampling="4:4:4")
    return file.getvalue()


class ImageSource:
    """A folder of pictures or a CSV file; see ``labkit.data.prepare.Source``.

    Args:
        request: what is asked for, with what was asked for earlier where nothing is now.
        known: the manifest of an earlier preparation; its pictures are read where no others are named.
    """

    def __init__(self, request: Request, known: Manifest | None) -> None:
        self._request = request
        self._accepted = frozenset(known.source.get("skipped", ())) if known else frozenset()
        self._location = request.images or Path(known.source["location"] if known else "")
        self._resize = request.resize or DEFAULT_RESIZE

    @cached_property
    def _listing(self) -> Listing:
        """The pictures of the chosen classes."""
        location, classes = self._location, self._request.classes
        if not location.exists():
            raise InputError(
                f"{shown(location)}, the source of the data set, does not exist; give --images PATH"
            )
        listing = find_folders(location, classes or ()) if location.is_dir() else find_rows(location)
        return listing if classes is None else with_classes(listing, class_names(classes, listing.classes))

    def changes(self, present: Manifest, *, decided: bool) -> list[str]:
        """Raises InputError for the pictures of another folder, which only has the same name."""
        request, location = self._request, self._location
        is_elsewhere = Path(present.source["location"]) != location
        if request.images is None or (decided and not is_elsewhere):
            return []
        facts = check_pictures(self._listing, 0, None, request.announce, "comparing")
        if source_sha256(self._listing, facts) == present.source["sha256"]:
            return []
        if is_elsewhere:
            raise InputError(
                f"data set {request.dataset!r} was prepared from {shown(present.source['location'])}, and "
                f"the pictures in {shown(location)} are others; give another --name, or delete "
                f"{request.directory}"
            )
        return [f"preparing again: the pictures in {shown(location)} have changed"]

    def plan(self, journal: Journal | None) -> Plan:
        request, listing = self._request, self._listing
        names = listed([shown(name) for name in listing.classes], _NAMED)
        what = f"with {counted(len(listing.classes), 'number')}"
        if not listing.are_numbers:
            what = f"in {len(listing.classes):,} classes"
        request.announce(f"{counted(len(listing.paths), 'picture')} {what}: {names}")
        facts = check_pictures(listing, request.image_size or LARGEST_DEFAULT, journal, request.announce)
        skipped = check_damage(
            listing, facts, request.announce, skip=request.skip_damaged, accepted=self._accepted
        )
        good = [fact for fact in facts if not fact.problem]
        size, lines = request.image_size, [*listing.notes]
        if size is None:
            size, line = choose_size(good)
            lines.append(line)
        grey = [fact for fact in good if fact.grey]
        white = white_of(max((fact.high for fact in grey), default=DEEPEST))
        lines += reading_lines(good, size, self._resize, white)
        parts = choose_splits(
            listing,
            np.array([not fact.problem for fact in facts]),
            validation_size=request.validation_size,
            train_examples=request.train_examples,
            seed=request.seed,
        )

        def pictures(rows: np.ndarray) -> _Pictures:
            numbers = rows.tolist()
            paths = tuple(listing.paths[row] for row in numbers)
            sha256 = tuple(facts[row].sha256 for row in numbers)
            return _Pictures(listing.root, paths, sha256, size, self._resize, white)

        def doubts(written: Mapping[str, Written]) -> list[str]:
            return remarks(listing, facts, parts.rows, hashes_of(tasks, written))

        columns = dict(listing.columns)
        if len({(fact.width, fact.height) for fact in good}) > 1:  # of the files, before they got one size
            columns = {
                "width": [str(fact.width) for fact in facts],
                "height": [str(fact.height) for fact in facts],
            } | columns
        splits = {split: (rows, listing.labels[rows]) for split, rows in parts.rows.items()}
        tasks = shard_tasks(request.directory, splits, pictures, self._per_shard(splits, size))
        counts = {split: listing.counts(rows).tolist() for split, rows in parts.rows.items()}
        source = {
            "kind": IMAGES,
            "location": str(listing.location),
            "sha256": source_sha256(listing, facts),
            "matches_published": None,
            "layout": listing.layout,
            "resize": self._resize,
            "counts": {
                name: {split: values[label] for split, values in counts.items()}
                for label, name in enumerate(listing.classes)
            },
            "skipped": skipped,
            "asked": {"image_size": request.image_size, "validation_size": request.validation_size},
            "pillow": PIL.__version__,
        }
        return Plan(
            tasks,
            source=source | ({"white": white} if grey else {}),
            classes=listing.classes,
            all_classes=listing.all_classes,
            multi_label=listing.multi_label,
            image_shape=(size, size, 3),
            image_format="jpeg" if size > JPEG_ABOVE else "pixels",
            validation_size=len(parts.rows.get("validation", ())),
            train_examples=request.train_examples,
            doubts=doubts,
            files={name: [listing.paths[row] for row in rows] for name, rows in parts.rows.items()},
            columns={
                name: {column: [values[row] for row in rows] for column, values in columns.items()}
                for name, rows in parts.rows.items()
            },
            lines=(*lines, *parts.lines),
        )

    def _per_shard(self, splits: Mapping[str, tuple[np.ndarray, np.ndarray]], size: int) -> int:
        """Return how many images a shard has."""
        total = sum(len(rows) for rows, _ in splits.values())
        count = min(self._request.examples_per_shard, max(_LEAST_PER_SHARD, -(-total // _LEAST_SHARDS)))
        return max(1, min(count, PIXELS_PER_SHARD // size**2)) if size > JPEG_ABOVE else count


def reading_lines(facts: Sequence[Fact], size: int, resize: str, white: int) -> list[str]:
    """Return lines that say what is done to the pictures."""
    lines = []
    others = [fact for fact in facts if (fact.width, fact.height) != (size, size)]
    if others:
        how = "cropped to their centre" if resize == "crop" else "scaled whole, between black bars"
        not_square = sum(fact.width != fact.height for fact in others)
        lines.append(
            f"{len(others):,} pictures are resized to {size} × {size}"
            + (f"; {not_square:,} that are not square are {how} (--resize)" if not_square else "")
        )
    side = min if resize == "crop" else max
    enlarged = sum(side(fact.width, fact.height) < size for fact in others)
    if enlarged:
        lines.append(f"{counted(enlarged, 'picture')} smaller than {size} pixels: enlarged")
    transparent = sum(fact.transparent for fact in facts)
    if transparent:
        lines.append(f"{counted(transparent, 'picture')} with transparency: laid over white")
    grey = sum(fact.grey for fact in facts)
    if white != DEEPEST:
        lines.append(
            f"{counted(grey, 'picture')} of 16-bit grey without values above {white:,}: read as "
            f"{white.bit_length()} bits, so that {white:,} is white"
        )
    dull = [
        fact for fact in facts if 0 <= fact.high < fact.low + _LEAST_RANGE * (white if fact.grey else DEEPEST)
    ]
    if dull:
        lines.append(
            f"warning: {counted(len(dull), 'picture')} with 16 bits that use less than a sixteenth of their "
            "range, and become nearly one shade; spread their values before you prepare them"
        )
    return lines
