"""The table of trials, what is known of the one that is ticked, and the rungs."""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import streamlit as st

from app import address, state
from app.markup import duration, plain
from app.searching.actions import runs_of
from app.searching.drawings import is_percent, title_of, value_shown
from labkit.analysis.results import value_text
from labkit.experiments.search.files import TrialRecord
from labkit.experiments.search.result import SearchResult
from labkit.tables import html_table

TABLE, ORDER = "search-trials", "search-order"
NUMBER, TEXT = pa.float64(), pa.string()
MAX_INTEGER = 2**53  # up to which a float holds each whole number
ALL = "all"
STATES = (ALL, "running", "waiting", "paused", "pruned", "failed", "finished")
RUNGS = ("step", "trials with a result", "best", "median", "went on", "pruned here", "failed here")
MAX_ROWS_SHOWN, HEIGHT = 12, 440  # without scrolling; pixels of a longer table


def show_trials(search: SearchResult) -> None:
    """Draw the table, the best trial first, and below it the trial that is ticked."""
    counts = Counter(name for trial in search.trials for name in (ALL, trial.state))
    wanted = st.segmented_control(
        "Trials",
        [name for name in STATES if counts[name] or name == ALL],
        default=ALL,
        format_func=lambda name: f"{name} ({counts[name]:,})",
        key="search-states",
        required=True,
        label_visibility="collapsed",
    )
    trials = [trial for trial in search.trials if wanted in (ALL, trial.state)]
    numbers = [trial.number for trial in trials]
    _follow(search, numbers)
    found = st.dataframe(
        _rows(search, trials),
        key=TABLE,
        hide_index=True,
        placeholder="–",
        on_select="rerun",
        selection_mode="single-row",
        column_config=_columns(search),
        height="content" if len(trials) <= MAX_ROWS_SHOWN else HEIGHT,
    )
    for row in found["selection"]["rows"][:1]:
        if row < len(trials):
            _one(search, trials[row])


def _follow(search: SearchResult, numbers: list[int]) -> None:
    """Keep the tick, which the browser gives as a row, on its trial where the order of the rows changes."""
    ticked = st.session_state.get(TABLE, {}).get("selection", {}).get("rows", [])
    folder, before = st.session_state.get(ORDER, (None, []))
    chosen = [before[row] for row in ticked if row < len(before)] if folder == search.folder else []
    rows = [numbers.index(number) for number in chosen if number in numbers]
    if rows != ticked:
        st.session_state[TABLE] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    st.session_state[ORDER] = search.folder, numbers


def _rows(search: SearchResult, trials: Sequence[TrialRecord]) -> pa.Table:
    scale = 100 if is_percent(search) else 1
    lasts = [trial.last for trial in trials]
    values = [last and scale * last.value for last in lasts]
    parts = {
        "trial": pa.array([trial.number for trial in trials], NUMBER),
        "state": pa.array([state.clean(trial.state) for trial in trials], TEXT),
        "step": pa.array([None if last is None else last.step for last in lasts], NUMBER),
        "value": pa.array(values, NUMBER),
    }
    for name in search.request.space:
        parts[f"setting {name}"] = _setting([trial.values.get(name) for trial in trials])
    seconds = [sum(result.seconds for result in trial.results) or None for trial in trials]
    parts["seconds"] = pa.array(seconds, NUMBER)
    parts["why"] = pa.array([state.clean(trial.why) or None for trial in trials], TEXT)
    return pa.table(parts)


def _setting(values: list[Any]) -> pa.Array:
    """Return the values of a setting: numbers if they all are, otherwise text."""
    if all(value is None or _is_number(value) for value in values):
        return pa.array(values, NUMBER)
    return pa.array([None if value is None else state.clean(value) for value in values], TEXT)


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= MAX_INTEGER
    return isinstance(value, float)


def _columns(search: SearchResult) -> dict[str, Any]:
    form = "%.2f %%" if is_percent(search) else "%.4g"
    return {
        "trial": st.column_config.NumberColumn("Trial", format="%d", pinned=True),
        "state": st.column_config.TextColumn("State"),
        "step": st.column_config.NumberColumn("Step", format="localized", help="Of its last result."),
        "value": st.column_config.NumberColumn(title_of(search), format=form, help="At that step."),
        **{f"setting {name}": st.column_config.Column(state.clean(name)) for name in search.request.space},
        "seconds": st.column_config.NumberColumn("Seconds", format="%.0f", help="Of training, all rungs."),
        "why": st.column_config.TextColumn("Why it ended", width="large"),
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
            st.page_link(
                address.page("live"),
                label=plain(state.clean(run.name)),
                icon=":material/monitoring:",
                query_params={"run": state.clean(run.path)},
            )


def show_rungs(search: SearchResult) -> None:
    """Draw how many trials reached each rung, and how many went on."""
    if len(search.request.rungs) < 2:
        return
    best = max if search.request.sign > 0 else min
    rows = []
    for step in search.request.rungs:
        found = search.at_rung(step)
        values = [value for _, value in found]
        texts = [value_shown(search, of(values)) if values else "–" for of in (best, statistics.median)]
        here = Counter(trial.state for trial, _ in found if trial.results[-1].step == step)
        further = len(found) - here.total()
        counts = [f"{count:,}" for count in (further, here["pruned"], here["failed"])]
        rows.append([f"{step:,}", f"{len(found):,}", *texts, *counts])
    st.markdown("#### Rungs")
    st.html(f'<div class="lk-compared">{html_table(RUNGS, rows)}</div>')
