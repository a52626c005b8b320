"""Read ``layers.jsonl`` of a run directory: what each layer of the network did, every few steps.

``docs/run-directory.md`` describes the lines. Standard library only.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from labkit.run_directory.metrics import is_superseded
from labkit.run_directory.rows import ResumePoint, RowReader

__all__ = [
    "DISTRIBUTIONS",
    "LEVELS",
    "QUANTITIES",
    "LayerReader",
    "LayerRow",
    "layer_rows_that_count",
]

QUANTITIES = ("activation_mean", "activation_std", "zero_fraction", "gradient_norm", "update_ratio")
DISTRIBUTIONS = ("activation_quantiles", "gradient_quantiles", "weight_quantiles")
LEVELS = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)  # of the quantiles: the lowest to the highest


@dataclass(frozen=True)
class LayerRow:
    """One line of ``layers.jsonl``.

    ``layers``: the names in the order of the forward pass, each once. ``values``: of each of ``QUANTITIES``,
    one value for each layer. None: the layer has no such value. NaN and infinities are kept. ``wall_time`` is
    in seconds since the epoch; infinity if unknown. ``quantiles``: of each of ``DISTRIBUTIONS``, for each
    layer the values at ``LEVELS``, or None.
    """

    step: int
    wall_time: float
    layers: tuple[str, ...]
    values: dict[str, tuple[float | None, ...]]
    quantiles: dict[str, tuple[tuple[float, ...] | None, ...]]


class LayerReader:
    """Follows ``layers.jsonl``: each poll reads only what was appended, as ``RowReader`` does.

    The caller stores what ``poll`` returns, and drops it when ``generation`` has grown: the file was then
    replaced. Lines that aren't in the format are skipped and counted in ``damaged_lines``.
    """

    def __init__(self, path: Path) -> None:
        self._reader = RowReader(path, keep_rows=False)
        self._damaged = 0

    def poll(self, max_bytes: int | None = None) -> list[LayerRow]:
        """Return the rows that were appended since the last call. A missing file has none.

        Args:
            max_bytes: the most to read in one call; ``caught_up`` then tells whether the end was reached.

        Raises OSError if the file can't be read.
        """
        generation = self.generation
        lines = self._reader.poll(max_bytes)
        if self.generation != generation:
            self._damaged = 0
        rows = [row for row in map(_parse, lines) if row is not None]
        self._damaged += len(lines) - len(rows)
        return rows

    @property
    def generation(self) -> int:
        return self._reader.generation

    @property
    def caught_up(self) -> bool:
        return self._reader.caught_up

    @property
    def damaged_lines(self) -> int:
        return self._reader.damaged_lines + self._damaged


class _Timed(Protocol):
    @property
    def step(self) -> int: ...
    @property
    def wall_time(self) -> float: ...


Row = TypeVar("Row", bound=_Timed)


def layer_rows_that_count(rows: Iterable[Row], resume_points: Iterable[ResumePoint]) -> list[Row]:
    """Return the rows that count in order of step: the last one written for each step.

    Args:
        rows: in the order written.
        resume_points: of the run's ``metrics.jsonl``. Each makes earlier rows of later steps invalid.
    """
    points = list(resume_points)
    kept = {row.step: row for row in rows if not is_superseded(row.step, row.wall_time, points)}
    return [kept[step] for step in sorted(kept)]


def _parse(line: dict[str, Any]) -> LayerRow | None:
    step, names, wall_time = line.get("step"), line.get("layers"), line.get("wall_time")
    if type(step) is not int or not isinstance(names, list) or not names:
        return None
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        return None
    try:
        values = {name: _numbers(line.get(name, [None] * len(names))) for name in QUANTITIES}
        time = float(wall_time) if type(wall_time) in (int, float) else math.inf  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return None
    if any(len(column) != len(names) for column in values.values()):
        return None
    quantiles = {name: _quantiles(line.get(name), len(names)) for name in DISTRIBUTIONS}
    return LayerRow(step, time, tuple(names), values, quantiles)


def _numbers(column: Any) -> tuple[float | None, ...]:
    if not isinstance(column, list) or not {int, float, type(None)}.issuperset(map(type, column)):
        raise TypeError("not a list of numbers and nulls")
    return tuple(None if value is None else float(value) for value in column)


def _quantiles(column: Any, layers: int) -> tuple[tuple[float, ...] | None, ...]:
    """Return the quantiles of each layer. What isn't in the format, as in older files, is None."""
    if not isinstance(column, list) or len(column) != layers:
        return (None,) * layers
    return tuple(
        tuple(map(float, found))
        if isinstance(found, list) and len(found) == len(LEVELS) and {int, float}.issuperset(map(type, found))
        else None
        for found in column
    )
