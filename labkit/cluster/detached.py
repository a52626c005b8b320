"""Start a command that goes on when this process has ended."""

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from labkit.run_directory.files import open_run_file
from labkit.startup.child import import_path, python_command

__all__ = ["start_detached"]


def start_detached(
    arguments: Sequence[str], log: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[bytes]:
    """Start ``labkit`` with these arguments, in a session of its own and without input.

    It outlives this process, its terminal and a signal to its process group. No shell sees the arguments.

    Args:
        arguments: such as ``["resume", "/home/me/runs/first"]``.
        log: the file that its output is appended to.
        variables: additions to its environment.

    Raises OSError if the log can't be written or the system can't create a process.
    """
    # TF_CONFIG would make it a task of a cluster that this process may belong to.
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environment |= {"PYTHONPATH": import_path(), "PYTHONUNBUFFERED": "1", **variables}
    with open_run_file(log, "ab") as output:
        process = subprocess.Popen(
            python_command("-m", "labkit", *arguments),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # While this process lives, nobody else takes note of the end, and a zombie would stay.
    threading.Thread(target=process.wait, name="labkit detached", daemon=True).start()
    return process
