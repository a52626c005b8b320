"""Which runs are compared, and the table of their results: a row for each configuration or run."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import mean

import streamlit as st

from app import state
from app.charts.board import DASHES
from app.comparing.curves import FEW, colors_of
from app.run_table import actions, table
from app.run_table.table import Column
from app.state import MAX_RUNS
from labkit.analysis.inference import spread
from labkit.analysis.results import (
    MEASURES,
    Group,
    Result,
    differing,
    known_measures,
    result_of,
    spread_text,
    title_of,
    told_apart,
)
from labkit.plurals import listed
from labkit.run_directory import RunDirectory

KEY = "runs"


def choose_runs() -> dict[str, RunDirectory]:
    """Draw the selection of runs. Returns those that exist by their labels, and names the others."""
    labels = state.listed_runs()
    chosen_elsewhere = st.session_state.get("run")
    named = st.session_state.get(KEY) or st.query_params.get_all(KEY)
    first = [chosen_elsewhere] if chosen_elsewhere else []
    options = list(dict.fromkeys([*first, *labels, *named]))
    if KEY not in st.session_state and KEY not in st.query_params:
        st.session_state[KEY] = options[: min(2, len(options))]
    with st.container(key="compare-runs"):
        chosen = st.multiselect(
            "Runs",
            options,
            key=KEY,
            bind="query-params",
            max_selections=MAX_RUNS,
            placeholder=f"Choose up to {MAX_RUNS} runs",
        )
    found = {label: state.find_run(label) for label in chosen[:MAX_RUNS]}
    there = {label: run for label, run in found.items() if not state.why_not_shown(run)}
    for run in found.values():
        if run.exists() and (why := state.why_not_shown(run)):
            st.warning(f"Not compared: {why}", icon=":material/folder_off:")
    if gone := [state.as_code(label) for label, run in found.items() if not run.exists()]:
        st.warning(
            f"Not found, perhaps deleted or renamed meanwhile: {', '.join(gone)}. The others are compared.",
            icon=":material/folder_off:",
        )
    by_path = {run.path: label for label, run in reversed(there.items())}  # each run once
    return {label: run for label, run in there.items() if by_path[run.path] == label}


def results_of(runs: dict[str, RunDirectory]) -> list[Result]:
    """Return the results of the runs. The page is drawn again when one of them changes."""
    look = partial(state.follower(tuple(run.path for run in runs.values())).of, runs.values())
    found = look()
    state.watch("results", look, seen=found)
    return [result_of(label, summary) for label, summary in zip(runs, found, strict=True)]


TABLE, SORT = "compare-table", "compare-sort"


def show_table(groups: Sequence[Group]) -> list[Group]:
    """Draw the results of the configurations, each above its runs. Returns those of which one is ticked."""
    columns = _columns(groups)
    named = {"name": replace(table.NAME, title="Configuration"), **columns}
    sort = st.session_state.get(SORT, "")
    sort = sort if sort.removeprefix("-") in named else ""
    ordered = table.in_order(groups, sort, table.group_value, named.__getitem__)
    several = any(len(group.results) > 1 for group in groups)
    runs = {result.label: result.summary for group in ordered for result in group.results}
    if several:
        rows = table.group_rows(ordered, (), columns.values(), "")
    else:
        rows = table.run_rows(runs, columns.values(), "")
    best = {name: _best(groups, name) for name in columns if name in MEASURES}
    ticked = set(table.ticked(TABLE))
    chosen = [group for group in groups if any(result.summary.path in ticked for result in group.results)]
    colors = colors_of(groups, [group.name for group in chosen])
    for row, group in zip([row for row in rows if "group" not in row], ordered, strict=True):
        row["best"] = [place for place, name in enumerate(columns) if group in best.get(name, ())]
        color, outstanding = colors[group.results[0].label]
        row["mark"] = {"color": color, "dash": DASHES[color]} if outstanding else None
    labels = {run.path: label for label, run in runs.items()}
    table.draw(
        columns,
        rows,
        key=TABLE,
        label="Results and differing settings of each configuration",
        name=named["name"],
        view=tuple(sorted(labels)),
        sort=sort,
        on_sort=lambda sort: st.session_state.update({SORT: sort}),
        on_open=lambda path: actions.link("live", [labels[path]]),
    )
    told = {name: told_apart(groups, name) for name in columns if name in MEASURES}
    apart = [f"{title_of(name, groups)} ({listed(why)})" for name, why in told.items() if why]
    mean = "Mean ± standard deviation over the finished runs, or where none is over all (their number). "
    st.caption(
        (mean if several else "")
        + ("The best of each column is tinted, of what has finished if any has. " if len(groups) > 1 else "")
        + (f"Can't be compared, because a setting differs: {listed(apart)}. " if apart else "")
        + "Settings that are the same for all, or don't affect the training, aren't listed. "
        + (f"Tick up to {FEW - 1} rows to make their curves stand out." if len(groups) > FEW else "")
    )
    return chosen


def _columns(groups: Sequence[Group]) -> dict[str, Column]:
    """Return the columns: state, seeds, results, and the settings that differ."""
    results = [result for group in groups for result in group.results]
    by_path = {result.summary.path: result for result in results}
    settings = {name: dict(zip(by_path, values, strict=True)) for name, values in differing(results).items()}

    def measured(name: str) -> Column:
        def shown(value: float) -> str:
            return spread_text(name, spread([value]))

        title = title_of(name, groups)
        return Column(title, lambda run: by_path[run.path].values.get(name), shown, "number", measure=name)

    def setting(name: str) -> Column:
        return Column(name, lambda run: settings[name][run.path])

    return {
        "state": table.COLUMNS["state"],
        "seed": Column("Seed", lambda run: by_path[run.path].seed, together=lambda group: group.seeds),
        **{name: measured(name) for name in known_measures(groups)},
        "training_loss": table.COLUMNS["training_loss"],  # which shows NaN, too
        **{f"setting {name}": setting(name) for name in settings},
    }


def best_first(groups: Sequence[Group], measure: str) -> list[Group]:
    """Return the configurations with this result, the best mean first; none where nothing tells the better.

    Where some have finished, the others don't count: a run that failed was the shortest.
    """
    sign = 0 if told_apart(groups, measure) else MEASURES[measure].better
    known = [group for group in groups if sign and group.values(measure)]
    finished = [group for group in known if any(result.finished for result in group.results)]
    return sorted(finished or known, key=lambda group: -sign * mean(group.values(measure)))


def _best(groups: Sequence[Group], measure: str) -> list[Group]:
    """Return the configurations with the best mean; none where all have the same."""
    ranked = best_first(groups, measure)
    equal = [group for group in ranked if mean(group.values(measure)) == mean(ranked[0].values(measure))]
    return equal if len(equal) < len(ranked) else []
