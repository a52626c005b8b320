"""Write a report to a file, whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

from app.report.document import report
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import replacing

__all__ = ["write_report"]


def write_report(runs: Sequence[RunDirectory], path: Path) -> int:
    """Write the report of ``runs``, replacing the file at ``path``. Returns its size in bytes.

    Raises InputError if a run can't be read, OSError if the file can't be written.
    """
    try:
        data = report(runs).encode(errors="replace")
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return len(data)
