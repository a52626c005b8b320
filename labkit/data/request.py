"""What somebody asks to be prepared, as one object: the arguments and their checks."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit import home
from labkit.config.data_sets import BUILT_IN as DATASETS
from labkit.config.data_sets import (
    CORRECTED,
    EXAMPLES,
    GENERATED,
    IMAGES,
    OWN_FILES,
    checked_name,
    fold_of_name,
    is_own,
    proposed_name,
)
from labkit.data.cifar10.sources import DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT, FORMS, check_url
from labkit.data.images.walk import shown
from labkit.data.manifest import Manifest
from labkit.data.marks import Corrections
from labkit.errors import InputError

RESIZES = ("crop", "letterbox")
SMALLEST_IMAGE, LARGEST_IMAGE = 8, 1024  # pixels


@dataclass(frozen=True)
class PrepareResult:
    """The prepared data set, whether anything was written, and lines to print for the user."""

    manifest: Manifest
    did_work: bool
    messages: tuple[str, ...]


@dataclass(frozen=True)
class Request:
    """The arguments of a preparation, with absolute paths.

    Args:
        dataset: one of ``DATASETS``, or the name of pictures of one's own.
        data_dir: the folder of data sets, made where it is missing.
        archive: what is published of a data set: an archive or its folder, a file or a folder of files;
            downloaded where None.
        validation_size: number of training examples to hold out for validation, with each class (or each set
            of labels) in proportion. None keeps the prepared size, or holds out a tenth in a new data set.
        seed: decides which examples are held out, and the content of a generated data set.
        url: a mirror to download from.
        timeout: seconds without an answer after which a download attempt fails.
        attempts: how often to try a download.
        examples_per_shard: number of examples per shard file.
        progress: called with one line for each slow operation.
        classes: names, or numbers as text, of the classes to keep; a class's label is its index here. None
            keeps the prepared classes, or all in a new data set.
        train_examples: number of training examples to keep after the validation split, with each class in
            proportion. None keeps the prepared number, or all in a new data set.
        images: pictures of one's own: a folder or a CSV file, see docs/data.md; None reads those again that
            the data set was prepared from.
        examples: by split, examples of one's own that are given in Python: see ``labkit.prepare_data``.
        npz, tfrecords: such a file, or the folder of such files; see docs/data.md.
        class_names: of these, in the order of their labels; None for their own, those prepared, or numbers.
        image_size: the side of each image in pixels; None for one that suits the pictures.
        resize: ``crop`` or ``letterbox``; None for the first, or as prepared before.
        skip_damaged: leaves out files that cannot be used instead of refusing all.
        corrections: of another data set, of which this one is made.
    """

    dataset: str
    data_dir: Path
    archive: Path | None = None
    validation_size: int | None = None
    seed: int = 0
    url: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    attempts: int = DEFAULT_ATTEMPTS
    examples_per_shard: int = 2_500
    progress: Callable[[str], None] | None = None
    classes: tuple[str, ...] | None = None
    train_examples: int | None = None
    images: Path | None = None
    examples: dict[str, Any] | None = None
    npz: Path | None = None
    tfrecords: Path | None = None
    class_names: tuple[str, ...] | None = None
    image_size: int | None = None
    resize: str | None = None
    skip_damaged: bool = False
    corrections: Corrections | None = None

    @property
    def directory(self) -> Path:
        """The data set's own folder."""
        return self.data_dir / self.dataset

    @property
    def own_source(self) -> tuple[str, Path] | None:
        """The kind and the place of the source of one's own that is named, if one is."""
        if self.examples is not None:
            return EXAMPLES, Path("Python")
        if self.corrections is not None:
            return CORRECTED, self.corrections.base.directory
        return next(((kind, path) for kind in OWN_FILES if (path := getattr(self, kind, None))), None)

    def announce(self, line: str) -> None:
        """Tell the user a line, if anybody listens."""
        if self.progress is not None:
            self.progress(line)

    def completed(self, known: Manifest | None) -> "Request":
        """Return the request with what was asked for earlier where nothing is now."""
        if known is None:
            return self
        asked = known.source.get("asked", {})
        earlier = {
            "classes": known.classes if known.all_classes else None,
            "train_examples": known.train_examples,
            "image_size": asked.get("image_size"),
            "validation_size": asked.get("validation_size"),
            "resize": known.source.get("resize"),
        }
        return replace(
            self, **{name: value for name, value in earlier.items() if getattr(self, name) is None}
        )

    def check(self) -> None:
        """Check the arguments before anything is written.

        Raises:
            InputError: an argument is out of range.
            OSError: the system denies access to the archive.
        """
        if self.own_source is None and not self._is_known():
            raise InputError(
                f"data set {self.dataset!r} is unknown; choose one of {', '.join(DATASETS)}, or prepare "
                "pictures of your own with --images PATH"
            )
        if is_own(self.dataset):
            self._check_own()
        else:
            self._check_archive()
        if self.validation_size is not None and self.validation_size < 0:
            raise InputError(f"validation size {self.validation_size} is negative; give 0 or more")
        if self.seed < 0:
            raise InputError(f"seed {self.seed} is negative; give 0 or more")
        if self.examples_per_shard < 1:
            raise InputError(f"{self.examples_per_shard} examples per shard is too few; give 1 or more")
        if not self.timeout > 0:
            raise InputError(f"timeout {self.timeout} is not positive; give a number of seconds above 0")

    def _is_known(self) -> bool:
        """Return whether the data set is one of labkit's, or pictures that were prepared before."""
        if not is_own(self.dataset):
            return self.dataset in DATASETS
        is_there = self.directory.is_dir() or fold_of_name(self.dataset)
        return checked_name(self.dataset, "--dataset") == self.dataset and bool(is_there)

    def _check_archive(self) -> None:
        for flag, value in (
            ("--image-size", self.image_size),
            ("--resize", self.resize),
            ("--skip-damaged", self.skip_damaged or None),
        ):
            if value is not None:
                raise InputError(f"{flag} is {value} without --images; give the folder of your pictures too")
        if self.dataset in GENERATED and (self.archive is not None or self.url is not None):
            raise InputError(
                f"data set {self.dataset!r} is generated and has no source; leave out --archive and --url, "
                "or choose cifar10"
            )
        if self.url is not None:
            check_url(self.url)
        if self.archive is not None and not (self.archive.is_file() or self.archive.is_dir()):
            problem = "is neither a file nor a folder" if self.archive.exists() else "does not exist"
            raise InputError(f"archive {self.archive} {problem}; {FORMS[self.dataset].way_out}")

    def _check_own(self) -> None:
        if self.skip_damaged and self.own_source and self.own_source[0] != IMAGES:
            raise InputError("--skip-damaged is True without --images; leave it out")
        for flag, other in (("--archive", self.archive), ("--url", self.url)):
            if other is not None:
                raise InputError(
                    f"{flag} is {str(other)!r}, but only {', '.join(FORMS)} have archives; leave it out"
                )
        if self.images is not None and not (self.images.is_dir() or self.images.is_file()):
            problem = "is neither a file nor a folder" if self.images.exists() else "does not exist"
            raise InputError(f"--images {shown(self.images)} {problem}; give a folder or a CSV file")
        if self.npz is not None and not self.npz.is_file():
            raise InputError(f"--npz {shown(self.npz)} is not a file; give an .npz file")
        if self.tfrecords is not None and not self.tfrecords.is_dir():
            raise InputError(
                f"--tfrecords {shown(self.tfrecords)} is not a folder; give one with train.tfrecords"
            )
        for path in (self.images, self.tfrecords):
            if path is not None and path in (self.directory, *self.directory.parents):
                raise InputError(
                    f"the data set would be written into the folder of its pictures, {shown(path)}; give "
                    "another --name or --data-dir"
                )
        size = self.image_size
        if size is not None and not SMALLEST_IMAGE <= size <= LARGEST_IMAGE:
            raise InputError(f"--image-size is {size}; allowed: {SMALLEST_IMAGE} to {LARGEST_IMAGE} pixels")
        if self.resize not in (None, *RESIZES):
            raise InputError(f"--resize is {self.resize!r}; allowed: {' or '.join(RESIZES)}")


