"""Examples of one's own as a source: their classes, splits and size, and the shards made of them."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL

from labkit.config.data_sets import EXAMPLES, NPZ, OWN_FILES, prepare_command
from labkit.data.examples.arrays import (
    Part,
    lengths_error,
    part_of_arrays,
    part_of_named_arrays,
    parts_of_npz,
    parts_of_tfrecords,
)
from labkit.data.examples.iterables import part_of_examples
from labkit.data.folder import writing_errors
from labkit.data.hashes import named_key
from labkit.data.images.check import Fact, remarks
from labkit.data.images.decode import DEEPEST, square_of_pixels
from labkit.data.images.layouts import MAX_CLASSES, SPLITS, Listing, check_classes
from labkit.data.images.source import (
    DEFAULT_RESIZE,
    JPEG_ABOVE,
    PIXELS_PER_SHARD,
    choose_size,
    jpeg,
    reading_lines,
)
from labkit.data.images.walk import shown
from labkit.data.manifest import Manifest
from labkit.data.request import Request
from labkit.data.subset import (
    DIVISOR,
    are_mixed,
    check_all_classes,
    class_names,
    random_order,
    relabelled,
    split_rows,
    stratified_rows,
)
from labkit.data.write import Journal, Plan, Written, hashes_of, shard_tasks
from labkit.errors import InputError
from labkit.plurals import counted, listed


@dataclass(frozen=True)
class _Examples:
    """The examples of a data set, split after split, with a label for each.

    Args:
        parts: by split, as they were given.
        labels: int32 [n], zeros and ones [n, classes], or float32 [n, numbers]; -1 for classes that are left
            out.
        classes, all_classes: names of those that are kept, and of all where some are left out.
        sha256: of all pixels and labels that were given.
    """

    parts: Mapping[str, Part]
    labels: np.ndarray
    classes: tuple[str, ...]
    all_classes: tuple[str, ...] | None
    sha256: str

    def image(self, row: int) -> np.ndarray:
        """Return the pixels of an example, uint8 [height, width, 1 or 3]."""
        for part in self.parts.values():
            if row < len(part.labels):
                break
            row -= len(part.labels)
        return part.images[row]

    def columns(self) -> dict[str, list[str]]:
        """Return what else is known of each example, by name; an empty text where its split doesn't say."""
        names = dict.fromkeys(name for part in self.parts.values() for name in part.columns)
        return {
            name: [
                text
                for part in self.parts.values()
                for text in part.columns.get(name, [""] * len(part.labels))
            ]
            for name in names
        }

    def rows(self, split: str) -> np.ndarray:
        """Return the rows that were given for a split and are kept; none where nothing was given for it."""
        names = np.repeat(list(self.parts), [len(part.labels) for part in self.parts.values()])
        kept = self.labels >= 0 if self.labels.ndim == 1 else True
        return np.flatnonzero((names == split) & kept)


@dataclass(frozen=True)
class _Images:
    """The images of a shard, made of given ones when they are written."""

    given: _Examples
    rows: np.ndarray
    size: int
    resize: str
    parallel: ClassVar[bool] = False

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for row in self.rows.tolist():
            image = square_of_pixels(self.given.image(row), self.size, self.resize)
            pixels = image.tobytes()
            yield pixels, jpeg(image) if self.size > JPEG_ABOVE else pixels

    def bytes(self) -> int:
        return len(self.rows) * self.size**2 * (1 if self.size > JPEG_ABOVE else 3)

    def identity(self) -> Any:
        return [PIL.__version__, self.given.sha256, self.rows.tolist(), self.size, self.resize]


