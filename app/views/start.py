"""The page that starts a run: a form, the command that it makes, and a button."""

import socket
from collections.abc import Sequence

import streamlit as st
from psutil import virtual_memory

from app import address, state
from app.acting import form, launches
from app.acting.buttons import FILLED
from app.acting.draft import (
    Checked,
    Draft,
    check,
    draft_of,
    expected,
    left_out,
    with_data_set,
    with_preset,
    with_rates,
)
from app.charts.machine import peak
from app.markup import duration, plain, show_command
from app.state import clean
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory

OPEN = "start-open"  # the label of the run that was just started
READ_SECONDS = 0.3  # the longest that metrics are read
FAILED = "start-failed"  # in the session, with the command: why its start failed


def page() -> None:
    """Draw the form. A click on its button leads to the Live page."""
    if opened := st.session_state.pop(OPEN, None):
        # At once, not when the run is there: timers of the page that is left would disturb the next one.
        page, parameters = opened
        address.go(page, **parameters)
    st.subheader("Start a run", anchor=False)
    _fill_again()
    shown = form.draft()
    if shown.stem:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            name = plain(clean(shown.stem))
            st.caption(
                f"The configuration of {name}. Change it, then start it as a new run.", width="content"
            )
            preset = with_preset(shown, shown.preset)
            st.button("The preset alone", type="tertiary", on_click=form.fill, args=(preset,))
    checked = check(shown)
    left, right = st.columns([3, 2], gap="large")
    with left:
        form.draw(shown, checked)
    with right, st.container(key="start-side"):
        _command(checked, shown)


def _fill_again() -> None:
    """Fill the form with the run of the address, once; with the changes that the address names.

    They are another data set, and a factor of the learning rates.
    """
    label, dataset, rates = (st.query_params.get(name, "") for name in ("again", "dataset", "rates"))
    if not label:
        return
    run = state.find_run(label)
    try:
        if st.session_state.get(FILLED) != (label, dataset, rates):
            filled = draft_of(run)
            filled = with_data_set(filled, dataset) if dataset else filled
            form.fill(with_rates(filled, 0.1) if rates == "0.1" else filled)
        missing = left_out(run)
    except InputError as error:
        st.error(plain(str(error)), icon=":material/block:")
        return
    st.session_state[FILLED] = label, dataset, rates
    if missing:
        st.caption(plain(clean(missing)))


def _command(checked: Checked, shown: Draft) -> None:
    run = shown.run()
    st.markdown("**Command**")
    if checked.command:
        show_command(checked.command)
    else:
        st.caption("The command appears when each value can be read.")
    _expectation(checked, shown)
    key = f"{FAILED} {checked.command}"
    failure = st.session_state.get(key, "")
    sentence = checked.problem or next(iter(checked.errors.values()), "") or launches.why_taken(run)
    if failure or sentence:
        st.error(plain(str(sentence or failure)), icon=":material/block:")
    if why := state.why_not():
        st.caption(f"{why} The command starts the run in a shell.")
        return
    st.button(
        "Start",
        type="primary",
        icon=":material/play_arrow:",
        disabled=bool(sentence),
        on_click=state.attempt,
        args=(key, _start, checked.arguments, str(run.path), shown.is_search),
        help="The training goes on when this page and its server are closed.",
    )


def _expectation(checked: Checked, shown: Draft) -> None:
    """Draw how many trainings there will be, and how long they take if a run like them has told it."""
    parts = []
    if checked.trainings > 1:
        at_once = min(shown.at_once, checked.trainings)
        order = f"{at_once} at a time" if at_once > 1 else "one after the other"
        parts.append(f"{counted(checked.trainings, 'training')}, {order}.")
    if found := expected(checked, shown, state.summaries(state.listed_runs().values(), READ_SECONDS)):
        seconds, like = found
        alone = " one after the other" if checked.trainings > 1 else ""
        status = RunDirectory(like.path).read_status()
        host = f" on {plain(clean(status.host))}" if status and status.host != socket.gethostname() else ""
        speed = f"at the speed of {plain(clean(like.name))}{host}; validations come on top"
        parts.append(f"About {duration(seconds)}{alone} {speed}.")
        parts += _memory(RunDirectory(like.path), min(shown.at_once, checked.trainings))
    if parts:
        st.caption(" ".join(parts))


def _memory(like: RunDirectory, at_once: int) -> list[str]:
    """Return how much memory so many trainings take at a time, as a run like them did, if that is known."""
    try:
        memory, gpu = peak(state.machine(like))
    except OSError:
        return []
    if not memory:
        return []
    free, each = virtual_memory().available, f"{at_once} times " if at_once > 1 else ""
    words = f"Memory: at most {each}{memory / 2**30:.1f} GiB, as that run took. "
    words += f"Free now: {free / 2**30:.1f} GiB."
    words += " **That is too little.**" if at_once * memory > free else ""
    return [words, *([f"GPU memory: {gpu / 2**30:.1f} GiB."] if gpu else [])]


def _start(arguments: Sequence[str], path: str, is_search: bool) -> None:
    run = RunDirectory(path)
    launches.start(arguments, run)
    form.draft().name = ""
    if is_search:
        st.session_state[OPEN] = "search", {"search": clean(run.name)}
        return
    label = clean(run.name if state.find_run(run.name).path == run.path else run.path)
    # Set here, before the sidebar is drawn, which selects it.
    state.select_run(label)
    st.session_state[OPEN] = "live", {"run": label}
