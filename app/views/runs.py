"""The first page: a table of all runs, to find, select, compare, tag and tidy them."""

from collections.abc import Mapping, Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import address, state
from app.markup import plain
from app.run_table import actions, curves, kept_views, table
from app.run_table.actions import show_trash
from app.run_table.kept_views import View
from labkit.config import field_aliases
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory.find import chosen_runs
from labkit.run_directory.summary import RunSummary

REFRESH_SECONDS = 3.0
READ_SECONDS = 0.5  # the longest that metrics are read before the page is drawn; the rest follows
TABLE, SORT, RESULTS = "runs-table", "runs-sort", "runs-results"


def page() -> None:
    """Draw the table of the runs."""
    actions.follow_link()
    st.subheader("Runs", anchor=False)
    runs = state.listed_runs()

    def look() -> list[RunSummary]:
        return state.summaries(state.listed_runs().values(), READ_SECONDS)

    found = state.summaries(runs.values(), READ_SECONDS)
    state.watch("table", look, REFRESH_SECONDS, seen=found)
    with st.container():  # of each report, also an empty one: without it, the table below could be drawn anew
        actions.report()
    if not runs:
        state.say_no_runs()
    else:
        _controls_and_table({str(run.path): label for label, run in runs.items()}, found)
    show_trash()


def _controls_and_table(labels: dict[str, str], found: list[RunSummary]) -> None:
    view, choice = _controls(table.settings_of_others(found))
    hidden = sum(summary.notes.archived for summary in found)
    listed = found if view.archived else [summary for summary in found if not summary.notes.archived]
    wanted = listed
    with st.container():
        try:
            wanted = chosen_runs(listed, state.conditions_in(view.text), field_aliases())
        except InputError as error:
            st.error(plain(f"All runs are shown: {state.clean(error)}"), icon=":material/filter_alt_off:")
    ticked = set(table.ticked(TABLE))
    actions.bar([run for run in wanted if run.path in ticked], labels)
    if not wanted:
        none_fits = f"None of {counted(len(listed), 'run')} fits the filter. Empty it to see all."
        all_hidden = f"All runs are archived ({hidden:,}). Switch on *Archived* to see them."
        st.info(none_fits if view.text.strip() else all_hidden)
        return
    with st.container(key="runs-body"):
        with st.container(key="runs-table-and-counts"):
            drawn, rows = _table({labels[run.path]: run for run in wanted}, view)
            st.caption(_counts(found, wanted, 0 if view.archived else hidden))
        with st.container(key="runs-curves"):  # after the table, which doesn't wait for them
            curves.show(drawn, rows, {run.path: run for run in wanted}, choice)


def _controls(others: dict[str, str]) -> tuple[View, DeltaGenerator]:
    """Draw the filter, the choice of groups and columns, and the switch for archived runs.

    ``others``: settings of other programs, to choose from as well. Returns also the place beside them.
    """
    groups, columns = table.GROUPS | others, table.CHOICES | others
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Filter",
            key="filter",
            bind="query-params",
            placeholder="resnet state=finished accuracy>0.8",
            help="Words in the name, state, data set, model, tags or note; and conditions on a field or "
            "setting, such as `state=running`, `tag=paper`, `accuracy>0.8`, `learning_rate<0.1`, `age<2h`. "
            "All of them must fit. The same as `labkit runs --filter`.",
            width=205,
        )
        by = st.multiselect(
            "Group by",
            list(groups),
            format_func=groups.__getitem__,
            key="group",
            bind="query-params",
            placeholder="Nothing",
            help="A row for all runs that have the same of what is chosen, with mean ± standard deviation "
            "of their results. *All but the seed*: runs whose settings differ in their seed alone.",
            width=160,
        )
        with st.popover("Columns", icon=":material/view_column:"):
            shown = st.multiselect(
                "Columns",
                list(columns),
                default=list(table.DEFAULT),
                format_func=columns.__getitem__,
                key="columns",
                bind="query-params",
                help="Also each setting of the configuration.",
                width=420,
            )
        archived = st.toggle("Archived", key="archived", bind="query-params", help="Shows archived runs too.")
        view = View(text, tuple(shown), tuple(by), archived, st.session_state.get(SORT) or "")

        def show(one: View) -> None:  # a column of runs that are gone isn't there to choose
            known = {"group": [*groups], "columns": [*columns]}
            chosen = {"group": one.by, "columns": one.columns}
            st.session_state.update({key: [a for a in chosen[key] if a in known[key]] for key in known})
            st.session_state.update({"filter": one.text, "archived": one.archived, SORT: one.sort or None})

        kept_views.control(view, show)
        beside = st.container(width=170)
    return view, beside


def _table(runs: Mapping[str, RunSummary], view: View) -> tuple[list[curves.Drawn] | None, int]:
    """Draw the table. Returns the rows that have a curve, and of how many."""
    shown = list(view.columns)
    if "test" in shown and any(run.mean_absolute_error is not None for run in runs.values()):
        shown = list(dict.fromkeys([*shown[: shown.index("test") + 1], "error", *shown]))
    columns = {name: table.column_of(name, runs.values()) for name in shown}
    wanted = address.follow("sort", st.session_state.get(SORT)) or ""
    st.session_state[SORT] = wanted or None
    sort = wanted if wanted.removeprefix("-") in ("name", *columns) else ""
    if view.by:
        results = table.results_of(runs, st.session_state.get(RESULTS, {}))
        st.session_state[RESULTS] = results
        groups = table.groups_of(list(results.values()), view.by)
        rows = table.group_rows(groups, view.by, columns.values(), sort)
    else:
        rows = table.run_rows(runs, columns.values(), sort)
    listed = view.text, view.columns, view.by, view.archived
    if state.may_act():
        summaries = {run.path: run for run in runs.values()}
        for row in rows:
            if row["key"] in summaries:
                row["texts"] = actions.texts_of(summaries[row["key"]])
    drawn = curves.choose(rows, (listed, sort), sort)
    table.draw(
        columns,
        rows,
        key=TABLE,
        label="Runs",
        view=listed,
        sort=sort,
        on_sort=lambda sort: st.session_state.update({SORT: sort or None}),
        on_open=_open_clicked,
        on_edit=actions.edit if state.may_act() else None,
        on_eye=None if drawn is None else curves.turn,
    )
    return drawn, sum("group" not in row for row in rows)


def _open_clicked(path: str) -> None:
    """Open the run whose name was clicked."""
    labels = {str(run.path): label for label, run in state.listed_runs().items()}
    if path in labels:
        actions.link("live", [labels[path]])


def _counts(found: Sequence[RunSummary], wanted: Sequence[RunSummary], hidden: int) -> str:
    parts = [counted(len(found), "run")]
    if len(wanted) + hidden < len(found):
        parts.append(f"{len(wanted):,} fit the filter")
    if hidden:
        parts.append(f"{hidden:,} archived, not shown")
    if unread := sum(not summary.complete for summary in found):
        parts.append(f"the metrics of {unread:,} are still being read")
    return " · ".join(parts)
