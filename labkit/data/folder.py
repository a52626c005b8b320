"""Care for a data set's folder: its lock, the room on its disk, and what an interrupted call left behind."""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from labkit.data.manifest import MANIFEST_NAME, Manifest
from labkit.errors import InputError

__all__ = [
    "check_space",
    "clean",
    "locked",
    "path_errors",
    "readable_errors",
    "recall_manifest",
    "retire_manifest",
]

_LOCK_NAME = ".lock"
_PREVIOUS_NAME = "manifest.previous.json"
_OURS = re.compile(r"(train|validation|test)-\d{5}-of-\d{5}\.tfrecord|\..+\.tmp")
_SPARE_BYTES = 16 * 2**20


@contextmanager
def readable_errors(directory: Path) -> Iterator[None]:
    """Turn what goes wrong with the disk into an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{directory} cannot be written to: {error}; choose another --data-dir") from None


@contextmanager
def path_errors(data_dir: Path, archive: Path | None = None) -> Iterator[None]:
    """Turn what the system has against a path into an InputError that names the path and the way out.

    Path.exists, is_file and is_dir raise too: in folders that may not be searched, for names too long.
    """
    try:
        yield
    except OSError as error:
        path = str(error.filename or data_dir)
        of_archive = archive is not None and path.startswith(str(archive))
        way_out = "give another --archive" if of_archive else "choose another --data-dir"
        raise InputError(f"{path} cannot be used: {error.strerror or error}; {way_out}") from None


@contextmanager
def locked(directory: Path, announce: Callable[[str], None]) -> Iterator[None]:
    """Make the folder and hold its lock; the system releases it when the process ends, however it ends.

    What was made for a call that fails before it writes anything is removed again.

    Raises:
        InputError: the folder cannot be made or written to.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    with _acquire(directory, announce):
        try:
            yield
        except BaseException:
            if made and [path.name for path in directory.iterdir()] == [_LOCK_NAME]:
                (directory / _LOCK_NAME).unlink()
                with suppress(OSError):  # stops at the first that holds something else
                    for path in made:
                        path.rmdir()
            raise


def _acquire(directory: Path, announce: Callable[[str], None]) -> TextIO:
    """Open and lock the folder's lock file; closing it releases the lock."""
    while True:
        with readable_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            lock = open(directory / _LOCK_NAME, "a", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce(f"waiting for another process that prepares {directory}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        # The one that held it may have removed the file in the meantime; then the lock is on nothing.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(directory / _LOCK_NAME)):
                return lock
        lock.close()


def check_space(directory: Path, needed: int) -> None:
    """Raise InputError where the disk of `directory` has not `needed` bytes and some to spare."""
    free = shutil.disk_usage(directory).free
    if free < needed + _SPARE_BYTES:
        raise InputError(
            f"{directory} has {free / 1e6:,.0f} MB free, {(needed + _SPARE_BYTES) / 1e6:,.0f} MB are needed; "
            "free some or choose another --data-dir"
        )


def retire_manifest(directory: Path) -> None:
    """Take the manifest away before shards change, but remember what it knew of the source."""
    if (directory / MANIFEST_NAME).exists():
        os.replace(directory / MANIFEST_NAME, directory / _PREVIOUS_NAME)


def recall_manifest(directory: Path) -> Manifest | None:
    """Return the manifest that was retired by a call that was then cut short, if there is one."""
    try:
        return Manifest.from_json((directory / _PREVIOUS_NAME).read_text("utf-8"), directory)
    except (OSError, ValueError):
        return None


def clean(directory: Path, manifest: Manifest) -> None:
    """Remove what the manifest does not name: shards of an earlier split, unfinished files."""
    named = {shard.file for split in manifest.splits.values() for shard in split.shards}
    for path in directory.iterdir():
        if path.name == _PREVIOUS_NAME or (_OURS.fullmatch(path.name) and path.name not in named):
            path.unlink()
