"""Write a report to a file, whole or not at all."""

from collections.abc import Sequence
from pathlib import Path

from app.report.document import report
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import replacing

__all__ = ["write_report"]


def write_report(runs: Sequence[RunDirectory], path: Path) -> int:
    """Write the report of ``runs``, replacing the file at ``path``. Returns its size in bytes.

    Raises InputError if there is no such run, OSError if the file can't be written.
    """
    data = report(runs).encode(errors="replace")
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return len(data)
