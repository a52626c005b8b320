"""The buttons of a search: stop it, go on, start the best trial again; and the commands for a shell."""

import shlex
import signal
import socket

import streamlit as st

from app import state
from app.acting import launches
from app.acting.buttons import again
from app.markup import plain
from app.searching.study import PRESET, Study
from app.state import clean
from labkit.errors import InputError
from labkit.run_directory import RunDirectory, process_alive
from labkit.run_directory.stop import asked_to_stop

FAILED = "search-failed"  # the folder of the last action that failed, and why
STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM, 128 + signal.SIGINT)
CODE = "Its settings name files of code or open ports. Look at them in search.json, and go on in a shell."


def draw(study: Study) -> None:
    """Draw the buttons that make sense in this state, and why the last action failed."""
    run, acts = RunDirectory(study.folder), state.may_act()
    launch = launches.launch_of(run)
    code = None if launch is None else launch.process.poll()
    with st.container(horizontal=True, vertical_alignment="center"):
        if acts and study.state == "running" and study.progress.host == socket.gethostname():
            _stop(run)
        elif launch is not None and code is None and study.state != "running":
            st.caption(":material/hourglass_top: Going on: it checks and loads first …", width="content")
        elif acts and study.state in ("interrupted", "failed", "lost") and not study.runs_code:
            st.button("Go on", icon=":material/play_arrow:", on_click=_attempt, args=(run, "join"))
        best = None if study.best is None else next(filter(None, map(study.run, study.best.runs)), None)
        if acts and best is not None:
            told = "Opens the form of a new run with the settings of the best trial. Raise its steps there."
            again(best, "The best again with more steps", told)
        _commands(study)
    folder, why = st.session_state.get(FAILED, (None, ""))
    if folder == run.path:
        st.error(plain(str(why)), icon=":material/block:")
    elif launch is not None and code not in (None, 0, *STOPPED):
        st.error(plain(f"It doesn't go on: {launch.refusal}"), icon=":material/block:")


def _stop(run: RunDirectory) -> None:
    asked = asked_to_stop(run)
    if asked is not None and process_alive(asked):
        st.caption(":material/hourglass_top: Stopping: its trainings save first …", width="content")
        return
    with st.popover("Stop", icon=":material/stop_circle:"):
        st.write("The trainings save a checkpoint and end. *Go on* continues the search from there.")
        st.button("Save and stop", type="primary", key="search-stop", on_click=_attempt, args=(run, "stop"))


def _attempt(run: RunDirectory, act: str) -> None:
    st.session_state.pop(FAILED, None)
    try:
        launches.stop(run) if act == "stop" else launches.join_search(run)
    except InputError as error:
        st.session_state[FAILED] = (run.path, str(error))


def _commands(study: Study) -> None:
    folder, shown = clean(study.folder), {}
    if not study.runs_code:
        shown["Makes this search:"] = clean(study.request.command)
        shown["Goes on, or adds this machine:"] = shlex.join(["labkit", "search", "--join", folder])
        if (study.folder / PRESET).is_file():
            steps = str(2 * max(study.request.rungs, default=1_000))
            words = ["labkit", "train", "--preset", f"{folder}/{PRESET}", "--train-steps", steps]
            shown["Trains the best again with more steps:"] = shlex.join(words)
    if study.best is not None and study.best.runs:
        shown["Shows the best trial:"] = shlex.join(["labkit", "show", f"{folder}/{study.best.runs[0]}"])
    with st.popover("Commands", icon=":material/content_copy:"):
        if study.runs_code:
            st.text(CODE)
        for title, command in shown.items():
            st.caption(title)
            st.code(command, language="bash", wrap_lines=True)
        if study.state == "running":
            st.caption(f"Ctrl-C where it runs, in process {study.progress.pid}, saves and stops it.")
