"""What an export writes and where: check the path early, write the file and its description atomically."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.config import Config
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.export.formats import FORMATS, Format
from labkit.run_directory import RunDirectory, write_json_atomic
from labkit.run_directory.disk import check_writable

PIXELS = "pixels from 0 to 255"  # the input's values in a description, unless they are standardized


@dataclass(frozen=True)
class ExportRequest:
    """The checked arguments of ``labkit.export.api.export``.

    ``config`` is the run's recorded configuration, ``manifest`` describes its data set, and ``path`` is the
    file or folder to write.
    """

    run: RunDirectory
    config: Config
    manifest: Manifest
    format: Format
    path: Path
    checkpoint: str
    standardized_input: bool
    probabilities: bool
    check: bool

    @property
    def output_name(self) -> str:
        """The name of the exported network's output."""
        if self.manifest.targets == "numbers":
            return "numbers"
        return "probabilities" if self.probabilities else "logits"


@dataclass(frozen=True)
class ExportResult:
    """The result of an export, with the content of the file's description.

    ``comparison`` is a ``labkit.export.check.Comparison``, or None if no check was requested. If the check
    failed, nothing was written to ``path``.
    """

    path: Path
    step: int
    description: dict[str, Any]
    comparison: Any = None

    @property
    def written(self) -> bool:
        return self.comparison is None or self.comparison.passed


def description_path(path: Path) -> Path:
    """Return the path of the description of the exported file ``path``: ``<name>.json`` beside it."""
    return path.with_name(f"{path.name}.json")


def check_output(path: Path, format: Format, *, overwrite: bool) -> None:
    """Check that an export of this format can be written to ``path``.

    Only a file or a folder with a SavedModel is ever overwritten.

    Raises:
        InputError: the path does not fit the format, can't be written to, or exists and must not be
            overwritten.
    """
    endings = {other.ending: other.name for other in FORMATS.values() if not other.is_folder}
    if path.suffix != format.ending and (path.suffix in endings or not format.is_folder):
        wanted = "a folder name" if format.is_folder else f"a name that ends with {format.ending}"
        hint = f", or --format {endings[path.suffix]}" if path.suffix in endings else ""
        raise InputError(f"--output is {str(path)!r}; allowed for --format {format.name}: {wanted}{hint}")
    if not path.name:
        raise InputError(f"--output is {str(path)!r}, which is not a file name; give another path")
    check_writable(path.parent, "--output")
    for file in (path, description_path(path)):
        if os.path.lexists(file) and not overwrite:
            raise InputError(f"--output {file} already exists; give another path, or add --overwrite")
    is_folder = path.is_dir() and not path.is_symlink()
    if is_folder and not (format.is_folder and (path / "saved_model.pb").is_file()):
        raise InputError(f"--output {path} is a folder without a SavedModel; give another path")
    if os.path.lexists(path) and not is_folder and format.is_folder:
        raise InputError(f"--output {path} is a file, but a SavedModel is a folder; give another path")
    if description_path(path).is_dir():
        raise InputError(f"--output {description_path(path)} is a folder; give another path")


@contextlib.contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Create an empty temporary folder next to ``path``; it is removed afterwards with its content.

    Raises:
        InputError: the folder can't be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:  # permissions allow it, but not the file system: /proc, a read-only mount
        raise InputError(f"--output {path} can't be written ({error.strerror}); give another path") from None
    with temporary as folder:
        yield Path(folder)


def publish(written: Path, path: Path, description: dict[str, Any]) -> None:
    """Move ``written``, from a folder of ``folder_beside``, to ``path``, and write its description.

    The old description is removed first, so that it is never found next to the new file.
    """
    description_path(path).unlink(missing_ok=True)
    if path.is_dir():  # a folder can't be replaced in one step
        previous = written.with_name(f"{written.name}.previous")
        os.rename(path, previous)
        try:
            os.rename(written, path)
        except OSError:
            os.rename(previous, path)
            raise
    else:
        os.replace(written, path)
    write_json_atomic(description_path(path), description)
