"""Start a command that ends with this process, even if this process is killed."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from labkit.cluster import subreaper
from labkit.startup.child import import_path

__all__ = ["start_reaped"]


def start_reaped(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    stdout: int | IO[Any] | None = subprocess.PIPE,
    stderr: int | IO[Any] | None = subprocess.STDOUT,
    folder: Path | None = None,
    prefix: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command that ends with this process, together with everything that it starts.

    Args:
        command: program and arguments.
        environment: of the command; None: that of this process.
        stdout, stderr: as for ``subprocess.Popen``.
        folder: where it runs; None: where this process does.
        prefix: the words of a program that runs another one, such as ``nsenter``, for the parent as well.
        pass_fds: open files of this process that the command gets under the same numbers.

    Returns its parent (``subreaper.py``), which ends as the command does, and the writing end of its control
    pipe: ``T`` terminates the command, ``K`` and the end of the pipe kill it. Raises OSError if the system
    can't create a process.
    """
    reading, control = os.pipe()
    try:
        process = subprocess.Popen(
            [
                *prefix,
                *(sys.executable, "-I", "-S", subreaper.__file__, str(reading), str(os.getpid())),
                *command,
            ],
            cwd=folder,
            env={
                "PYTHONPATH": import_path(),
                **(os.environ if environment is None else environment),
                "PYTHONUNBUFFERED": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(reading, *pass_fds),
            start_new_session=True,  # Ctrl-C in the terminal goes to this process, which passes it on
            bufsize=0,
        )
    except BaseException:
        os.close(control)
        raise
    finally:
        os.close(reading)
    return process, control
