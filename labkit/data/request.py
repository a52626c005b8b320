"""The arguments of ``prepare`` as one object, and their checks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.data.manifest import DATASETS, GENERATED
from labkit.data.sources import check_url
from labkit.errors import InputError

__all__ = ["Request", "check_request", "check_whole"]


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
    if request.dataset not in DATASETS:
        raise InputError(f"data set {request.dataset!r} is unknown; choose one of {', '.join(DATASETS)}")
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
