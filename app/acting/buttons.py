"""The Live page's buttons, what it shows of a run that is being started, and of one that ended early."""

import math
import shlex
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import streamlit as st

from app import address, background, state
from app.acting import launches
from app.charts import picked
from app.markup import number_text, plain, show_command, show_commands
from app.state import clean
from labkit.cluster.flags import acts, making_command
from labkit.config import by_field
from labkit.config.config import recorded_by, recorded_config
from labkit.errors import InputError
from labkit.parts.trust import accept, demands, files_of, is_accepted
from labkit.parts.trust import acts as runs_code
from labkit.plurals import counted, printable
from labkit.run_directory import ACTIVE_STATES, RunDirectory, Status, process_alive
from labkit.run_directory.directory import WEIGHT_NOT_FINITE
from labkit.run_directory.stop import asked_to_stop

FILLED = "start-filled"  # the run that the form of Start was filled with
RUNS = (*ACTIVE_STATES, "stalled")
ENDED_EARLY = ("interrupted", "failed", "lost")


def draw(run: RunDirectory, status: Status | None, liveness: str) -> None:
    """Draw the buttons that make sense for a run in this state."""
    if by := recorded_by(run):
        st.caption(f"Recorded with {clean(by)}: another program makes its steps.", width="content")
        return
    acts = state.may_act()
    if is_pending(run):
        st.caption(":material/hourglass_top: Resuming: it checks and loads first …", width="content")
    elif acts and liveness in RUNS and status and status.host == socket.gethostname():
        words = "The training saves a checkpoint and ends. *Resume* continues it from there."
        stop(run, words, _failure_key(run))
    elif acts and liveness in ENDED_EARLY and _divergence(run, status) is None:
        _resume(run)
    if acts and status is not None:
        again(run, "Again", "Opens the form for a new run with the configuration of this one.")
        _fork(run, status)
    _commands(run, liveness)


def _resume(run: RunDirectory) -> None:
    """Draw the button; before one that runs somebody else's code, that code."""
    found = None
    with suppress(InputError):  # the command says it
        found = launches.resumption(run)
    if found is None or found.is_accepted:
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
        on_click=state.attempt,
        args=(_failure_key(run), act, run),
    )


def again(run: RunDirectory, label: str, help: str, **changes: str) -> None:
    """Draw the link to the form of a new run with the configuration of this one, and ``changes`` to it.

    A link, not a button: a page that a fragment leaves may still be drawn into by it.
    """
    st.session_state.pop(FILLED, None)  # the form is filled again, whatever was changed in it
    address.link("start", label, "edit", help, again=clean(run.path), **changes)


def _fork(run: RunDirectory, status: Status) -> None:
    """Draw the form of a fork, and the link to one that was made."""
    key = f"fork-{clean(run.path)}"
    with st.popover("Fork", icon=":material/fork_right:"):
        st.write("A run of its own that shares the past of this one, and goes on with other settings.")
        most = max(1, status.step)
        kept = [step for step in run.checkpoint_steps() if 0 < step < status.total_steps] or [most]
        at = st.number_input(
            "Last step of both",
            1,
            most,
            min(kept[-1], most),
            key=f"{key}-at",
            help="One without a checkpoint is made again from the nearest before it.",
        )
        example = "learning_rate=0.01 weight_decay=0.001"
        changes = st.text_input("Settings that differ", key=f"{key}-set", placeholder=example).split()
        words = ["fork", str(run.path), "--at", str(at), *(["--set", *changes] if changes else [])]
        show_command(shlex.join(["labkit", *words]))
        args = f"{key}-failed", _ask_to_fork, key, words, changes
        st.button("Make the fork", key=f"{key}-button", on_click=state.attempt, args=args)
        state.say_failure(args[0])
        asked = st.session_state.get(key)  # or the path of the fork, which isn't asked for again
        if isinstance(asked, tuple):
            lines = background.shown(launches.command(*asked), "Forking", key)
            if lines is not None:  # the last is the command that goes on with it
                asked = st.session_state[key] = shlex.split(lines[-1])[-1]
    if isinstance(asked, str):  # beside the form: seen when that is closed
        address.link("live", "Open the fork", "fork_right", "*Resume* there goes on with it.", run=asked)


def _ask_to_fork(key: str, words: list[str], changes: list[str]) -> None:
    """Raises InputError for a file of code, which only a dashboard that was told so may run."""
    st.session_state.pop(key, None)
    for name, value in by_field(dict(one.partition("=")[::2] for one in changes)).items():
        if runs_code(name, value) and not state.allows_code():
            raise InputError(f"{name} is {value!r}, which is taken where --allow-code was given")
    st.session_state[key] = words, time.time_ns()


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


def stop(run: RunDirectory, words: str, failure: str) -> None:
    """Draw the button that stops a run or a search, or say that it is stopping.

    Args:
        run: its directory.
        words: what that does, beside the button.
        failure: the key under which ``state.attempt`` keeps why it was refused.
    """
    if _is_stopping(run):
        st.caption(":material/hourglass_top: Stopping: it saves first …", width="content")
        return
    with st.popover("Stop", icon=":material/stop_circle:"):
        st.write(words)
        key, args = f"stop-{clean(run.path)}", (failure, launches.stop, run)
        st.button("Save and stop", type="primary", key=key, on_click=state.attempt, args=args)


