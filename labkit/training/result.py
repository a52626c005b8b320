"""What a call of training returns."""

from dataclasses import dataclass
from typing import Any

from labkit.run_directory import RunDirectory

__all__ = ["TrainResult"]


@dataclass(frozen=True)
class TrainResult:
    """How a call of training ended.

    ``state``: finished, interrupted or failed. ``step``: completed steps. ``message``: one line for
    people. ``test``: the metrics row of the test set, None where it wasn't evaluated. ``signal_number``:
    what interrupted it. ``did_work``: False where the run was finished before.
    """

    state: str
    run: RunDirectory
    step: int
    message: str
    test: dict[str, Any] | None = None
    signal_number: int | None = None
    did_work: bool = True
