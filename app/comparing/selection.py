"""Which runs are compared, and what they have reached."""

from collections.abc import Iterable

import streamlit as st

from app import state
from app.images.text import plain
from app.state import MAX_RUNS
from labkit.analysis.run_results.results import Result, result_of
from labkit.config.recorded import describe
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import check_folders
from labkit.run_directory.summary import RunSummary, Summaries

__all__ = ["choose_runs", "results_of", "set_runs"]

WATCH_SECONDS = 5.0
KEY = "runs"

# Fifty names would push the results off the screen.
STYLE = """<style>
.st-key-compare-runs [data-baseweb="select"] > div { max-height: 8.4rem; overflow-y: auto; }
</style>"""


def choose_runs() -> dict[str, RunDirectory]:
    """Draw the selection of runs. Returns those that exist by their labels, and names the others."""
    labels = state.run_labels()
    chosen_elsewhere = st.session_state.get("run")
    named = st.session_state.get(KEY) or st.query_params.get_all(KEY)
    first = [chosen_elsewhere] if chosen_elsewhere else []
    options = list(dict.fromkeys([*first, *labels, *named]))
    if KEY not in st.session_state and KEY not in st.query_params:
        st.session_state[KEY] = options[: min(2, len(options))]
    st.html(STYLE)
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
    there = {label: run for label, run in found.items() if run.exists() and state.is_unicode(run)}
    for label, run in list(there.items()):
        try:
            check_folders(run)
        except InputError as error:
            st.warning(plain(f"Not compared: {error}"), icon=":material/folder_off:")
            del there[label], found[label]
    if gone := [label for label in found if label not in there]:
        st.warning(
            f"Not found, perhaps deleted or renamed meanwhile: {_as_text(gone)}. The others are compared.",
            icon=":material/folder_off:",
        )
    return {label: there[label] for label in _once(there)}


def set_runs(runs: Iterable[RunDirectory]) -> None:
    """Compare these runs. Call it from a callback, before the selection is drawn."""
    labels = {run.path: label for label, run in state.listed_runs().items()}
    st.session_state[KEY] = [labels.get(run.path, state.clean(run.path)) for run in runs][:MAX_RUNS]


def _once(runs: dict[str, RunDirectory]) -> list[str]:
    """Return the labels without those of a run that is there already, by its path."""
    by_path = {run.path: label for label, run in reversed(runs.items())}
    return [label for label, run in runs.items() if by_path[run.path] == label]


def _as_text(names: list[str]) -> str:
    return ", ".join("`" + state.clean(name).replace("`", "'") + "`" for name in names)


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
