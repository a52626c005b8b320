"""A data set's folder: its lock, its free disk space, and cleaning up after an interrupted call."""

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from labkit.data.manifest import MANIFEST_NAME, Manifest
from labkit.errors import InputError, reason_of
from labkit.run_directory.disk import check_disk_space

_LOCK_NAME = ".lock"
_PREVIOUS_NAME = "manifest.previous.json"
_OWN_FILES = re.compile(r"(train|validation|test)-\d{5}-of-\d{5}\.tfrecord|\..+\.tmp")
_SPARE_BYTES = 16 * 2**20


@contextmanager
def writing_errors(directory: Path) -> Iterator[None]:
    """Convert an OSError while writing into an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{directory} cannot be written to: {reason_of(error)}; choose another --data-dir"
        ) from None


@contextmanager
def path_errors(data_dir: Path, archive: Path | None = None) -> Iterator[None]:
    """Convert an OSError about a path into an InputError that names the path and the option to change.

    Path.exists, is_file and is_dir can raise OSError too: without permission to search the folder, or when a
    name is too long.
    """
    try:
        yield
    except OSError as error:
        path = str(error.filename or data_dir)
        of_archive = archive is not None and path.startswith(str(archive))
        way_out = "give another --archive" if of_archive else "choose another --data-dir"
        raise InputError(f"{path} cannot be used: {reason_of(error)}; {way_out}") from None


@contextmanager
def locked(directory: Path, announce: Callable[[str], None]) -> Iterator[None]:
    """Create the folder and hold its lock; the system releases the lock when the process ends or is killed.

    If the block fails before it writes anything, the folders created here are removed again.

    Args:
        directory: the data set's folder.
        announce: called with a line when another process holds the lock.

    Raises:
        InputError: the folder cannot be created or written to.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    with _acquire(directory, announce):
        try:
            yield
        except BaseException:
            if made and [path.name for path in directory.iterdir()] == [_LOCK_NAME]:
                (directory / _LOCK_NAME).unlink()
                with suppress(OSError):  # stops at the first folder that is not empty
                    for path in made:
                        path.rmdir()
            raise


def _acquire(directory: Path, announce: Callable[[str], None]) -> TextIO:
    """Open and lock the folder's lock file; closing it releases the lock."""
    while True:
        with writing_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            lock = open(directory / _LOCK_NAME, "a", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"waiting for another process that is preparing {directory}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        # The previous holder may have removed the file in the meantime; then this lock protects nothing.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(directory / _LOCK_NAME)):
                return lock
        lock.close()


def check_space(directory: Path, needed: int) -> None:
    """Raise InputError unless the disk of `directory` has `needed` bytes and 16 MiB free."""
    check_disk_space(directory, needed + _SPARE_BYTES, "--data-dir")


def retire_manifest(directory: Path) -> None:
    """Rename the manifest before shards change, so that its record of the source is kept."""
    if (directory / MANIFEST_NAME).exists():
        os.replace(directory / MANIFEST_NAME, directory / _PREVIOUS_NAME)


def recall_manifest(directory: Path) -> Manifest | None:
    """Return the manifest that another version of labkit wrote or an interrupted call renamed, or None.

    It says how the data set was prepared; its shards may be gone, or of another format.
    """
    for name in (MANIFEST_NAME, _PREVIOUS_NAME):
        with suppress(OSError, ValueError):
            found = Manifest.from_json((directory / name).read_text("utf-8"), directory, any_format=True)
            if found.dataset == directory.name:
                return found
    return None


def clean(directory: Path, manifest: Manifest) -> None:
    """Remove labkit's files that the manifest does not list: old shards and unfinished files."""
    listed = {shard.file for split in manifest.splits.values() for shard in split.shards}
    for path in directory.iterdir():
        if path.name == _PREVIOUS_NAME or (_OWN_FILES.fullmatch(path.name) and path.name not in listed):
            path.unlink()
