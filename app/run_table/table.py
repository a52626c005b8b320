"""The table of runs: its columns and groups, their order, and the component that draws such a table.

The browser names rows by keys, the paths of runs, so that a tick never moves to another run.
"""

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st

from app import address
from app.markup import STATES, component, duration, number_text, visible
from app.state import clean
from labkit.analysis.inference import Spread
from labkit.analysis.results import (
    MEASURES,
    Group,
    Result,
    differing,
    grouped,
    result_of,
    spread_text,
    value_text,
)
from labkit.config import fields_by_name
from labkit.run_directory.summary import RunSummary

SCRIPT = Path(__file__).parent / "assets" / "table.js"
REASONS = ("failed", "lost", "stalled")  # states whose reason stands beside them
Entry = TypeVar("Entry")
SPARK = 100  # the height of a loss curve, in units of its drawing


def text_of(value: Any) -> str:
    """Return a value as text without marks that could change what is beside it."""
    return visible(clean(value_text(value) if isinstance(value, bool | float) else value))


def _number(form: str) -> Callable[[float], str]:
    return lambda value: number_text(value, form)


@dataclass(frozen=True)
class Column:
    """One column of the table.

    Attributes:
        title: what stands above it.
        value: of a run, by which rows are sorted and grouped; None if unknown.
        shown: what the browser gets of a value: no number may be NaN or infinite there.
        kind: how the browser shows that, see assets/table.js.
        help: more about the title.
        measure: of ``labkit.analysis.results``, whose mean and spread a group shows; "" where that says
            nothing. ``instead``: the one that it shows where no run has that.
        together: what a group shows otherwise; None: the value that all its runs have.
    """

    title: str
    value: Callable[[Any], Any]
    shown: Callable[[Any], Any] = text_of
    kind: str = "text"
    help: str = ""
    measure: str = ""
    instead: str = ""
    together: Callable[[Group], str] | None = None


def _state(summary: RunSummary) -> tuple[str, str]:
    # A configuration of another program is no damage to the state; its columns are empty.
    has_reason = summary.state in REASONS or (summary.damage and summary.settings is not None)
    return summary.state, summary.message if has_reason else ""


def _state_shown(value: tuple[str, str]) -> list[str]:
    state, reason = value
    _, color, icon, _ = STATES.get(state, STATES["no status"])
    return [text_of(state), icon.strip(":").removeprefix("material/"), color, text_of(reason)]


def _curve_shown(losses: Sequence[float]) -> dict[str, Any] | None:
    """Return a curve as heights of 0 to ``SPARK``; None without a finite loss."""
    known = [loss for loss in losses if math.isfinite(loss)]
    if not known:
        return None
    low, high = min(known), max(known)
    scale = SPARK / (high - low or 1)
    heights = [round(scale * (loss - low)) for loss in known]
    return {"heights": heights, "label": f"{known[0]:.4g} to {known[-1]:.4g}"}


def _settings(summary: RunSummary) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in (summary.settings or {}).items()) or None


COLUMNS = {
    "state": Column("State", _state, _state_shown, "state"),
    "progress": Column(
        "Progress",
        lambda run: run.progress,
        lambda done: min(round(100 * done), 99 + (done == 1)),  # 100 % is the last step
        "progress",
    ),
    "loss_curve": Column(
        "Loss curve", lambda run: run.spark or None, _curve_shown, "curve", "Each with its own scale."
    ),
    "training_loss": Column(
        "Training loss",
        lambda run: run.training_loss,
        number_text,
        "number",
        "Of the last step.",
        "training_loss",
    ),
    "best_validation": Column(
        "Best validation",
        lambda run: run.best_validation_accuracy,
        _number(".2%"),
        "number",
        "Highest validation accuracy.",
        "best_validation",
    ),
    "error": Column(
        "Mean absolute error",
        lambda run: run.mean_absolute_error,
        number_text,
        "number",
        "Of labels that are numbers: on the test set, before its evaluation on validation.",
        "test_mean_absolute_error",
        "validation_mean_absolute_error",  # no mean is of runs on different splits
    ),
    "test": Column(
        "Test accuracy", lambda run: run.test_accuracy, _number(".2%"), "number", measure="test_accuracy"
    ),
    "active": Column(
        "Last active",
        lambda run: run.last_active if 0 < run.last_active < 4e9 else None,  # the year 2096
        round,
        "time",
    ),
    "duration": Column(
        "Duration", lambda run: run.duration, duration, "number", "In all sessions, without the pauses."
    ),
    "dataset": Column("Data set", lambda run: run.dataset),
    "model": Column("Model", lambda run: run.model),
    "tags": Column("Tags", lambda run: run.notes.tags or None, lambda tags: [*map(text_of, tags)], "tags"),
    "note": Column("Note", lambda run: run.notes.text or None),
    "steps": Column(
        "Steps",
        lambda run: None if run.step is None else (run.step, run.total_steps),
        lambda steps: " of ".join(f"{step:,}" for step in steps[: 1 + bool(steps[1])]),
        "number",
    ),
    "speed": Column("Examples per second", lambda run: run.examples_per_second, _number(",.0f"), "number"),
    "settings": Column("Settings", _settings, help="Those that differ from the defaults."),
    "forked_from": Column("Forked from", lambda run: run.forked_from),
    "reason": Column("Message", lambda run: run.message or None),
    "archived": Column("Archived", lambda run: run.notes.archived),
    "path": Column("Directory", lambda run: run.path),
}
NAME = Column("Run", lambda run: run.name)
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
SETTINGS = ("dataset", "model", *(name for name in fields_by_name() if name not in COLUMNS))
# The columns to choose from and their titles: these, and each field of the configuration.
CHOICES = {name: column.title for name, column in COLUMNS.items()} | {
    name: name for name in SETTINGS if name not in COLUMNS
}
BUT_SEED = "all-but-seed"
GROUPS = {BUT_SEED: "All but the seed"} | {name: CHOICES[name] for name in SETTINGS}


