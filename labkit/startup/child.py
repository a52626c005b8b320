"""The command line and the environment of child processes, and the files in which they say how they ended."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

# Environment variables. A path, to which ``.failed`` or ``.step`` is added, for launchers that see only the
# highest code of all tasks:
EXIT_STATUS = "LABKIT_EXIT_STATUS"
# An empty file for the sentence with which a command refuses (``labkit.startup.process.Child`` reads it).
# Taken out of the environment, because a notebook's kernel, say, doesn't refuse for the command that runs it:
REASON = "LABKIT_REASON"
_REASON_PATH = os.environ.pop(REASON, "")
# The step after which a training saves and ends, for ``labkit search``:
UNTIL_STEP = "LABKIT_UNTIL_STEP"
# The seconds of steps in this process, without its first, after which the next validation is its last:
UNTIL_SECONDS = "LABKIT_UNTIL_SECONDS"
FINAL_CODES = (1, 2)  # failed training, bad input: a new start would end the same way


def import_path() -> str:
    """Return the PYTHONPATH with which a child imports this labkit, whichever one is installed."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def python_command(*arguments: object) -> list[str]:
    """Return the command that runs this Python with ``arguments``, such as ``"-m", "labkit", "train"``.

    ``-P`` keeps the current folder off the module search path: a file there must not stand in for a module.
    """
    return [sys.executable, "-P", *map(str, arguments)]


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: that of this process with ``variables``.

    TF_CONFIG would make it a task of a cluster that this process may belong to.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return {**inherited, "PYTHONPATH": import_path(), "PYTHONUNBUFFERED": "1", **variables}


def record_failure(code: object, environment: Mapping[str, str] = os.environ) -> None:
    """Record an exit code that ends the whole job, if it is one. The first task's code is kept."""
    if code in FINAL_CODES:
        _write_once(".failed", code, environment)


def record_stop(step: int, environment: Mapping[str, str] = os.environ) -> None:
    """Record the step at which training stopped on request. Synchronous workers all stop at the same one."""
    _write_once(".step", step, environment)


def _write_once(suffix: str, value: object, environment: Mapping[str, str]) -> None:
    path = environment.get(EXIT_STATUS, "")
    if not path:
        return
    try:
        with open(Path(path + suffix), "x") as file:
            file.write(f"{value}\n")
    except FileExistsError:
        pass
    except OSError as error:  # the exit code alone has to do
        print(f"labkit: {path}{suffix} can't be written: {error.strerror}", file=sys.stderr)


def record_reason(sentence: str) -> None:
    """Leave the sentence with which this command refuses for the process that started it."""
    try:
        with open(_REASON_PATH, "r+", encoding="utf-8", errors="backslashreplace") as file:
            file.write(sentence)
            file.truncate()
    except OSError:  # nobody asked, or whoever asked has ended
        pass
