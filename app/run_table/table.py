"""The table of runs: its columns, and which run stands in which row.

The browser names a selected row by its number. So that a refresh never lets another run slip below the tick,
rows keep their numbers while something is selected, and the selection moves with its runs where they can't.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import streamlit as st

from app.state import clean
from labkit.config import fields_by_name
from labkit.run_directory.summary import RunSummary

FLAG, NUMBER, TEXT, TIME = pa.bool_(), pa.float64(), pa.string(), pa.timestamp("us", tz="UTC")


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return ``values`` as a column; None is null, and NaN is NaN.

    Args:
        values: bool, number, text, whole microseconds since 1970, or a list of one of these.
        kind: ``FLAG``, ``NUMBER``, ``TEXT``, ``TIME``, or ``pyarrow.list_`` of one of them.
    """
    parts: list[pa.Buffer] = [_bits(value is not None for value in values)]
    inner = []
    if pa.types.is_list(kind):
        lists = [value or () for value in values]
        parts.append(_offsets(lists))
        inner.append(column(list(chain.from_iterable(lists)), kind.value_type))
    elif kind == TEXT:
        texts = [(value or "").encode() for value in values]
        parts += [_offsets(texts), pa.py_buffer(b"".join(texts))]
    elif kind == FLAG:
        parts.append(_bits(values))
    else:
        dtype = np.float64 if kind == NUMBER else np.int64
        parts.append(pa.py_buffer(np.array([0 if value is None else value for value in values], dtype)))
    return pa.Array.from_buffers(kind, len(values), parts, children=inner)


def _bits(flags: Iterable[Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(list(map(bool, flags)), bool), bitorder="little"))


def _offsets(parts: Sequence[Sequence[Any]]) -> pa.Buffer:
    return pa.py_buffer(np.cumsum([0, *map(len, parts)], dtype=np.int32))


NO_VALUE = "–"
MAX_INTEGER = 2**53  # up to which a float holds each whole number
REASONS = ("failed", "lost", "stalled")  # states whose reason stands beside them


@dataclass(frozen=True)
class Column:
    """One column: its title, the value of a run (None if unknown), how Streamlit shows it, and its type."""

    title: str
    value: Callable[[RunSummary], Any]
    shown: Callable[[str], Any]
    type: pa.DataType = TEXT


def _text(width: Any = None, **settings: Any) -> Callable[[str], Any]:
    return lambda title: st.column_config.TextColumn(title, width=width, **settings)


def _number(form: str, help: str | None = None, width: Any = None) -> Callable[[str], Any]:
    return lambda title: st.column_config.NumberColumn(title, format=form, help=help, width=width)


def _state(summary: RunSummary) -> str:
    # A configuration of another program is no damage to the state; its columns are empty.
    has_reason = summary.state in REASONS or (summary.damage and summary.settings is not None)
    reason = f": {summary.message}" if summary.message and has_reason else ""
    return summary.state + reason


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _steps(summary: RunSummary) -> str | None:
    if summary.step is None:
        return None
    return f"{summary.step:,}" + (f" of {summary.total_steps:,}" if summary.total_steps else "")


def _settings(summary: RunSummary) -> str | None:
    if not summary.settings:
        return None
    return ", ".join(f"{name} {value}" for name, value in summary.settings.items())


COLUMNS = {
    "state": Column("State", _state, _text(90)),
    "progress": Column(
        "Progress",
        lambda run: _percent(run.progress),
        lambda title: st.column_config.ProgressColumn(
            title, format="%.0f %%", min_value=0, max_value=100, width=110
        ),
        type=NUMBER,
    ),
    "loss_curve": Column(
        "Loss curve",
        lambda run: list(run.spark) or None,
        lambda title: st.column_config.LineChartColumn(
            title, help="Training loss over the run, each curve with its own scale.", width=140
        ),
        type=pa.list_(NUMBER),
    ),
    "training_loss": Column(
        "Training loss",
        lambda run: run.training_loss,
        _number("%.4g", "Of the last step, in nats."),
        type=NUMBER,
    ),
    "best_validation": Column(
        "Best validation",
        lambda run: _percent(run.best_validation_accuracy),
        _number("%.2f %%", "Highest validation accuracy."),
        type=NUMBER,
    ),
    "error": Column(
        "Mean absolute error",
        lambda run: run.mean_absolute_error,
        _number("%.4g", "Of labels that are numbers: on the test set, before its evaluation on validation."),
        type=NUMBER,
    ),
    "test": Column("Test accuracy", lambda run: _percent(run.test_accuracy), _number("%.2f %%"), type=NUMBER),
    "active": Column(
        "Last active",
        lambda run: int(1e6 * run.last_active) if _is_time(run.last_active) else None,
        lambda title: st.column_config.DatetimeColumn(title, format="distance", width=120),
        type=TIME,
    ),
    "duration": Column(
        "Duration",
        lambda run: None if run.duration is None else run.duration / 60,
        _number("%.1f min", "Time of training in all sessions, without the pauses between them."),
        type=NUMBER,
    ),
    "dataset": Column("Data set", lambda run: run.dataset, _text()),
    "model": Column("Model", lambda run: run.model, _text()),
    "tags": Column(
        "Tags",
        lambda run: list(run.notes.tags),
        lambda title: st.column_config.ListColumn(title),
        type=pa.list_(TEXT),
    ),
    "note": Column("Note", lambda run: run.notes.note or None, _text("medium")),
    "steps": Column("Steps", _steps, _text()),
    "speed": Column("Examples per second", lambda run: run.examples_per_second, _number("%.0f"), type=NUMBER),
    "settings": Column("Settings", _settings, _text("large", help="Those that differ from the defaults.")),
    "forked_from": Column("Forked from", lambda run: run.forked_from, _text("medium")),
    "reason": Column("Message", lambda run: run.message or None, _text("medium")),
    "archived": Column(
        "Archived",
        lambda run: run.notes.archived,
        lambda title: st.column_config.CheckboxColumn(title),
        type=FLAG,
    ),
    "path": Column("Directory", lambda run: run.path, _text("large")),
}
DEFAULT = (
    "state",
    "test",
    "best_validation",
    "training_loss",
    "loss_curve",
    "progress",
    "duration",
    "active",
    "dataset",
    "model",
    "tags",
)
# The columns to choose from and their titles: these, and each field of the configuration.
CHOICES = {name: column.title for name, column in COLUMNS.items()} | {
    name: name for name in fields_by_name() if name not in COLUMNS
}


