"""The arguments of ``prepare`` as one object, and their checks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.config.data_sets import checked_name, is_own, proposed_name
from labkit.data.cifar10.sources import check_url
from labkit.data.images.names import shown
from labkit.data.manifest import DATASETS, GENERATED, Manifest
from labkit.errors import InputError

__all__ = [
    "LARGEST_IMAGE",
    "RESIZES",
    "SMALLEST_IMAGE",
    "PrepareResult",
    "Request",
    "check_request",
    "check_whole",
    "name_of",
]

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
    """The arguments of :func:`labkit.data.prepare.prepare`, with absolute paths."""

    dataset: str
    data_dir: Path
    archive: Path | None
    validation_size: int | None
    seed: int
    url: str | None
    timeout: float
    attempts: int
    examples_per_shard: int
    announce: Callable[[str], None]
    classes: tuple[str, ...] | None = None
    train_examples: int | None = None
    images: Path | None = None
    image_size: int | None = None
    resize: str | None = None
    skip_damaged: bool = False

    @property
    def directory(self) -> Path:
        """The data set's own folder."""
        return self.data_dir / self.dataset


def check_request(request: Request) -> None:
    """Check the arguments before anything is written.

    Raises:
        InputError: an argument is out of range.
        OSError: the system denies access to the archive.
    """
    if request.images is None and not _is_known(request):
        raise InputError(
            f"data set {request.dataset!r} is unknown; choose one of {', '.join(DATASETS)}, or prepare "
            "pictures of your own with --images PATH"
        )
    _check_pictures(request)
    if request.validation_size is not None and request.validation_size < 0:
        raise InputError(f"validation size {request.validation_size} is negative; give 0 or more")
    if request.seed < 0:
        raise InputError(f"seed {request.seed} is negative; give 0 or more")
    if request.examples_per_shard < 1:
        raise InputError(f"{request.examples_per_shard} examples per shard is too few; give 1 or more")
    if not request.timeout > 0:
        raise InputError(f"timeout {request.timeout} is not positive; give a number of seconds above 0")
    if request.dataset in GENERATED and (request.archive is not None or request.url is not None):
        raise InputError(
            f"data set {request.dataset!r} is generated and has no source; leave out --archive and --url, or "
            "choose cifar10"
        )
    if request.url is not None:
        check_url(request.url)
    if request.archive is not None and not request.archive.exists():
        raise InputError(f"archive {request.archive} does not exist; give a CIFAR-10 .tar.gz or its folder")
    if request.archive is not None and not (request.archive.is_file() or request.archive.is_dir()):
        raise InputError(
            f"archive {request.archive} is neither a file nor a folder; give a CIFAR-10 .tar.gz or its folder"
        )


def _is_known(request: Request) -> bool:
    """Return whether the data set is one of labkit's, or pictures that were prepared before."""
    if not is_own(request.dataset):
        return request.dataset in DATASETS
    return checked_name(request.dataset, "--dataset") == request.dataset and request.directory.is_dir()


def _check_pictures(request: Request) -> None:
    """Check the arguments for pictures of one's own, and that no others need them."""
    asked = {
        "--image-size": request.image_size,
        "--resize": request.resize,
        "--skip-damaged": request.skip_damaged or None,
    }
    if not is_own(request.dataset):
        for flag, value in asked.items():
            if value is not None:
                raise InputError(f"{flag} is {value} without --images; give the folder of your pictures too")
        return
    for flag, other in (("--archive", request.archive), ("--url", request.url)):
        if other is not None:
            raise InputError(f"{flag} is {str(other)!r}, but only cifar10 has an archive; leave it out")
    if request.images is not None and not (request.images.is_dir() or request.images.is_file()):
        problem = "is neither a file nor a folder" if request.images.exists() else "does not exist"
        raise InputError(f"--images {shown(request.images)} {problem}; give a folder or a CSV file")
    if request.images is not None and request.images in (request.directory, *request.directory.parents):
        raise InputError(
            f"the data set would be written into the folder of its pictures, {shown(request.images)}; give "
            "another --name or --data-dir"
        )
    size = request.image_size
    if size is not None and not SMALLEST_IMAGE <= size <= LARGEST_IMAGE:
        raise InputError(f"--image-size is {size}; allowed: {SMALLEST_IMAGE} to {LARGEST_IMAGE} pixels")
    if request.resize not in (None, *RESIZES):
        raise InputError(f"--resize is {request.resize!r}; allowed: {' or '.join(RESIZES)}")


def name_of(images: Path, name: str | None) -> str:
    """Return the name of a data set of pictures: the one given, else that of the folder or file.

    Raises InputError for a name that isn't allowed, and asks for --name if it is the folder's.
    """
    if name is not None:
        return checked_name(name)
    found = images.stem if images.is_file() else images.name
    try:
        return checked_name(found)
    except InputError:
        raise InputError(
            f"{found!r}, the name of --images, can't be the name of a data set; add --name "
            f"{proposed_name(found)}, or another"
        ) from None


def check_whole(classes: Sequence[str] | None, train_examples: int | None) -> None:
    """Raise InputError where a part of a data set is asked for without a folder of its own."""
    for flag, value in (
        ("--classes", None if classes is None else ",".join(classes)),
        ("--train-examples", train_examples),
    ):
        if value is not None:
            raise InputError(
                f"{flag} is {value!r} without --data-dir: a part of a data set would replace the whole one; "
                "name a folder for it with --data-dir"
            )
