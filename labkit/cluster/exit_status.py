"""What a task of a job leaves behind about its end, where the launcher only sees the highest exit code."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["VARIABLE", "note_failure", "note_step"]

VARIABLE = "LABKIT_ENDING"  # a path; ``.failed`` and ``.step`` are added to it
FINAL_CODES = (1, 2)  # of a failed training, of bad input: a new start would end like this one


def note_failure(code: object, environment: Mapping[str, str] | None = None) -> None:
    """Write an exit code down that ends the job, whatever the other tasks end with. The first one stays."""
    if code in FINAL_CODES:
        _write_once(".failed", code, environment)


def note_step(step: int, environment: Mapping[str, str] | None = None) -> None:
    """Write down at which step a training stopped on request. Tasks in step all say the same."""
    _write_once(".step", step, environment)


def _write_once(suffix: str, value: object, environment: Mapping[str, str] | None) -> None:
    place = (os.environ if environment is None else environment).get(VARIABLE, "")
    if not place:
        return
    try:
        with open(Path(place + suffix), "x") as file:
            file.write(f"{value}\n")
    except FileExistsError:
        pass
    except OSError as error:  # the exit code still says it, if less reliably
        print(f"labkit: {place}{suffix} can't be written: {error.strerror}", file=sys.stderr)
