"""Write a report to a file, whole or not at all."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.report.document import report
from labkit.run_directory import RunDirectory

__all__ = ["write_report"]


def write_report(runs: Sequence[RunDirectory], path: Path) -> int:
    """Write the report of ``runs``, replacing the file at ``path``. Returns its size in bytes.

    Raises InputError if there is no such run, OSError if the file can't be written.
    """
    data = report(runs).encode(errors="replace")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return len(data)
