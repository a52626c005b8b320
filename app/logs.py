"""The end of a log, as a page shows it."""

import html
import os
from pathlib import Path

import streamlit as st

from labkit.run_directory.files import open_run_file

__all__ = ["show_log", "tail"]


def show_log(text: str) -> None:
    """Draw the text of a log, or say that it is empty."""
    if text.strip():
        # Not st.code: its text can't be scrolled by the keyboard.
        st.html(f'<pre class="lk-log" tabindex="0" aria-label="End of the log">{html.escape(text)}</pre>')
    else:
        st.caption("The log is empty.")


def tail(path: Path, max_bytes: int = 32_768) -> str:
    """Return the last whole lines of a text file, at most ``max_bytes``; empty if it can't be read."""
    try:
        with open_run_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            data = file.read(max_bytes)
    except OSError:
        return ""
    if size > max_bytes:
        data = data[data.find(b"\n") + 1 :]
    return data.decode(errors="replace")
