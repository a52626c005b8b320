"""Rows of a run, one JSON object a line: what is written, and how such a file is followed.

Every line is JSON that any parser reads. A number that isn't finite is ``null``, and ``not_finite`` says
which: ``{"loss": null, "not_finite": {"loss": "Infinity"}}``.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from labkit.run_directory.files import AppendedLines, parse_json

NOT_FINITE = "not_finite"
# The metrics of an evaluation. Which of them a row has depends on the loss (docs/run-directory.md).
EVALUATION_METRICS = (
    "loss", "accuracy", "top5_accuracy", "binary_accuracy", "f1_micro", "f1_macro", "mean_absolute_error",
    "r2",
)  # fmt: skip
_RESULTS = ("accuracy", "mean_absolute_error")
_PLACE = re.compile(r"\[(\d{1,9})\]")


# ---- what is written --------------------------------------------------------------------------------------


def as_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON."""
    try:
        return json.dumps(row, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(valid(row), allow_nan=False) + "\n"


def valid(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with ``null`` for each number that isn't finite, and ``not_finite`` if there are any."""
    names: dict[str, str] = {}

    def finite(value: Any, name: str) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            names[name] = json.dumps(value)
            return None
        if isinstance(value, list | tuple):
            return [finite(part, f"{name}[{place}]") for place, part in enumerate(value)]
        if isinstance(value, dict):
            return {key: finite(part, f"{name}[{key}]") for key, part in value.items()}
        return value

    values = {name: finite(value, name) for name, value in row.items()}
    return values | ({NOT_FINITE: names} if names else {})


def restored(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that was read, with the numbers of its ``not_finite`` as ``valid`` made it."""
    names = row.pop(NOT_FINITE, None)
    for name, word in names.items() if isinstance(names, dict) else ():
        if word not in ("NaN", "Infinity", "-Infinity"):
            continue
        holder: Any = row
        keys: list[Any] = [name]
        if name not in row:  # a place in a list
            keys = [name.partition("[")[0], *map(int, _PLACE.findall(name))]
        with suppress(LookupError, TypeError):
            for key in keys[:-1]:
                holder = holder[key]
            if holder[keys[-1]] is None:
                holder[keys[-1]] = float(word)
    return row


# ---- what is read -----------------------------------------------------------------------------------------


def number(value: Any) -> float | None:
    """Return ``value`` if it is a finite number, otherwise None."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 1e300 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_step(value: Any) -> bool:
    """Return whether ``value`` is a number of steps, as float64 knows it too."""
    return type(value) is int and 0 <= value < 2**53


def is_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a split and a step, and an evaluation no metric that isn't a number."""
    metrics = () if row.get("split") == "train" else EVALUATION_METRICS
    return (
        isinstance(row.get("split"), str)
        and is_step(row.get("step"))
        and all(type(row[name]) in (int, float) for name in metrics if name in row)
    )


def result_name(row: Mapping[str, Any]) -> str:
    """Return the metric of a row that counts: ``accuracy``, or ``mean_absolute_error`` of numbers."""
    return next((name for name in _RESULTS if name in row), _RESULTS[0])


class ResumePoint(NamedTuple):
    """Where a run was resumed. Rows of later steps that were written before it no longer count.

    ``step``: the step of the checkpoint. ``wall_time``: when, in seconds since the epoch; NaN if unknown.
    """

    step: int
    wall_time: float


def resume_point_of(row: Mapping[str, Any]) -> ResumePoint | None:
    """Return the resume point of a row that has ``resumed_at_step``; None if it is damaged."""
    step, wall_time = row["resumed_at_step"], number(row.get("wall_time"))
    if not is_step(step):
        return None
    return ResumePoint(step, math.nan if wall_time is None else float(wall_time))


@dataclass(eq=False)
class RowReader(AppendedLines):
    """Follows a file of rows: each poll reads only the bytes that were appended since the last one.

    Lines that aren't rows are skipped and counted in ``damaged_lines``. ``rows`` has all rows, unless
    ``keep_rows`` is False: the caller then stores what ``poll`` returns, and drops all that it has when
    ``generation`` has grown, because the file was replaced.
    """

    rows: list[Any] = field(default_factory=list)
    damaged_lines: int = 0
    keep_rows: bool = True

    def poll(self, max_bytes: int | None = None) -> list[Any]:
        """Read what was appended since the last call, and return the new rows.

        A file that was replaced, rewritten or truncated is read from its beginning. A missing file has no
        rows; other errors are raised as OSError.

        Args:
            max_bytes: the most to read in one call, though a longer line is still read whole;
                ``caught_up`` then tells whether the end was reached. None reads to the end.
        """
        generation = self.generation
        lines = self.read(max_bytes)
        if self.generation != generation:
            self.rows, self.damaged_lines = [], 0
        values = list(parse_lines(lines.split(b"\n")))
        rows = (self.parse(restored(value)) for value in values if isinstance(value, dict))
        fresh = [row for row in rows if row is not None]
        self.damaged_lines += len(values) - len(fresh)
        if self.keep_rows:
            self.rows += fresh
        return fresh

    def parse(self, row: dict[str, Any]) -> Any:
        """Return what ``poll`` returns for a row; None if it is damaged. A subclass may know more."""
        return row


def parse_lines(lines: Iterable[bytes]) -> Iterator[Any]:
    """Yield the value of each line that isn't blank; None for a line that isn't JSON."""
    for line in lines:
        if line.strip():
            try:
                yield parse_json(line)
            except (ValueError, RecursionError):
                yield None