class ExampleSource:
    """Examples that a call brings, or a file of them; see ``labkit.data.prepare.Source``.

    Args:
        request: what is asked for, with what was asked for earlier where nothing is now.
        known: the manifest of an earlier preparation.
    """

    def __init__(self, request: Request, known: Manifest | None) -> None:
        self._request, self._known = request, known
        kind, location = request.own_source or (known.source["kind"], known.source["location"])  # type: ignore[union-attr]
        self._kind, self._location = kind, location
        self._resize = request.resize or DEFAULT_RESIZE

    @cached_property
    def _given(self) -> _Examples:
        return _together(self._parts(), self._request, self._known)

    def _parts(self) -> dict[str, Part]:
        request, location = self._request, Path(self._location)
        if self._kind in OWN_FILES:
            if not location.exists():
                raise InputError(
                    f"{shown(location)}, the source of the data set, does not exist; give --{self._kind} PATH"
                )
            request.announce(f"reading {shown(location)}")
            return (parts_of_npz if self._kind == NPZ else parts_of_tfrecords)(location)
        if request.examples is None:
            raise InputError(
                f"the examples of {request.dataset!r} were given in Python and are not kept; rebuild with: "
                f"{prepare_command(request.dataset, str(request.data_dir), kind=EXAMPLES)}"
            )
        request.announce(f"reading the examples of {request.dataset}")
        for split, examples in request.examples.items():  # only once: iterators are empty the second time
            request.examples[split] = self._part(split, examples)
        return {split: request.examples[split] for split in SPLITS if split in request.examples}

    def _part(self, split: str, examples: Any) -> Part:
        if isinstance(examples, Part):
            return examples
        if isinstance(examples, Mapping):
            return part_of_named_arrays(split, examples, lambda pair: self._part(split, pair))
        if isinstance(examples, tuple) and len(examples) == 2:
            if not (isinstance(examples[0], Sequence) and hasattr(examples[1], "__len__")):
                return part_of_arrays(split, *examples)
            images, labels = examples
            if len(images) != len(labels):
                raise lengths_error(split, len(images), len(labels))
            examples = list(zip(images, labels, strict=True))
        request = self._request
        squared = (request.image_size, self._resize) if request.image_size else None
        with writing_errors(request.directory):
            return part_of_examples(split, examples, request.directory, request.announce, squared)

    def changes(self, present: Manifest, *, decided: bool) -> list[str]:
        """Raises InputError for other examples under the name of a data set that is there."""
        request = self._request
        if request.own_source is None:
            return []
        recorded = present.source
        if self._given.sha256 != recorded["sha256"]:
            if self._kind == EXAMPLES or str(self._location) != recorded["location"]:
                raise InputError(
                    f"data set {request.dataset!r} is there, made of other examples than these; give another "
                    f"name, or delete {request.directory}"
                )
            return [f"preparing again: the examples in {shown(self._location)} have changed"]
        columns = self._given.columns()
        if columns and _sha256_of_columns(columns) != recorded.get("columns"):
            return ["preparing again: what is known beside the labels has changed"]
        names = present.all_classes or present.classes
        if (self._given.all_classes or self._given.classes) != names:
            return ["preparing again: the classes have other names"]
        return []

    def plan(self, journal: Journal | None) -> Plan:
        request, given = self._request, self._given
        sizes = [size for part in given.parts.values() for size in part.sizes]
        each = {size: Fact("", *size) for size in set(sizes)}
        facts = [each[size] for size in sizes]
        size, lines = request.image_size, [note for part in given.parts.values() for note in part.notes]
        if size is None:
            size, line = choose_size(facts)
            lines.append(line)
        if given.labels.dtype.kind == "f":
            numbers = listed([*map(shown, given.classes)])
            lines.append(f"labels are numbers: {numbers}{_if_classes(given.labels)}")
        lines += reading_lines(facts, size, self._resize, DEEPEST)
        rows, said = self._splits(given)
        listing = Listing(
            root=Path(),
            location=Path(str(self._location)),
            layout=self._kind,
            classes=given.classes,
            paths=[f"{name}[{row}]" for name, part in given.parts.items() for row in range(len(part.labels))],
            labels=given.labels,
            splits=[],
        )
        columns, per_shard = given.columns(), request.examples_per_shard
        if size > JPEG_ABOVE:
            per_shard = max(1, min(per_shard, PIXELS_PER_SHARD // size**2))
        splits = {name: (part, given.labels[part]) for name, part in rows.items()}
        tasks = shard_tasks(
            request.directory, splits, lambda part: _Images(given, part, size, self._resize), per_shard
        )

        def doubts(written: Mapping[str, Written]) -> list[str]:
            return remarks(listing, facts, rows, hashes_of(tasks, written))

        return Plan(
            tasks,
            source={
                "kind": self._kind,
                "location": str(self._location),
                "sha256": given.sha256,
                "columns": _sha256_of_columns(columns) if columns else None,
                "matches_published": None,
                "resize": self._resize,
                "asked": {"image_size": request.image_size, "validation_size": request.validation_size},
                "pillow": PIL.__version__,
            },
            classes=given.classes,
            all_classes=given.all_classes,
            multi_label=listing.multi_label,
            image_shape=(size, size, 3),
            image_format="jpeg" if size > JPEG_ABOVE else "pixels",
            validation_size=len(rows.get("validation", ())),
            train_examples=request.train_examples,
            doubts=doubts,
            columns={
                name: {column: [texts[row] for row in part] for column, texts in columns.items()}
                for name, part in rows.items()
            },
            lines=(*lines, *said),
        )

    def _splits(self, given: _Examples) -> tuple[dict[str, np.ndarray], list[str]]:
        """Return the rows of each split, and lines that say what was held out.

        A validation split is held out as of CIFAR-10, so that the same examples make the same shards.
        """
        request, lines = self._request, []
        train, number = given.rows("train"), len(given.classes)
        parts = {name: found for name in ("validation", "test") if len(found := given.rows(name))}
        size = request.validation_size
        if "validation" in parts and size is not None:
            raise InputError(
                f"--validation-size is {size}, but examples for validation are given; leave it out"
            )
        if "test" not in parts:
            held = max(1, len(train) // DIVISOR)
            key = named_key(request.seed, "test")
            chosen = stratified_rows(given.labels[train], number, held, key)
            parts["test"], train = train[chosen], train[~chosen]
            lines.append(f"no test examples are given: {held:,} of the training examples are held out")
        if "validation" in parts:
            size = 0
        elif size is None:
            size = len(train) // DIVISOR
        labels = given.labels[train]
        kept = split_rows(labels, number, size, request.seed, request.train_examples)
        rows = {name: train[part] for name, part in kept.items()}
        if labels.ndim == 1 and not are_mixed(labels):
            rows["train"] = rows["train"][
                random_order(len(rows["train"]), named_key(request.seed, "train"), "order")
            ]
            lines.append("the training examples come class by class: their order is made random")
        way_out = "give some, or number the labels without gaps"
        check_all_classes(given.labels[rows["train"]], given.classes, way_out)
        rows |= parts
        return {name: rows[name] for name in SPLITS if name in rows}, lines


def _together(parts: Mapping[str, Part], request: Request, known: Manifest | None) -> _Examples:
    """Return all examples with their classes. Raises InputError where labels and names differ."""
    kinds = {name: part.labels.dtype.kind for name, part in parts.items()}
    if len(set(kinds.values())) > 1:
        of_numbers = [name for name, kind in kinds.items() if kind == "f"]
        raise InputError(f"{', '.join(of_numbers)} has floats as labels, and the others whole numbers")
    shapes = {name: part.labels.shape[1:] for name, part in parts.items()}
    if len(set(shapes.values())) > 1:
        forms = ", ".join(f"{name} [{', '.join(map(str, ('n', *shape)))}]" for name, shape in shapes.items())
        raise InputError(f"the splits have labels of different shapes, {forms}; give all in one shape")
    labels = np.concatenate([part.labels for part in parts.values()])
    number = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
    are_numbers = labels.dtype.kind == "f"
    if labels.ndim == 2 and not are_numbers and (labels.sum(axis=1) == 1).all():
        labels = labels.argmax(axis=1).astype(np.int32)
    told = {name: part.classes for name, part in parts.items() if part.classes}
    if len(set(told.values())) > 1 and not request.class_names:
        lists = "; ".join(
            f"{name} has {listed([*map(shown, classes)], 10)}" for name, classes in told.items()
        )
        raise InputError(
            f"the splits have other classes, so that a number isn't the same class in all ({lists}); number "
            "the labels alike in all splits, and name the classes with class_names"
        )
    names = request.class_names or next(iter(told.values()), ())
    if not names and known is not None and len(known.all_classes or known.classes) == number:
        names = known.all_classes or known.classes
    default = [f"number {place}" for place in range(number)] if are_numbers and number > 1 else ["number"]
    names = names or tuple(default if are_numbers else map(str, range(number)))
    if are_numbers and request.classes is not None:
        raise InputError("--classes needs classes, and the labels are floats, so numbers; leave it out")
    if are_numbers and len(names) == number == len(set(names)):
        return _Examples(parts, labels, names, None, _sha256(parts))
    if are_numbers and (hint := _if_classes(labels)):
        raise InputError(f"class_names has {counted(len(names), 'name')} for one number of each image{hint}")
    if len(names) != number:
        raise InputError(
            f"class_names has {counted(len(names), 'name')} and the labels {number:,} classes (0 to "
            f"{number - 1}); give a name for each, in the order of the labels"
        )
    if number < 2:
        raise InputError("all examples have the label 0, so there is one class only; give two or more")
    check_classes(Path("class_names"), list(names))
    kept = names
    if request.classes is not None and (kept := class_names(request.classes, names)) != names:
        labels = relabelled(labels, names, kept)
    return _Examples(parts, labels, kept, names if kept != names else None, _sha256(parts))


def _if_classes(labels: np.ndarray) -> str:
    """Return what to do with numbers, float32 [n, numbers], if they are classes; "" where they can't be."""
    if labels.shape[1] > 1 or not np.isin(labels, np.arange(MAX_CLASSES)).all():
        return ""
    return "; all are whole: if they are classes, give them with an integer type, labels.astype(int)"


def _sha256_of_columns(columns: Mapping[str, list[str]]) -> str:
    return hashlib.sha256(json.dumps(columns, sort_keys=True).encode()).hexdigest()


def _sha256(parts: Mapping[str, Part]) -> str:
    digest = hashlib.sha256()
    for name, part in parts.items():
        digest.update(f"{name} {part.sha256} {part.labels.shape}".encode())
        digest.update(part.labels.tobytes())
    return digest.hexdigest()
