"""What the Live page shows of a run that is just being started: its output so far, or why it was refused."""

import streamlit as st

from app import pages, state
from app.acting import launches
from app.images.text import plain
from app.state import clean
from labkit.run_directory import RunDirectory

__all__ = ["show_start"]

REFUSED = "start-refused"  # the run that the last start was for, and why it was refused
POLL_SECONDS = 0.5
LAST_LINES = 8  # of what a start prints before it trains


def show_start() -> None:
    """Draw the start of the selected run, and stop the page until the run is there or refused."""
    label = st.session_state.get("run")
    run = state.find_run(label) if label else None
    launch = launches.launch_of(run) if run is not None else None
    if run is None or run.exists():
        return
    if launch is not None and not launch.is_waiting and not run.exists():
        st.session_state[REFUSED] = (run.path, launch.refusal)
        launches.tidy(launch)
        launch = None
    if launch is not None:
        _wait(run, launch)
        st.stop()
    path, why = st.session_state.get(REFUSED, (None, ""))
    if path == run.path:
        _refused(run, why)
        st.stop()


def _wait(run: RunDirectory, launch: launches.Launch) -> None:
    st.subheader(plain(str(run.name)), anchor=False)
    st.info("Starting: it checks data set and devices first …", icon=":material/hourglass_top:")
    lines = launch.output[-LAST_LINES:]
    if lines:
        st.code(clean("\n".join(lines)), language=None, wrap_lines=True)
    if state.may_act():
        st.button("Cancel", on_click=launches.cancel, args=(run,))
    state.watch(
        "start",
        lambda: (run.exists(), launch.is_waiting, launch.output[-LAST_LINES:]),
        POLL_SECONDS,
        seen=(False, True, lines),
    )


def _refused(run: RunDirectory, why: str) -> None:
    st.subheader(plain(str(run.name)), anchor=False)
    st.error(f"It wasn't started: {plain(str(why))}", icon=":material/block:")
    st.page_link(pages.page("start"), label="Back to the form", icon=":material/arrow_back:")
