"""Comparisons that ``labkit compare`` made: their table, their figure, and all their runs."""

import os
from collections.abc import Iterable
from pathlib import Path

import streamlit as st

from app import state
from app.comparing.table import KEY
from app.markup import plain, show_command, unfolding
from app.state import MAX_RUNS
from labkit.errors import InputError
from labkit.experiments.comparison.files import RESULTS, request_path, run_directory
from labkit.experiments.comparison.read import read_comparison
from labkit.plurals import counted, listed
from labkit.run_directory import RunDirectory
from labkit.run_directory.files import open_run_file


def found_folders(name: str, runs: Iterable[RunDirectory], folders: Iterable[Path]) -> list[Path]:
    """Return the folders with a file of this name: those that hold a run first, then those in ``folders``."""
    places = [run.path.parent for run in runs]
    for folder in folders:
        places.append(folder)
        try:
            with os.scandir(folder) as entries:
                places += sorted(folder / entry.name for entry in entries if entry.is_dir())
        except OSError:
            continue
    return [place for place in dict.fromkeys(places) if os.path.isfile(place / name)]


def show_comparisons(chosen: Iterable[RunDirectory]) -> None:
    """Draw the comparisons, if there are any. That of the chosen runs is open."""
    chosen = list(chosen)
    places = found_folders(request_path(Path()).name, chosen, state.run_folders())
    if not places:
        return
    inside = {run.path.parent for run in chosen}
    title = "Made by labkit compare: " + listed([plain(place.name) for place in places], 3)
    is_open = places[0] in inside
    unfolding(title, lambda: _show(places), key="comparisons", icon="table_chart", expanded=is_open)


def _show(places: list[Path]) -> None:
    labels, place = {state.clean(place): place for place in places}, places[0]
    if len(labels) > 1:
        place = labels[st.selectbox("Comparison", list(labels), key="comparison")]
    try:
        comparison = read_comparison(place)
    except InputError as error:
        st.error(plain(str(error)), icon=":material/broken_image:")
        return
    every = (run_directory(comparison.path, one.model, one.seed, one.fold) for one in comparison.runs)
    runs = [run for run in every if run.exists()]
    which = "all its runs" if len(runs) <= MAX_RUNS else f"{MAX_RUNS} of its runs"
    st.button(
        f"Compare {which} ({len(runs)})" if runs else "It has no runs yet",
        icon=":material/stacked_line_chart:",
        disabled=not runs,
        on_click=_compare,
        args=(place, runs),
    )
    st.html(f'<div class="lk-rows">{comparison._repr_html_()}</div>')
    picture = place / f"{RESULTS}.png"
    try:
        with open_run_file(picture) as file:
            st.image(file.read(), width="stretch", caption=f"{counted(len(comparison.models), 'model')}")
    except Exception:  # there is none until the comparison ends; a damaged one is made again by the command
        st.caption("There is no figure yet. The same command makes it when it ends:")
        show_command(comparison.command)


def _compare(place: Path, runs: list[RunDirectory]) -> None:
    """Choose the runs, and list their folder, so that they have short names."""
    if place not in state.run_folders():
        st.session_state["folder"] = str(place)
    labels = {run.path: label for label, run in state.listed_runs().items()}
    st.session_state[KEY] = [labels.get(run.path, state.clean(run.path)) for run in runs][:MAX_RUNS]
