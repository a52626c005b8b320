"""Where an exported file goes: refused early, written whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.errors import InputError
from labkit.export.formats import FORMATS, Format
from labkit.run_directory import write_json_atomic
from labkit.run_directory.disk import check_writable

__all__ = ["check_output", "description_path", "folder_beside", "publish"]


def description_path(path: Path) -> Path:
    """Return where the description of the exported file ``path`` is: beside it, as ``<name>.json``."""
    return path.with_name(f"{path.name}.json")


def check_output(path: Path, format: Format, *, overwrite: bool) -> None:
    """Raise InputError where ``path`` can't become a file of that format, or is there already.

    Only what looks like an export is ever overwritten: a file, or a folder with a SavedModel.
    """
    endings = {other.ending: other.name for other in FORMATS.values() if not other.is_folder}
    if path.suffix != format.ending and (path.suffix in endings or not format.is_folder):
        wanted = "a folder's" if format.is_folder else f"a name that ends with {format.ending}"
        hint = f", or --format {endings[path.suffix]}" if path.suffix in endings else ""
        raise InputError(f"--output is {str(path)!r}; allowed for --format {format.name}: {wanted}{hint}")
    if not path.name:
        raise InputError(f"--output is {str(path)!r}, which is no name for a file; name another place")
    check_writable(path.parent, "--output")
    for place in (path, description_path(path)):
        if os.path.lexists(place) and not overwrite:
            raise InputError(f"--output {place} is there already; name another, or add --overwrite")
    there = path.is_dir() and not path.is_symlink()
    if there and not (format.is_folder and (path / "saved_model.pb").is_file()):
        raise InputError(f"--output {path} is a folder that holds no SavedModel; name another place")
    if os.path.lexists(path) and not there and format.is_folder:
        raise InputError(f"--output {path} is a file; a SavedModel is a folder: name another place")
    if description_path(path).is_dir():
        raise InputError(f"--output {description_path(path)} is a folder; name another place")


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Give an empty folder on the disk of ``path`` that is removed afterwards, with all that is in it.

    Raises InputError where none can be made there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:  # what the rights don't tell: /proc, a file system that is read-only
        raise InputError(f"--output {path} can't be written ({error.strerror}); name another place") from None
    with made as folder:
        yield Path(folder)


def publish(made: Path, path: Path, description: dict[str, Any]) -> None:
    """Move ``made``, in a folder of ``folder_beside``, to ``path``, and write its description beside it.

    What was there goes first with its description: no file ever stands beside the description of another.
    """
    description_path(path).unlink(missing_ok=True)
    if path.is_dir():  # a folder can't be replaced in one step
        before = made.with_name(f"{made.name}.before")
        os.rename(path, before)
        try:
            os.rename(made, path)
        except OSError:
            os.rename(before, path)
            raise
    else:
        os.replace(made, path)
    write_json_atomic(description_path(path), description)
