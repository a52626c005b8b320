"""The buttons of the Live page: stop, resume, start again with changes, copy the commands."""

import shlex
import socket
from collections.abc import Callable

import streamlit as st

from app import pages, state
from app.acting import launches
from app.images.text import plain
from app.state import clean
from labkit.cluster.continued import acts, making_command
from labkit.config.recorded import recorded_config
from labkit.errors import InputError
from labkit.parts.trust import accept, demands, files_of, is_accepted
from labkit.plurals import printable
from labkit.run_directory import ACTIVE_STATES, RunDirectory, Status, process_alive
from labkit.run_directory.stop import asked_to_stop

__all__ = ["FILLED", "draw", "failure_of", "is_pending", "report", "state_of"]

FILLED = "start-filled"  # the run that the form of Start was filled with
RUNS = (*ACTIVE_STATES, "stalled")
ENDED_EARLY = ("interrupted", "failed", "lost")


def draw(run: RunDirectory, status: Status | None, liveness: str) -> None:
    """Draw the buttons that make sense for a run in this state."""
    acts = state.may_act()
    if is_pending(run):
        st.caption(":material/hourglass_top: Resuming: it checks and loads first …", width="content")
    elif acts and liveness in RUNS and status and status.host == socket.gethostname():
        if _is_stopping(run):
            st.caption(":material/hourglass_top: Stopping: it saves first …", width="content")
        else:
            _stop(run)
    elif acts and liveness in ENDED_EARLY:
        _resume(run)
    if acts and status is not None:
        _again(run)
    _commands(run, liveness)


def _resume(run: RunDirectory) -> None:
    """Draw the button; before one that runs somebody else's code, that code."""
    try:
        found = launches.resumption(run)
    except InputError:  # the command says it
        _resume_button(run, launches.resume)
        return
    if found.is_accepted:
        _resume_button(run, launches.resume)
        return

    def trust(run: RunDirectory) -> None:
        accept(found.config, found.files, found.tasks, now=True)  # to what is shown, and nothing else
        launches.resume(run)

    words = demands(found.config, found.files, found.tasks)
    with st.popover("Resume", icon=":material/play_arrow:"):
        st.text(
            f"This account hasn't started this run as it is recorded. Resuming it would {printable(words)}."
        )
        for content in found.files.values():
            lines = map(printable, content.decode(errors="replace").split("\n"))  # marks can turn the order
            st.code("\n".join(lines), language="python", line_numbers=True)
        _resume_button(run, trust, "I trust it: resume")


def _resume_button(run: RunDirectory, act: Callable[[RunDirectory], object], label: str = "Resume") -> None:
    st.button(
        label,
        icon=":material/play_arrow:",
        key=f"resume-{clean(run.path)}",
        help="Trains on from the last checkpoint with the same configuration. "
        "It goes on when this page is closed.",
        on_click=_attempt,
        args=(run, act),
    )


def _again(run: RunDirectory) -> None:
    """Draw the link to the form of a new run with the configuration of this one.

    A link, not a button: a page that a fragment leaves may still be drawn into by it.
    """
    st.session_state.pop(FILLED, None)  # the form is filled again, whatever was changed in it
    st.page_link(
        pages.page("start"),
        label="Again with changes",
        icon=":material/edit:",
        help="Opens the form for a new run with the configuration of this one.",
        query_params={"again": clean(run.path)},
    )


def report(run: RunDirectory) -> None:
    """Say why the last action failed, until the next one."""
    failure = failure_of(run)
    launch = launches.launch_of(run)
    if not failure and launch is not None and (refusal := launch.refusal):
        failure = f"It wasn't started: {refusal}"
    if failure:
        st.error(plain(str(failure)), icon=":material/block:")


def failure_of(run: RunDirectory) -> str:
    """Return why this visitor's last action failed; "" if it didn't."""
    return str(st.session_state.get(_failure_key(run), ""))


def state_of(run: RunDirectory) -> tuple[bool, bool, str]:
    """Return what the buttons and the report depend on, beside the run's status and ``failure_of``."""
    launch = launches.launch_of(run)
    return is_pending(run), _is_stopping(run), (launch.refusal or "") if launch else ""


def is_pending(run: RunDirectory) -> bool:
    """Return whether this server has started a process for the run that has not begun to train."""
    launch = launches.launch_of(run)
    return launch is not None and launch.is_waiting


def _is_stopping(run: RunDirectory) -> bool:
    """Return whether the process that was asked to stop is still there, whoever asked it."""
    asked = asked_to_stop(run)
    return asked is not None and process_alive(asked)


def _failure_key(run: RunDirectory) -> str:
    return f"act-failed-{run.path}"


def _attempt(run: RunDirectory, act: Callable[[RunDirectory], object]) -> None:
    st.session_state.pop(_failure_key(run), None)
    try:
        act(run)
    except InputError as error:
        st.session_state[_failure_key(run)] = str(error)


def _stop(run: RunDirectory) -> None:
    with st.popover("Stop", icon=":material/stop_circle:"):
        st.write("The training saves a checkpoint and ends. *Resume* continues it from there.")
        st.button(
            "Save and stop",
            type="primary",
            key=f"stop-{clean(run.path)}",
            on_click=_attempt,
            args=(run, launches.stop),
        )


def _commands(run: RunDirectory, liveness: str) -> None:
    with st.popover("Command", icon=":material/content_copy:"):
        try:
            words = making_command(run)
            if not acts(words) or is_accepted(config := recorded_config(run), files_of(config)):
                st.caption("Makes this run:")
                st.code(clean(shlex.join(words)), language="bash", wrap_lines=True)
            if liveness not in RUNS and liveness != "finished":
                st.caption("Continues it:")
                st.code(clean(launches.resumption(run).command), language="bash", wrap_lines=True)
            elif liveness in RUNS:
                st.caption("Saves and stops it:")
                st.code(clean(shlex.join(["labkit", "stop", str(run.path)])), language="bash")
        except InputError as error:
            st.text(clean(error))
