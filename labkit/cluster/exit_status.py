"""Files in which a task records how it ended, for launchers that see only the highest code of all tasks."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["FINAL_CODES", "VARIABLE", "record_failure", "record_stop"]

VARIABLE = "LABKIT_EXIT_STATUS"  # a path, to which ``.failed`` or ``.step`` is added
FINAL_CODES = (1, 2)  # failed training, bad input: a new start would end the same way


def record_failure(code: object, environment: Mapping[str, str] | None = None) -> None:
    """Record an exit code that ends the whole job, if it is one. The first task's code is kept."""
    if code in FINAL_CODES:
        _write_once(".failed", code, environment)


def record_stop(step: int, environment: Mapping[str, str] | None = None) -> None:
    """Record the step at which training stopped on request. Synchronous workers all stop at the same one."""
    _write_once(".step", step, environment)


def _write_once(suffix: str, value: object, environment: Mapping[str, str] | None) -> None:
    path = (os.environ if environment is None else environment).get(VARIABLE, "")
    if not path:
        return
    try:
        with open(Path(path + suffix), "x") as file:
            file.write(f"{value}\n")
    except FileExistsError:
        pass
    except OSError as error:  # the exit code alone has to do
        print(f"labkit: {path}{suffix} can't be written: {error.strerror}", file=sys.stderr)
