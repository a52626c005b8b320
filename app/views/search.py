"""The page of a search: its state, the best so far, its trials and rungs, and what the settings do."""

from itertools import islice
from pathlib import Path

import streamlit as st

from app import address, state
from app.acting import buttons
from app.charts import component
from app.comparing.comparisons import found_folders
from app.markup import duration, facts_html, plain, show_command
from app.run_table.actions import follow_link
from app.searching import actions, drawings
from app.searching.table import show_rungs, show_trials
from labkit import home
from labkit.errors import InputError
from labkit.experiments.search.files import ENDED, PROGRESS, REQUEST
from labkit.experiments.search.result import SearchResult
from labkit.plurals import counted
from labkit.run_directory import RunDirectory

LEAST_TRIALS = 4  # from which on an importance can be estimated
REFRESH_SECONDS = 3.0
COMMAND = "labkit search --space learning_rate=log:0.01:1 --trials 20 --dataset shapes"


def page() -> None:
    """Draw the chosen search, at first the one that was active last."""
    follow_link()
    st.subheader("Search", anchor=False)
    folders = _folders()
    if named := st.query_params.get("search"):  # it may just be starting
        place = home.home() / "searches" / named
        buttons.show_start(RunDirectory(place), lambda run: (run.path / REQUEST).is_file())
    if not folders:
        st.write("No searches yet. Start one, and it appears here within seconds:")
        show_command(COMMAND)
        state.watch("searches", lambda: bool(_folders()), seen=False)
        return
    folder = _choose(folders)

    def look() -> tuple[int, ...]:
        return tuple(state.changed_at(folder / name) for name in (REQUEST, PROGRESS))

    seen = look()
    try:
        search = SearchResult(folder)
        _draw(search)
        state.watch("lost", lambda: search.state, REFRESH_SECONDS, seen=search.state)
    except InputError as error:
        st.error(plain(str(error)), icon=":material/broken_image:")
    state.watch("search", look, REFRESH_SECONDS, seen=seen)


def _draw(search: SearchResult) -> None:
    facts = _facts(search)  # reads the files, before anything is drawn
    component.prepare()
    st.html(facts_html(facts))
    actions.draw(search)
    if search.progress.message:
        st.text(state.clean(search.progress.message))
    # What the best trial gave with other seeds, in the search's own words.
    words = (search.progress.conclusion or {}).get("words")
    for sentence in words if isinstance(words, list) else []:
        st.markdown(plain(state.clean(sentence)))
    if search.progress.repeat is not None and not words:
        st.caption("The best trial is repeated with fresh seeds, to see how much of its result is luck.")
    _compare(search)
    drawings.show_progress(search)
    halving = "" if search.request.halving == "none" else f" Halving: {search.request.halving}."
    st.caption(plain(f"Sampler: {search.request.sampler}.{halving}"))
    show_trials(search)
    show_rungs(search)
    if search.request.space and search.request.trials >= LEAST_TRIALS:
        st.markdown("#### Importance of each setting")
        drawings.show_importance(search)
    if search.request.space:
        drawings.show_slices(search)


def _compare(search: SearchResult) -> None:
    """Draw the link to the page Compare with the runs of the trials, the best ones first."""
    every = (state.clean(run.path) for trial in search.trials for run in actions.runs_of(search, trial))
    runs = list(islice(every, state.MAX_RUNS))
    if len(runs) > 1:
        address.link(
            "compare", f"Compare {counted(len(runs), 'run')}", "stacked_line_chart", runs=runs, run=runs[0]
        )


def _facts(search: SearchResult) -> list[tuple[str, str]]:
    best, last = search.best_trial, search.best_trial and search.best_trial.last
    ended = sum(trial.state in ENDED for trial in search.trials)
    limit = "" if search.request.minutes is None else f" of {search.request.minutes:g} min"
    found = [
        ("State", state.clean(search.state)),
        ("Trials ended", f"{ended:,} of {search.request.trials:,}"),
        ("Searched", duration(search.progress.seconds) + limit),
    ]
    if best and last:
        equals = f", first of {search.equals + 1} equal" if search.equals else ""
        found += [
            (drawings.title_of(search), drawings.value_shown(search, last.value)),
            (f"Best trial{equals}", f"{best.number}, step {last.step:,}"),
        ]
    return found


def _folders() -> list[Path]:
    """Return the folders of searches, the last active first."""
    places = [home.home() / "searches", *state.run_folders()]
    found = found_folders(REQUEST, state.listed_runs().values(), places)
    return sorted(found, key=lambda place: state.changed_at(place / PROGRESS), reverse=True)


def _choose(folders: list[Path]) -> Path:
    names = [folder.name for folder in folders]
    labels = {state.clean(path if names.count(path.name) > 1 else path.name): path for path in folders}
    shown = address.follow("search", st.session_state.get("search-chosen"))
    st.session_state["search-chosen"] = shown if shown in labels else next(iter(labels))
    st.selectbox("Search", list(labels), key="search-chosen", label_visibility="collapsed")
    return labels[st.session_state["search-chosen"]]
