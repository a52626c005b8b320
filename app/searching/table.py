"""The table of trials, what is known of those that are ticked, and the rungs."""

import statistics
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from app import address, state
from app.markup import duration, one_of, plain, table_html
from app.run_table import actions as run_actions
from app.run_table import table
from app.run_table.table import Column
from app.searching.actions import runs_of
from app.searching.drawings import title_of, value_shown
from labkit.analysis.results import value_text
from labkit.experiments.search.files import TrialRecord
from labkit.experiments.search.result import SearchResult

TABLE, SORT = "search-trials", "search-sort"
TRIAL = Column("Trial", lambda trial: trial.number)
MAX_SHOWN = 3  # of the ticked trials, below the table
ALL = "all"
STATES = (ALL, "running", "waiting", "paused", "pruned", "failed", "finished")
RUNGS = ("Rung", "Trials with a result", "Best", "Median", "Went on", "Pruned here", "Failed here")


def show_trials(search: SearchResult) -> None:
    """Draw the table, at first the best trial first, and below it those that are ticked."""
    counts = Counter(name for trial in search.trials for name in (ALL, trial.state))
    labels = {name: f"{name} ({counts[name]:,})" for name in STATES if counts[name] or name == ALL}
    hidden: dict[str, Any] = {"label_visibility": "collapsed", "bind": None}
    wanted = one_of("Trials", labels, "search-states", format_func=labels.get, **hidden)
    trials = [trial for trial in search.trials if wanted in (ALL, trial.state)]
    columns = _columns(search)
    sort = st.session_state.get(SORT, "")
    sort = sort if sort.removeprefix("-") in ("name", *columns) else ""
    known = {"name": TRIAL, **columns}
    # A click on the number of a trial opens its first run.
    firsts = {str(one.number): Path(one.runs[0]).name if one.runs else str(one.number) for one in trials}
    runs = {number: state.clean(search.folder / name) for number, name in firsts.items()}
    ordered = table.in_order(trials, sort, lambda column, trial: column.value(trial), known.__getitem__)
    table.draw(
        columns,
        [
            table.row(number, number, trial, columns.values(), href=address.live_address(runs[number]))
            for number, trial in ((str(trial.number), trial) for trial in ordered)
        ],
        key=TABLE,
        label="Trials",
        name=TRIAL,
        # Rows keep their places until another trial is the best, or the search has ended.
        view=(search.folder, wanted, search.state, search.best_trial and search.best_trial.number),
        sort=sort,
        on_sort=lambda sort: st.session_state.update({SORT: sort}),
        on_open=lambda number: run_actions.link("live", [runs[number]]),
    )
    keys = table.ticked(TABLE)
    ticked = [trial for trial in trials if str(trial.number) in keys]
    for trial in ticked[:MAX_SHOWN]:
        _one(search, trial)
    if len(ticked) > MAX_SHOWN:
        st.caption(f"The best {MAX_SHOWN} of {len(ticked)} ticked trials are shown.")


def _columns(search: SearchResult) -> dict[str, Column]:
    def last(attribute: str) -> Callable[[TrialRecord], Any]:
        return lambda trial: getattr(trial.last, attribute, None)

    def seconds(trial: TrialRecord) -> float | None:
        return sum(result.seconds for result in trial.results) or None

    shown = partial(value_shown, search)
    return {
        "state": Column("State", lambda trial: trial.state),
        "step": Column("Step", last("step"), "{:,}".format, "number", "Of its last result."),
        "value": Column(title_of(search), last("value"), shown, "number", "At that step."),
        **{f"setting {name}": table.setting_column(name, search.trials) for name in search.request.space},
        "seconds": Column("Seconds", seconds, "{:,.0f}".format, "number", "Of training, all rungs."),
        "why": Column("Why it ended", lambda trial: trial.why or None),
    }


def _one(search: SearchResult, trial: TrialRecord) -> None:
    """Draw what is known of a trial, and the links to its runs."""
    given = ", ".join(f"{name} {value_text(trial.values.get(name))}" for name in search.request.space)
    results = [
        f"{value_shown(search, result.value)} at step {result.step:,} after {duration(result.at)}"
        for result in trial.results
    ]
    st.text(state.clean(f"Trial {trial.number}, {trial.state}: {given}. {trial.why}\n{'; '.join(results)}"))
    with st.container(horizontal=True):
        for run in runs_of(search, trial):
            label = plain(state.clean(run.name))
            address.link("live", label, "monitoring", run=state.clean(run.path))


def show_rungs(search: SearchResult) -> None:
    """Draw how many trials reached each rung, and how many went on."""
    if len(search.request.places) < 2:
        return
    best = max if search.request.sign > 0 else min
    rows = []
    for rung, place in enumerate(search.request.places):
        found = search.at_rung(rung)
        values = [result.value for _, result in found]
        texts = [value_shown(search, of(values)) if values else "–" for of in (best, statistics.median)]
        here = Counter(trial.state for trial in search.trials if trial.rung == rung)
        further = sum(trial.rung > rung for trial, _ in found)
        counts = [f"{count:,}" for count in (further, here["pruned"], here["failed"])]
        rows.append([place, f"{len(found):,}", *texts, *counts])
    st.markdown("#### Rungs")
    st.html(table_html(RUNGS, rows))