def requested(
    dataset: str | None, data_dir: str | os.PathLike[str] | None, *, name: str | None = None, **options: Any
) -> Request:
    """Return what is asked for, with the folders and names that nobody gave.

    Args:
        dataset: None: ``cifar10``, or what ``images`` holds; the name of ``examples``.
        data_dir: None: ``data`` in labkit's home, which holds whole data sets only.
        name: of the data set made from ``images``; None for that of the folder or file.
        **options: the other fields of :class:`Request`, with paths of any kind.

    Raises:
        InputError: there are two sources, or of the name and the data set only the other one goes together
            with the source.
    """
    archive, classes = options.pop("archive", None), options.pop("classes", None)
    paths = {kind: path for kind in OWN_FILES if (path := options.pop(kind, None)) is not None}
    examples, names = options.get("examples"), options.pop("class_names", None)
    given = [f"--{kind}" for kind in paths] + ["train"] * (examples is not None)
    if len(given) > 1:
        raise InputError(f"{given[1]} together with {given[0]}; a data set has one source, leave one out")
    if data_dir is None and not given:
        for flag, value in (
            ("--classes", None if classes is None else ",".join(classes)),
            ("--train-examples", options.get("train_examples")),
        ):
            if value is not None:
                raise InputError(
                    f"{flag} is {value!r} without --data-dir: a part of a data set would replace the whole "
                    "one; name a folder for it with --data-dir"
                )
    if paths and dataset is not None:
        raise InputError(f"--dataset is {dataset!r} together with {given[0]}; name your data with --name")
    if not given and name is not None:
        raise InputError(f"--name is {name!r} without --images; choose a prepared data set with --dataset")
    if names is not None and (not given or IMAGES in paths):
        raise InputError("class_names are given without arrays or examples; leave them out")
    found = {kind: Path(os.path.abspath(home.expanded(path))) for kind, path in paths.items()}
    for kind, path in found.items():
        dataset = _name_of(kind, path, name)
    if examples is not None:
        dataset = _name_of_examples(dataset, name)
    return Request(
        dataset=dataset or DATASETS[0],
        data_dir=home.expanded(data_dir or home.data_home()).absolute(),
        archive=home.expanded(archive).absolute() if archive is not None else None,
        classes=tuple(classes) if classes is not None else None,
        class_names=tuple(names) if names is not None else None,
        **found,  # type: ignore[arg-type]
        **options,
    )


def _name_of_examples(dataset: str | None, name: str | None) -> str:
    if (dataset is None) == (name is None):
        raise InputError(
            "train needs one name for the data set that is made of it, such as "
            "labkit.prepare_data('mine', train=...)"
        )
    given, what = (name, "--name") if dataset is None else (dataset, "the name of the data set")
    return checked_name(str(given), what)


def _name_of(kind: str, path: Path, name: str | None) -> str:
    if name is not None:
        return checked_name(name)
    found = path.stem if path.is_file() else path.name
    try:
        return checked_name(found)
    except InputError:
        raise InputError(
            f"{found!r}, the name of --{kind}, can't be the name of a data set; add --name "
            f"{proposed_name(found)}, or another"
        ) from None