def _commands(run: RunDirectory, liveness: str) -> None:
    with st.popover("Command", icon=":material/content_copy:"):
        try:
            words = making_command(run)
            if not acts(words) or is_accepted(config := recorded_config(run), files_of(config)):
                then = ", which `labkit resume` then trains" * (words[1] == "fork")
                show_commands({f"Makes this run{then}:": shlex.join(words)})
            if liveness in RUNS:
                show_commands({"Saves and stops it:": shlex.join(["labkit", "stop", str(run.path)])})
            elif liveness != "finished":
                show_commands({"Continues it:": launches.resumption(run).command})
        except InputError as error:
            st.text(clean(error))


REFUSED = "start-refused"  # the run that the last start was for, and why it was refused
POLL_SECONDS = 0.5
LAST_LINES = 8  # of what a start prints before it trains


def show_start(
    run: RunDirectory | None = None, is_there: Callable[[RunDirectory], bool] = RunDirectory.exists
) -> None:
    """Draw the start of a run, and stop the page until the run is there or refused.

    Args:
        run: the run, or the folder of a search. None is the selected run.
        is_there: whether it has begun.
    """
    label = st.session_state.get("run")
    run = state.find_run(label) if run is None and label else run
    launch = launches.launch_of(run) if run is not None else None
    if run is None or is_there(run):
        return
    if launch is not None and not launch.is_waiting and not is_there(run):
        st.session_state[REFUSED] = (run.path, launch.refusal)
        launches.tidy(launch)
        launch = None
    if launch is not None:
        _wait(run, launch, is_there)
        st.stop()
    path, why = st.session_state.get(REFUSED, (None, ""))
    if path == run.path:
        st.subheader(plain(str(run.name)), anchor=False)
        st.error(f"It wasn't started: {plain(str(why))}", icon=":material/block:")
        address.link("start", "Back to the form", "arrow_back")
        st.stop()


def _wait(run: RunDirectory, launch: launches.Launch, is_there: Callable[[RunDirectory], bool]) -> None:
    st.subheader(plain(str(run.name)), anchor=False)
    st.info("Starting: it checks data set and devices first …", icon=":material/hourglass_top:")
    lines = launch.output[-LAST_LINES:]
    if lines:
        st.code(clean("\n".join(lines)), language=None, wrap_lines=True)
    if state.may_act():
        st.button("Cancel", on_click=launches.cancel, args=(run,))
    state.watch(
        "start",
        lambda: (is_there(run), launch.is_waiting, launch.output[-LAST_LINES:]),
        POLL_SECONDS,
        seen=(False, True, lines),
    )


LONGEST_INLINE = 100  # characters of a command within a line of text
READ_SECONDS = 0.5  # the longest that metrics are read


def show_end(run: RunDirectory, status: Status | None, liveness: str) -> None:
    """Draw the last checkpoint and the command that continues the run, if it ended early."""
    if status is None or liveness not in ENDED_EARLY or recorded_by(run):
        return
    words = checkpoint_in_words(run, status)
    diverged = _divergence(run, status)
    try:
        command = clean(launches.resumption(run).command)
    except InputError as error:
        st.text(f"{words} To continue: {clean(error)}")
    else:
        when = "When the cause is fixed, continue" if liveness == "failed" else "Continue"
        how = "with *Resume*, or in a shell with" if state.may_act() else "with"
        inline = len(command) <= LONGEST_INLINE and "`" not in command  # which would end the code
        if diverged is not None:
            st.caption(f"{words} With the same settings a resume would end the same way.")
        else:
            st.caption(f"{words} {when} {how} {f'`{command}`' if inline else ''}")
            if not inline:
                show_command(command)
    if diverged is not None:
        _after_divergence(run, *diverged)


def _divergence(run: RunDirectory, status: Status | None) -> tuple[int, str] | None:
    """Return the step at which loss or weights of a failed run weren't finite, and a sentence of it."""
    (found,) = state.follower((run.path,)).of([run], READ_SECONDS)
    loss, step = found.training_loss, found.step
    if status is None or found.state != "failed" or step is None:
        return None
    if loss is not None and not math.isfinite(loss):
        return step, f"The loss of step {step:,} is {number_text(loss)}."
    if status.message.startswith(WEIGHT_NOT_FINITE):
        return step, f"A weight isn't finite after step {step:,}."
    return None


def _after_divergence(run: RunDirectory, step: int, what: str) -> None:
    """Draw what to look at and what to try where loss or weights weren't finite, as ``what`` says."""
    st.markdown(f"**{what}** What may help:")
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="after-divergence"):
        icon = ":material/photo_library:"
        picked.step_button("The batch of that step", run, step, scroll=True, icon=icon)
        if run.layers_path.exists() and run.layers_path.stat().st_size:
            address.link("layers", "Layers before it", "layers", run=st.session_state["run"])
        if state.may_act():
            text = "Opens the form for a new run with a tenth of this one's learning rates."
            again(run, "Again with a tenth of the rate", text, rates="0.1")


def checkpoint_in_words(run: RunDirectory, status: Status) -> str:
    """Return the step of the newest checkpoint and what a resume makes again, in a sentence."""
    steps = run.checkpoint_steps()
    if not steps:
        return "There is no checkpoint: a resume trains from the first step."
    # A killed run's status is older than its rows.
    (found,) = state.follower((run.path,)).of([run], READ_SECONDS)
    again = max(0, (found.step or status.step) - steps[-1])
    rest = f" A resume makes {counted(again, 'step')} again." if again else " No step is lost."
    return f"The last checkpoint is of step {steps[-1]:,} of {status.total_steps:,}.{rest}"
