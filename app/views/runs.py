"""The first page: a table of all runs, to find, select, compare, tag and tidy them."""

import shlex
from collections.abc import Sequence

import streamlit as st

from app import state
from app.markup import plain
from app.run_table import actions, table
from app.run_table.actions import show_trash
from app.run_table.table import Rows, arranged
from labkit.config import field_aliases
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import chosen_runs
from labkit.run_directory.summary import RunSummary

REFRESH_SECONDS = 3.0
READ_SECONDS = 0.5  # the longest that metrics are read before the page is drawn; the rest follows
MAX_ROWS_SHOWN = 16  # without scrolling
HEIGHT = 560  # pixels of a longer table
TABLE, ORDER = "runs-table", "runs-order"


def page() -> None:
    """Draw the table of the runs."""
    actions.follow_link()
    st.subheader("Runs", anchor=False)
    runs = state.listed_runs()
    found = state.summaries(runs.values(), READ_SECONDS)
    _watch(found)
    actions.report()
    if not runs:
        state.say_no_runs()
    else:
        _controls_and_table(runs, found)
    show_trash()


def _controls_and_table(runs: dict[str, RunDirectory], found: list[RunSummary]) -> None:
    text, shown, archived = _controls()
    hidden = sum(summary.notes.archived for summary in found)
    listed = found if archived else [summary for summary in found if not summary.notes.archived]
    try:
        wanted = chosen_runs(listed, shlex.split(text), field_aliases()) if text.strip() else listed
    except InputError as error:
        wanted, why = listed, state.clean(error).replace("--filter", "the filter")
        st.error(plain(f"All runs are shown: {why}"), icon=":material/filter_alt_off:")
    except ValueError:
        wanted, why = listed, "the filter has a quotation mark without its partner."
        st.error(f"All runs are shown: {why}", icon=":material/filter_alt_off:")
    by_path = {summary.path: summary for summary in wanted}
    rows = _rows(list(by_path))
    actions.bar(
        [by_path[path] for path in rows.chosen], {str(run.path): label for label, run in runs.items()}
    )
    if not wanted:
        st.info(_why_nothing(len(listed), hidden, text))
        return
    _table([by_path[path] for path in rows.order], shown)
    st.caption(_counts(found, wanted, 0 if archived else hidden))


def _controls() -> tuple[str, list[str], bool]:
    """Draw the filter and the choice of columns. Returns text, columns, whether to show archived runs."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Filter",
            key="filter",
            bind="query-params",
            placeholder="resnet state=finished accuracy>0.8",
            help="Words in the name, state, data set, model, tags or note; and conditions on a field or "
            "setting, such as `state=running`, `tag=paper`, `accuracy>0.8`, `learning_rate<0.1`, `age<2h`. "
            "All of them must fit. The same as `labkit runs --filter`.",
            width=420,
        )
        with st.popover("Columns", icon=":material/view_column:"):
            shown = st.multiselect(
                "Columns",
                list(table.CHOICES),
                default=list(table.DEFAULT),
                format_func=table.CHOICES.__getitem__,
                key="columns",
                bind="query-params",
                help="Also each setting of the configuration.",
                width=420,
            )
        archived = st.toggle(
            "Archived", key="archived", bind="query-params", help="Shows archived runs, too."
        )
    return text, shown, archived


def _rows(wanted: list[str]) -> Rows:
    """Return which run stands in which row, and keep the selection on its runs."""
    before: tuple[str, ...] = st.session_state.get(ORDER, ())
    selection = st.session_state.get(TABLE, {}).get("selection", {})
    rows = arranged(before, selection.get("rows", []), wanted)
    if rows.moved:
        st.session_state[TABLE] = {"selection": {"rows": list(rows.selected), "columns": [], "cells": []}}
    st.session_state[ORDER] = rows.order
    return rows


def _table(rows: Sequence[RunSummary], shown: Sequence[str]) -> None:
    if "test" in shown and any(row.mean_absolute_error is not None for row in rows):
        shown = list(dict.fromkeys([*shown[: shown.index("test")], "error", *shown]))
    st.dataframe(
        table.rows_of(rows, shown),
        key=TABLE,
        hide_index=True,
        placeholder=table.NO_VALUE,
        on_select=_open_clicked,
        selection_mode=["multi-row", "single-cell"],
        column_config=table.column_config(shown),
        height="content" if len(rows) <= MAX_ROWS_SHOWN else HEIGHT,
    )


def _open_clicked() -> None:
    """Open the run whose name was clicked."""
    selection = st.session_state[TABLE]["selection"]
    clicked = [row for row, column in selection.get("cells", []) if column == "name"]
    if clicked and clicked[0] < len(order := st.session_state.get(ORDER, ())):
        labels = {str(run.path): label for label, run in state.listed_runs().items()}
        if order[clicked[0]] in labels:
            st.session_state[TABLE] = {"selection": {**selection, "cells": []}}
            actions.link("live", [labels[order[clicked[0]]]])


def _why_nothing(listed: int, hidden: int, text: str) -> str:
    if text.strip():
        return f"None of {counted(listed, 'run')} fits the filter. Empty it to see all."
    return f"All runs are archived ({hidden:,}). Switch on *Archived* to see them."


def _counts(found: Sequence[RunSummary], wanted: Sequence[RunSummary], hidden: int) -> str:
    parts = [counted(len(found), "run")]
    if len(wanted) + hidden < len(found):
        parts.append(f"{len(wanted):,} fit the filter")
    if hidden:
        parts.append(f"{hidden:,} archived, not shown")
    if unread := sum(not summary.complete for summary in found):
        parts.append(f"the metrics of {unread:,} are still being read")
    return " · ".join(parts)


def _watch(found: list[RunSummary]) -> None:
    """Draw the page again when something that it shows has changed. Otherwise nothing is sent to it."""

    def look() -> list[RunSummary]:
        return state.summaries(state.listed_runs().values(), READ_SECONDS)

    state.watch("table", look, REFRESH_SECONDS, seen=found)
