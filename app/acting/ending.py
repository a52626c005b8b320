"""What a run left that ended early: its last checkpoint, the end of its logs, and what to do next."""

import streamlit as st

from app import state
from app.acting import launches
from app.logs import show_log, tail
from app.state import clean
from labkit.errors import InputError
from labkit.plurals import counted
from labkit.run_directory import RunDirectory, Status

__all__ = ["show_end"]

LONGEST_INLINE = 100  # characters of a command within a line of text
LAST_BYTES = 12_000  # of a log


def show_end(run: RunDirectory, status: Status | None, liveness: str) -> None:
    """Draw the last checkpoint, the command that continues the run and the ends of its logs."""
    if status is None or liveness not in ("interrupted", "failed", "lost"):
        return
    words = checkpoint_in_words(run, status)
    try:
        command = clean(launches.resumption(run).command)
    except InputError as error:
        st.text(f"{words} To continue: {clean(error)}")
    else:
        when = "When the cause is mended, continue" if liveness == "failed" else "Continue"
        how = "with *Resume*, or in a shell with" if state.may_act() else "with"
        inline = len(command) <= LONGEST_INLINE and "`" not in command  # which would end the code
        st.caption(f"{words} {when} {how} {f'`{command}`' if inline else ''}")
        if not inline:
            st.code(command, language="bash", wrap_lines=True)
    with st.expander("End of the log", icon=":material/article:", expanded=liveness != "interrupted"):
        _log(run)


def checkpoint_in_words(run: RunDirectory, status: Status) -> str:
    """Return the step of the newest checkpoint and what a resume makes again, in a sentence."""
    steps = run.checkpoint_steps()
    if not steps:
        return "There is no checkpoint: a resume trains from the first step."
    again = max(0, status.step - steps[-1])
    rest = f" A resume makes {counted(again, 'step')} again." if again else " No step is lost."
    return f"The last checkpoint is of step {steps[-1]:,} of {status.total_steps:,}.{rest}"


def _log(run: RunDirectory) -> None:
    logs = {"out.log": run.log_path}
    if run.console_path.is_file():
        logs["console.log"] = run.console_path
    if run.cluster_path.is_dir():
        logs |= {path.stem.replace("-", ":"): path for path in sorted(run.cluster_path.glob("*.log"))}
    chosen = "out.log"
    if len(logs) > 1:
        chosen = st.selectbox(
            "Log",
            list(logs),
            key=f"log-{clean(run.path)}",
            help="`out.log` is the run's, `console.log` what its process printed, errors of Python too; "
            "the others are of the tasks of a cluster.",
            width=260,
        )
    show_log(tail(logs.get(chosen, run.log_path), LAST_BYTES))
