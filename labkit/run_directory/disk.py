"""The place of a run on disk: whether it can be written, has room, holds something, fails; its removal."""

import errno
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import InputError
from labkit.home import expanded
from labkit.run_directory.directory import RunDirectory

_FAILURES = {  # with what helps
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EROFS: "mount it for writing",
    errno.EIO: "look for the disk's errors in the system's log",
    errno.ESTALE: "mount the file server's folder again",
    errno.EFBIG: "raise the limit on the size of files",
}


def disk_failure(error: BaseException) -> str | None:
    """Return what is wrong with the disk, in a line, if an error comes from there; else None.

    TensorFlow, which writes checkpoints and events, has the system's words in errors of its own.
    """
    if isinstance(error, OSError):
        number, where = error.errno, error.filename
    elif type(error).__module__.startswith("tensorflow"):
        number = next((number for number in _FAILURES if os.strerror(number) in str(error)), None)
        path = re.search(r"/[^;\s]+", str(error))
        where = path[0] if path else None
    else:
        return None
    if number not in _FAILURES:
        return None
    reason = os.strerror(number)
    return f"{reason} ({where}); {_FAILURES[number]}" if where else f"{reason}; {_FAILURES[number]}"


@contextmanager
def quiet_threads() -> Iterator[None]:
    """Keep threads that only write from printing a traceback for a disk that fails: the run says it.

    TensorBoard's thread raises what it met, after it has kept it for the next call.
    """
    before = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is None or disk_failure(failed.exc_value) is None:
            before(failed)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def check_writable(path: Path, flag: str) -> None:
    """Raise InputError where the directory ``path`` can't be made or written to."""
    existing = existing_folder(path, flag)
    if not existing.is_dir():
        raise InputError(f"{flag} {path}: {existing} is not a directory; choose another directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        instead = "copy the run to where you may write" if flag == "RUN" else "choose another directory"
        raise InputError(f"{flag} {path} can't be written: no permission in {existing}; {instead}")


def check_disk_space(path: Path, needed: int, flag: str = "--job-dir") -> None:
    """Raise InputError where fewer than ``needed`` bytes are free on the disk of ``path``."""
    free = shutil.disk_usage(existing_folder(path, flag)).free
    if free < needed:
        raise InputError(
            f"{flag} {path}: {free / 2**20:,.0f} MiB free, {needed / 2**20:,.0f} MiB needed; free some space "
            "or name a directory on another disk"
        )


def output_file(name: str, endings: tuple[str, ...]) -> Path:
    """Return the file that ``--output`` names.

    Raises InputError for another ending, a folder, and one that can't be written.
    """
    path = expanded(name)
    if not path.name.endswith(endings):
        raise InputError(f"--output is {str(path)!r}; allowed: a name that ends with {' or '.join(endings)}")
    if path.is_dir():
        raise InputError(f"--output {path} is a folder; give the name of a file")
    check_writable(path.parent, "--output")
    return path


def existing_folder(path: Path, flag: str) -> Path:
    """Return ``path`` or the nearest folder above it that exists. Raises InputError if it can't be seen."""
    try:
        while not path.exists():
            path = path.parent
    except OSError as error:  # a name that is too long, a folder that may not be searched
        raise InputError(f"{flag} {str(path)[:200]}: {error.strerror}; choose another directory") from None
    return path


def holds_something_else(run: RunDirectory) -> bool:
    """Return whether there is anything that a run killed in its first moments would not have left."""
    files = (run.notes_path, run.stop_path, run.pulled_path, run.log_path, run.console_path)
    folders = (run.cluster_path, run.events_path, run.checkpoints_path)
    ours = {run.path / ".lock", run.path / ".launcher", *files, *folders}
    if not run.path.is_dir():
        return False
    return any(path not in ours and not path.name.endswith(".tmp") for path in run.path.iterdir())


def discard(run: RunDirectory) -> None:
    """Remove what a run wrote, and nothing else that lies there. What people noted (``notes.json``) stays.

    The configuration goes last: until then the directory is known as a run.
    """
    for folder in run.folders:
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
    for path in run.files:
        if path != run.notes_path:
            path.unlink(missing_ok=True)
    run.create()