def settings_of_others(runs: Iterable[RunSummary]) -> dict[str, str]:
    """Return settings of runs of other programs, as ``CHOICES`` has those of labkit."""
    names = {name for run in runs if run.recorded_by for name in run.values} - {"name", BUT_SEED, *CHOICES}
    return {name: text_of(name) for name in sorted(names)}


def column_of(name: str, runs: Iterable[RunSummary] = ()) -> Column:
    """Return a column by its name. A setting that is a number in all of ``runs`` stands on the right."""
    return NAME if name == "name" else COLUMNS.get(name) or setting_column(name, runs)


def setting_column(name: str, entries: Iterable[Any]) -> Column:
    """Return the column of a setting in the ``values`` of runs or trials."""
    known = [value for entry in entries if (value := entry.values.get(name)) is not None]
    numbers = bool(known) and all(type(value) in (int, float) for value in known)
    return Column(name, lambda entry: entry.values.get(name), kind="number" if numbers else "text")


def in_order(
    entries: Iterable[Entry],
    sort: str,
    value: Callable[[Column, Entry], Any],
    columns: Callable[[str], Column] = column_of,
) -> list[Entry]:
    """Return the entries by their values; those without one, or with NaN, come last in both directions.

    Args:
        entries: runs or groups, in the order that holds where values are equal.
        sort: the name of a column, behind a minus for the highest first; "": as they are.
        value: of an entry in a column.
        columns: gives a column by its name.
    """
    if not sort:
        return list(entries)
    column = columns(sort.removeprefix("-"))
    ranked = [(_rank(value(column, entry)), entry) for entry in entries]
    known = [pair for pair in ranked if pair[0] is not None]
    known.sort(key=itemgetter(0), reverse=sort.startswith("-"))
    return [entry for _, entry in known] + [entry for rank, entry in ranked if rank is None]


def _rank(value: Any) -> tuple[int, float, str] | None:
    if isinstance(value, tuple) and value and isinstance(value[0], int):  # of how many steps
        value = value[0]
    if isinstance(value, int | float):  # before texts; isnan takes no int above 1e308
        return None if value != value else (0, value, "")
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value or "")
    return (1, 0, text.casefold()) if text else None


# ---- groups ----------------------------------------------------------------------------------------------


def results_of(runs: Mapping[str, RunSummary], known: Mapping[str, Result]) -> dict[str, Result]:
    """Return the results of the runs by their labels. Those in ``known`` that haven't changed are kept."""
    return {
        label: found if (found := known.get(label)) and found.summary is run else result_of(label, run)
        for label, run in runs.items()
    }


def groups_of(results: Sequence[Result], by: Sequence[str]) -> list[Group]:
    """Return the runs in groups that have one value of each of ``by``, which are keys of ``GROUPS``."""
    differ = differing(results) if BUT_SEED in by else {}
    # What differs most comes first in the names; what other programs didn't record comes last.
    variety = {name: len({*map(repr, values)} - {"None"}) for name, values in differ.items()}
    settings = {name: differ[name] for name in sorted(differ, key=variety.__getitem__, reverse=True)}
    for name in by:
        if name != BUT_SEED:
            settings[name] = [column_of(name).value(result.summary) for result in results]
    return grouped(results, settings=settings)


def _spread(column: Column, group: Group) -> Spread | None:
    return group.spread(column.measure) or (group.spread(column.instead) if column.instead else None)


def group_value(column: Column, group: Group) -> Any:
    """Return the mean of what is measured, otherwise the value that all its runs have; "" if they differ."""
    if column.value is NAME.value:
        return group.name
    if column.measure and (found := _spread(column, group)):
        return found.mean
    first, *others = (column.value(result.summary) for result in group.results)
    return first if all(other == first for other in others) else ""


def _group_cell(column: Column, group: Group) -> Any:
    if column.measure and (found := _spread(column, group)):
        return spread_text(column.measure, found)
    if column.together:
        return column.together(group)
    value = group_value(column, group)
    return group.state if value == "" and column.kind == "state" else _cell(column, value)


