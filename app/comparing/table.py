"""Which runs are compared, and the table of their results: a row for each configuration or run."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from pandas.io.formats.style import Styler

from app import state
from app.state import MAX_RUNS, clean
from labkit.analysis.results import (
    MEASURES,
    NO_VALUE,
    Group,
    Result,
    differing,
    known_measures,
    result_of,
    spread_text,
    title_of,
    value_text,
)
from labkit.config.config import describe
from labkit.run_directory import RunDirectory
from labkit.run_directory.summary import RunSummary, Summaries

WATCH_SECONDS = 5.0
KEY = "runs"


def choose_runs() -> dict[str, RunDirectory]:
    """Draw the selection of runs. Returns those that exist by their labels, and names the others."""
    labels = state.run_labels()
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


def set_runs(runs: Iterable[RunDirectory]) -> None:
    """Compare these runs. Call it from a callback, before the selection is drawn."""
    labels = {run.path: label for label, run in state.listed_runs().items()}
    st.session_state[KEY] = [labels.get(run.path, state.clean(run.path)) for run in runs][:MAX_RUNS]


@st.cache_resource(max_entries=8, show_spinner=False)
def _summaries(paths: tuple[str, ...]) -> Summaries:
    return Summaries(describe)


def results_of(runs: dict[str, RunDirectory]) -> list[Result]:
    """Return the results of the runs. The page is drawn again when one of them changes."""
    following = _summaries(tuple(str(run.path) for run in runs.values()))

    def look() -> list[RunSummary]:
        return following.of(runs.values())

    found = look()
    state.watch("results", look, WATCH_SECONDS, seen=found)
    return [result_of(label, summary) for label, summary in zip(runs, found, strict=True)]


BEST = "background-color: rgba(26, 158, 119, 0.25)"
TABLE_KEY = "compare-table"
MAX_ROWS_SHOWN = 12  # without scrolling
HEIGHT = 440  # pixels of a longer table


def show_table(groups: Sequence[Group]) -> list[Group]:
    """Draw the results of the configurations. Returns those whose rows are ticked."""
    styled, numbers = frame(groups)
    several = any(len(group.results) > 1 for group in groups)
    event: Any = st.dataframe(
        styled,
        key=TABLE_KEY,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        placeholder=NO_VALUE,
        height="content" if len(groups) <= MAX_ROWS_SHOWN else HEIGHT,
        column_config={
            "Configuration": st.column_config.TextColumn(pinned=True, width="medium"),
            "State": st.column_config.TextColumn(width=100),
            "Seed": st.column_config.TextColumn(width=80),
            "Runs": st.column_config.TextColumn(width=120),
            **{title: st.column_config.NumberColumn(width=160 if several else 120) for title in numbers},
        },
        alt="Results and differing settings of each configuration",
    )
    st.caption(
        (
            "Mean ± standard deviation over the finished runs, or where none is over all (their number). "
            if several
            else ""
        )
        + ("The best of each column is tinted. " if len(groups) > 1 else "")
        + "Settings that are the same for all, and places such as directories, aren't listed. "
        + "Tick rows to make their curves stand out."
    )
    return [groups[row] for row in event.selection.rows if row < len(groups)]


def frame(groups: Sequence[Group]) -> tuple[Styler, list[str]]:
    """Return the table and the titles of its columns of numbers.

    A cell is sorted by its mean, and reads ``81.20 ± 0.35 % (3)``.
    """
    settings = differing([result for group in groups for result in group.results])
    firsts = [sum(len(group.results) for group in groups[:place]) for place in range(len(groups))]
    columns: dict[str, list[Any]] = {
        "Configuration": [clean(group.name) for group in groups],
        "State": [group.state for group in groups],
        "Seed": [clean(group.seeds) for group in groups],
        "Runs": [clean(", ".join(result.label for result in group.results)) for group in groups],
    }
    texts: dict[str, list[str]] = {}
    best: dict[str, int] = {}
    for measure in known_measures(groups):
        found = [group.spread(measure) for group in groups]
        title = title_of(measure, groups)
        scale = 100 if MEASURES[measure].unit == "percent" else 1
        columns[title] = [math.nan if one is None else scale * one.mean for one in found]
        texts[title] = [spread_text(measure, one) for one in found]
        if (sign := MEASURES[measure].better) and len(groups) > 1:
            ranked = [row for row, one in enumerate(found) if one is not None]
            best[title] = max(ranked, key=lambda row: sign * columns[title][row])
    for name, values in settings.items():
        columns[name if name not in columns else f"{name} (setting)"] = [
            clean(value_text(values[first])) for first in firsts
        ]
    data = pd.DataFrame(columns)
    styled = data.style
    for title, shown in texts.items():
        for row, text in enumerate(shown):
            styled = styled.format(lambda _, text=text: text, subset=pd.IndexSlice[[row], [title]])
    for title, row in best.items():
        styled = styled.map(lambda _: BEST, subset=pd.IndexSlice[[row], [title]])
    return styled, list(texts)
