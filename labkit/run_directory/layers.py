"""Read ``layers.jsonl`` of a run directory: what each layer of the network did, every few steps.

``docs/run-directory.md`` describes the lines.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from labkit.run_directory.files import Count
from labkit.run_directory.metrics import is_superseded
from labkit.run_directory.rows import ResumePoint, RowReader, number

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


@dataclass(eq=False)
class LayerReader(RowReader):
    """Follows ``layers.jsonl`` as ``RowReader`` does; ``poll`` returns the new ones as ``LayerRow``."""

    keep_rows: bool = False

    def parse(self, row: dict[str, Any]) -> LayerRow | None:
        """Return the row; None if it isn't in the format. Older files have no quantiles."""
        try:
            step = msgspec.convert(row.get("step"), Count)
            names = msgspec.convert(row.get("layers"), tuple[str, ...])
            missing = [None] * len(names)
            values = {name: msgspec.convert(row.get(name, missing), _VALUES) for name in QUANTITIES}
        except ValueError:
            return None
        if not names or len(set(names)) != len(names):
            return None
        if any(len(column) != len(names) for column in values.values()):
            return None
        time = number(row.get("wall_time"))
        quantiles = {name: _quantiles(row.get(name), len(names)) for name in DISTRIBUTIONS}
        return LayerRow(step, math.inf if time is None else time, names, values, quantiles)


_VALUES = tuple[float | None, ...]


def _quantiles(column: Any, layers: int) -> tuple[tuple[float, ...] | None, ...]:
    """Return the quantiles of each layer. Without a column in the format, each is None."""
    try:
        found = msgspec.convert(column, tuple[tuple[float, ...] | None, ...])
    except ValueError:
        found = ()
    whole = len(found) == layers and all(each is None or len(each) == len(LEVELS) for each in found)
    return found if whole else (None,) * layers


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
