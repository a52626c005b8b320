"""The buttons of a search: stop it, go on, start the best trial again; and the commands for a shell."""

import shlex
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import streamlit as st

from app import state
from app.acting import launches
from app.acting.buttons import again, stop
from app.markup import plain, show_commands
from app.state import clean
from labkit.experiments.search.files import PRESET, TrialRecord
from labkit.experiments.search.result import SearchResult
from labkit.parts.trust import acts
from labkit.run_directory import RunDirectory

FAILED = "search-failed"  # in the session, with the folder: why the last action failed
STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGINT)
CODE = "Its settings name files of code or open ports. Look at them in search.json, and go on in a shell."


def runs_of(search: SearchResult, trial: TrialRecord) -> Iterator[RunDirectory]:
    """Yield the runs of a trial that are in the folder of the search."""
    for name in trial.runs:
        run = RunDirectory(search.folder / Path(name).name)  # the file may name anything
        if run.exists():
            yield run


def runs_code(search: SearchResult) -> bool:
    """Return whether its settings run a file or open ports, which nobody may have looked at."""
    preset, space = search.request.preset or "", search.request.space.items()
    values = [(name, value) for name, one in space for value in one.choices]
    # A preset with a dot is a file with further settings.
    return "." in preset or any(acts(name, value) for name, value in [*search.request.fixed.items(), *values])


def draw(search: SearchResult) -> None:
    """Draw the buttons that make sense in this state, and why the last action failed."""
    run, may_act = RunDirectory(search.folder), state.may_act()
    launch = launches.launch_of(run)
    code = None if launch is None else launch.process.poll()
    with st.container(horizontal=True, vertical_alignment="center"):
        if may_act and search.state == "running" and search.progress.host == socket.gethostname():
            words = "The trainings save a checkpoint and end. *Go on* continues the search from there."
            stop(run, words, f"{FAILED}-{run.path}")
        elif launch is not None and code is None and search.state != "running":
            st.caption(":material/hourglass_top: Going on: it checks and loads first …", width="content")
        elif may_act and search.state in ("interrupted", "failed", "lost") and not runs_code(search):
            go_on = f"{FAILED}-{run.path}", launches.join_search, run
            st.button("Go on", icon=":material/play_arrow:", on_click=state.attempt, args=go_on)
        best = search.best_trial and next(runs_of(search, search.best_trial), None)
        if may_act and best:
            told = "Opens the form of a new run with the settings of the best trial. Raise its steps there."
            again(best, "The best again with more steps", told)
        _commands(search)
    state.say_failure(f"{FAILED}-{run.path}")
    if launch is not None and code not in (None, 0, *STOPPED):
        st.error(plain(f"It doesn't go on: {launch.refusal}"), icon=":material/block:")


def _commands(search: SearchResult) -> None:
    folder, shown = clean(search.folder), {}
    if not runs_code(search):
        shown["Makes this search:"] = clean(search.request.command)
        shown["Goes on, or adds this machine:"] = shlex.join(["labkit", "search", "--join", folder])
        if (search.folder / PRESET).is_file():
            steps = str(2 * max(search.request.rungs, default=1_000))
            words = ["labkit", "train", "--preset", f"{folder}/{PRESET}", "--train-steps", steps]
            shown["Trains the best again with more steps:"] = shlex.join(words)
    if search.best_trial is not None and search.best_trial.runs:
        shown["Shows the best trial:"] = shlex.join(["labkit", "show", clean(search.best)])
    with st.popover("Commands", icon=":material/content_copy:"):
        if runs_code(search):
            st.text(CODE)
        show_commands(shown)
        if search.state == "running":
            st.caption(f"Ctrl-C where it runs, in process {search.progress.pid}, saves and stops it.")