def _is_time(seconds: float) -> bool:
    return 0 < seconds < 4e9  # the year 2096


def rows_of(runs: Sequence[RunSummary], columns: Sequence[str]) -> pa.Table:
    """Return a row for each run, with its name and the chosen columns. Unknown is null, and NaN is NaN."""
    parts = {"name": column([clean(run.name) for run in runs], TEXT)}
    for name in columns:
        if known := COLUMNS.get(name):
            parts[name] = column([_cleaned(known.value(run)) for run in runs], known.type)
        else:
            parts[name] = setting_column([run.values.get(name) for run in runs])
    return pa.table(parts)


def _cleaned(value: Any) -> Any:
    if isinstance(value, list):
        return [_cleaned(part) for part in value]
    return clean(value) if isinstance(value, str) else value


def setting_column(values: list[Any]) -> pa.Array:
    """Return a setting of the configuration: numbers if it is one everywhere, otherwise text."""
    if all(value is None or _is_number(value) for value in values):
        return column(values, NUMBER)
    return column([None if value is None else clean(value) for value in values], TEXT)


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= MAX_INTEGER
    return isinstance(value, float)


def column_config(columns: Sequence[str]) -> dict[str, Any]:
    """Return how each column is shown."""
    shown: dict[str, Any] = {"name": st.column_config.TextColumn("Run", pinned=True, width=150)}
    for name in columns:
        known = COLUMNS.get(name)
        shown[name] = known.shown(known.title) if known else st.column_config.Column(name)
    return shown


def _merged(before: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return ``before`` with what is new in ``wanted`` in its place; what is first there comes first."""
    old, top, waiting = set(before), list[str](), list[str]()
    above: dict[str, list[str]] = {}
    for path in wanted:
        if path not in old:
            waiting.append(path)
            continue
        if above:
            above[path] = waiting
        else:
            top, above[path] = waiting, []
        waiting = []
    placed = [one for path in before for one in (*above.get(path, ()), path)]
    return [*top, *placed, *waiting]


@dataclass(frozen=True)
class Rows:
    """The runs in the order of the rows, by their paths, and the numbers of the selected rows.

    ``moved``: whether the numbers of selected rows are others than those that were given.
    """

    order: tuple[str, ...] = ()
    selected: tuple[int, ...] = ()
    moved: bool = False

    @property
    def chosen(self) -> list[str]:
        """The paths of the selected runs."""
        return [self.order[row] for row in self.selected]


def arranged(before: Sequence[str], selected: Sequence[int], wanted: Sequence[str]) -> Rows:
    """Return the rows of the next table.

    Args:
        before: paths in the order of the table that is shown.
        selected: numbers of its selected rows.
        wanted: paths of the runs to show, in their best order.
    """
    old, new = set(before), set(wanted)
    chosen = [before[row] for row in sorted(selected) if row < len(before) and before[row] in new]
    added = [path for path in wanted if path not in old]
    if old <= new:
        order = [*before, *added] if chosen else _merged(before, wanted)
    else:  # what is left keeps its order, so that a sorted or scrolled table stays as it is
        left = [path for path in before if path in new]
        order = [*left, *added] if 2 * len(left) >= len(new) else list(wanted)
    places = {path: row for row, path in enumerate(order)}
    rows = tuple(places[path] for path in chosen)
    return Rows(tuple(order), rows, rows != tuple(sorted(selected)))