# ---- rows ------------------------------------------------------------------------------------------------


def _cell(column: Column, value: Any) -> Any:
    return value if value is None or value == "" else column.shown(value)


def row(key: str, name: str, entry: Any, columns: Iterable[Column], **more: Any) -> dict[str, Any]:
    """Return a row of the table: of a run, or of what else has a name and the values of the columns.

    ``more``: ``texts``, by the names of the fields, where they can be changed in place; see assets/table.js.
    """
    cells = [_cell(column, column.value(entry)) for column in columns]
    return {"key": key, "name": text_of(name), "cells": cells, **more}


def run_rows(
    runs: Mapping[str, RunSummary], columns: Iterable[Column], sort: str, **more: Any
) -> list[dict[str, Any]]:
    """Return a row for each of the runs, which are given by their labels."""
    columns = list(columns)
    entries = in_order(runs.items(), sort, lambda column, entry: column.value(entry[1]))
    return [
        row(run.path, label, run, columns, href=address.live_address(label), **more) for label, run in entries
    ]


def group_rows(
    groups: Iterable[Group], by: Sequence[str], columns: Iterable[Column], sort: str
) -> list[dict[str, Any]]:
    """Return a row for each group of ``groups_of``, each before the rows of its runs."""
    columns, rows = list(columns), []
    for group in in_order(groups, sort, group_value):
        key = repr((by, min(result.summary.path for result in group.results)))
        cells = [_group_cell(column, group) for column in columns]
        rows.append({"key": key, "name": text_of(group.name), "runs": len(group.results), "cells": cells})
        members = {result.label: result.summary for result in group.results}
        rows += run_rows(members, columns, sort, group=key)
    return rows


# ---- the component ---------------------------------------------------------------------------------------


def draw(
    columns: Mapping[str, Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    key: str,
    label: str,
    name: Column = NAME,
    view: Hashable = (),
    sort: str | None = None,
    on_sort: Callable[[str], None] = lambda sort: None,
    on_open: Callable[[str], None] = lambda row: None,
    on_edit: Callable[[str, Mapping[str, str], Mapping[str, str]], str | None] | None = None,
    on_eye: Callable[[str, bool], None] | None = None,
) -> None:
    """Draw a table whose rows have boxes to tick.

    Args:
        columns: by their names, without that of the names of the rows.
        rows: of ``run_rows`` or ``group_rows``.
        key: of the component; ``ticked`` reads the keys of the ticked rows.
        label: what the table is, for screen readers.
        name: the column of the names of the rows.
        view: what the rows depend on beside the runs. While it stays, rows that are there keep their places.
        sort: as ``in_order`` takes it; None: it can't be sorted.
        on_sort: is called with the new ``sort`` after a click on a header.
        on_open: is called with the key of the row after a click on a name.
        on_edit: is called with the key of the row, the ``texts`` that it had, and those that were changed in
            place; a new name is one, too. Returns the key of the row from then on; None: it refuses, and the
            fields stay open. Without it, nothing can be changed.
        on_eye: is called after a click on the eye of a row, or on that of all rows, with the name of the row,
            or "", and whether its curve shall be shown. None: there are no eyes.
    """

    def said(event: str) -> Any:
        return st.session_state[key][event]

    def edited() -> None:
        row, stamp, *texts = (said("edited")[part] for part in ("key", "stamp", "before", "now"))
        before, now = ({str(name): str(text) for name, text in part.items()} for part in texts)
        st.session_state[f"{key}-answer"] = [stamp, on_edit(str(row), before, now) if on_edit else None]

    heads = [
        {
            "name": key_of,
            "title": text_of(one.title),
            "kind": one.kind,
            "help": one.help,
            "high": bool(one.measure) and MEASURES[one.measure].better > 0,
        }
        for key_of, one in {"name": name, **columns}.items()
    ]
    data: dict[str, Any] = {"label": label, "columns": heads, "rows": rows, "ticked": ticked(key)}
    data |= {"sort": sort, "view": repr((view, sort)), "eyes": on_eye is not None}
    data |= {"edits": on_edit is not None, "answer": st.session_state.get(f"{key}-answer")}
    component(SCRIPT)(
        key=key,
        data=json.dumps(data).encode(),  # in a dictionary Streamlit looks for data frames, and imports pandas
        height="content",
        on_ticked_change=lambda: None,
        on_sorted_change=lambda: on_sort(str(said("sorted"))),
        on_opened_change=lambda: on_open(str(said("opened"))),
        on_edited_change=edited,
        on_eyed_change=lambda: on_eye and on_eye(str(said("eyed")["name"]), bool(said("eyed")["shown"])),
    )


def ticked(key: str) -> list[str]:
    """Return the keys of the rows that are ticked in the table ``key``; they may not be there any more."""
    found = getattr(st.session_state.get(key), "ticked", None)
    return [str(one) for one in found] if isinstance(found, list) else []
