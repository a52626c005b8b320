"""The page of a search: its state, the best so far, its trials and rungs, and what the settings do."""

from pathlib import Path

import streamlit as st

from app import address, state
from app.charts import component
from app.comparing.comparisons import found_folders
from app.markup import duration, facts_html, plain
from app.searching import actions, drawings
from app.searching.study import REQUEST, TRIALS, Study, read_study
from app.searching.table import show_rungs, show_trials
from labkit import home
from labkit.errors import InputError

REFRESH_SECONDS = 3.0
COMMAND = "labkit search --space learning_rate=log:0.01:1 --trials 20 --dataset shapes"


def page() -> None:
    """Draw the chosen search, at first the one that was active last."""
    st.subheader("Search", anchor=False)
    folders = _folders()
    if not folders:
        st.write("No searches yet. Start one, and it appears here within seconds:")
        st.code(COMMAND, language="bash")
        state.watch("searches", lambda: bool(_folders()), seen=False)
        return
    folder = _choose(folders)

    def look() -> tuple[int, ...]:
        return tuple(state.changed_at(folder / name) for name in (REQUEST, TRIALS))

    seen = look()
    try:
        study = read_study(folder)
    except InputError as error:
        st.error(plain(str(error)), icon=":material/broken_image:")
    else:
        _draw(study)
        state.watch("lost", lambda: study.state, REFRESH_SECONDS, seen=study.state)
    state.watch("search", look, REFRESH_SECONDS, seen=seen)


def _draw(study: Study) -> None:
    component.prepare()
    st.html(facts_html(_facts(study)))
    actions.draw(study)
    if study.progress.message:
        st.text(state.clean(study.progress.message))
    _conclusion(study)
    drawings.show_progress(study)
    halving = "" if study.request.halving in ("", "none") else f", {study.request.halving} halving"
    st.caption(plain(f"Settings by {study.request.sampler}{halving}."))
    show_trials(study)
    show_rungs(study)
    st.markdown("#### Importance of each setting")
    drawings.show_importance(study)
    drawings.show_slices(study)


def _facts(study: Study) -> list[tuple[str, str]]:
    trials, best = study.progress.trials, study.best
    ended = sum(trial.state in ("finished", "pruned", "failed") for trial in trials)
    asked = study.request.trials
    limit = "" if study.request.minutes is None else f" of {study.request.minutes:g} min"
    found = [
        ("State", state.clean(study.state)),
        ("Trials ended", f"{ended:,}" + ("" if asked is None else f" of {asked:,}")),
        ("Searched", duration(study.progress.seconds) + limit),
    ]
    if best is not None and best.last is not None:
        found += [
            (drawings.title_of(study), drawings.value_shown(study, best.last.value)),
            ("Best trial", f"{best.number}, step {best.last.step:,}"),
        ]
    return found


def _conclusion(study: Study) -> None:
    """Draw what the best trial gave with other seeds, in the search's own words."""
    words = (study.progress.conclusion or {}).get("words")
    for sentence in words if isinstance(words, list) else []:
        st.markdown(plain(state.clean(sentence)))
    if study.progress.repeat is not None and not words:
        st.caption("The best trial is repeated with fresh seeds, to see how much of its result is luck.")


def _folders() -> list[Path]:
    """Return the folders of searches, the last active first."""
    places = [home.home() / "searches", *state.run_folders()]
    found = found_folders(REQUEST, state.listed_runs().values(), places)
    return sorted(found, key=lambda place: state.changed_at(place / TRIALS), reverse=True)


def _choose(folders: list[Path]) -> Path:
    names = [folder.name for folder in folders]
    labels = {state.clean(path if names.count(path.name) > 1 else path.name): path for path in folders}
    shown = address.follow("search", st.session_state.get("search-chosen"))
    st.session_state["search-chosen"] = shown if shown in labels else next(iter(labels))
    st.selectbox("Search", list(labels), key="search-chosen", label_visibility="collapsed")
    return labels[st.session_state["search-chosen"]]
