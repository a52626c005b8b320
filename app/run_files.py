"""The logs and the checkpoints of a run, folded: nothing is read while they are closed."""

import html
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import streamlit as st

from app.markup import read_end, table_html, tail, unfolding
from app.report.downloads import file_name
from app.state import as_code, clean
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import best_checkpoint, checkpoint_path

LAST_BYTES = 32_768  # of a log that are shown
SEARCHED_BYTES = 16_000_000  # of the end of a log
MOST_BYTES = 500_000_000  # of a download, which Streamlit keeps in memory
MOST_FOUND = 500  # lines
MOST_LISTED = 50  # checkpoints
REFRESH_SECONDS = 2.0


def section(run: RunDirectory, *, follows: bool, unfolded: bool = False) -> None:
    """Draw the logs and the checkpoints of a run.

    Args:
        run: the run.
        follows: whether what is unfolded is read again every two seconds.
        unfolded: whether the log is shown at first.
    """
    for label, icon, is_open, draw in (
        ("Log", "article", unfolded, _log),
        ("Checkpoints", "save", False, _checkpoints),
    ):
        part = st.fragment(draw, run_every=REFRESH_SECONDS if follows else None, key=f"run-{label}")
        key = f"{label}-of-{clean(run.path)}"
        unfolding(label, partial(part, run), key=key, icon=icon, expanded=is_open)


def _log(run: RunDirectory) -> None:
    logs = {"out.log": run.log_path}
    if run.console_path.is_file():
        logs["console.log"] = run.console_path
    if run.cluster_path.is_dir():
        logs |= {path.stem.replace("-", ":"): path for path in sorted(run.cluster_path.glob("*.log"))}
    key, name = clean(run.path), "out.log"
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if len(logs) > 1:
            name = st.selectbox(
                "Log",
                list(logs),
                key=f"log-{key}",
                help="`out.log` is the run's, `console.log` what its process printed, errors of Python too; "
                "the others are of the tasks of a cluster.",
                width=200,
            )
        path = logs.get(name, run.log_path)
        wanted = st.text_input(
            "Search", key=f"log-search-{key}", placeholder="Lines with this text", width=260
        )
        st.download_button(
            "Download",
            lambda: read_end(path, MOST_BYTES),
            f"{file_name(run)}-{path.name}",
            "text/plain",
            key=f"log-file-{key}",
            on_click="ignore",
            icon=":material/download:",
        )
    text = tail(path, LAST_BYTES)
    if wanted and wanted.strip():
        found = [line for line in tail(path, SEARCHED_BYTES).splitlines() if wanted.lower() in line.lower()]
        last = f", the last {MOST_FOUND} are shown" if len(found) > MOST_FOUND else ""
        st.caption(f"{counted(len(found), 'line')} with this text{last}")
        text = "\n".join(found[-MOST_FOUND:])
    with st.container(height=420, autoscroll=True, key="log-lines"):
        if text.strip():
            # Not st.code: its text can't be scrolled by the keyboard.
            st.html(f'<pre class="lk-log" tabindex="0" aria-label="Log">{html.escape(text)}</pre>')
        else:
            st.caption("The log is empty.")


def _checkpoints(run: RunDirectory) -> None:
    steps = run.checkpoint_steps()
    if not steps:
        st.caption("This run has kept no checkpoint.")
        return
    best, rows = best_checkpoint(run.checkpoints_path), []
    for step in reversed(steps[-MOST_LISTED:]):
        folder = checkpoint_path(run.checkpoints_path, step)
        words = [word for word, which in (("best", best), ("last", steps[-1])) if which == step]
        rows.append((", ".join([f"{step:,}", *words]), *_size_and_time(folder), folder.name))
    st.html(table_html(("Step", "Size", "Written", "Folder"), rows))
    newest = f": the newest {MOST_LISTED} of {len(steps):,}" if len(steps) > MOST_LISTED else ""
    st.caption(f"In {as_code(run.checkpoints_path)}{newest}")


def _size_and_time(folder: Path) -> tuple[str, str]:
    """Return the size of the files of a checkpoint, and when it was written; dashes if it was removed."""
    with suppress(OSError):
        size = sum(file.lstat().st_size for file in folder.iterdir())
        written = time.strftime("%d %B %Y, %H:%M:%S", time.localtime(folder.lstat().st_mtime))
        return f"{size / 2**20:,.1f} MiB", written
    return "–", "–"
