"""The view of the trash: restore runs, or delete them for good."""

import os
from pathlib import Path

import pyarrow as pa
import streamlit as st

from app import state
from app.run_table.actions import attempt
from app.run_table.arrow import TEXT, TIME, column
from app.state import clean
from labkit.plurals import counted
from labkit.run_directory.trash import Trashed, delete_for_good, list_trash, restore

__all__ = ["show_trash"]

ASKED = "runs-delete"  # the paths that the page asks about


def show_trash() -> None:
    """Draw what was moved to the trash, if there is something."""
    trashed = [one for folder in state.run_folders() for one in list_trash(folder)]
    if not trashed or not state.may_act():
        return
    with st.expander(f"Trash · {counted(len(trashed), 'run')}", icon=":material/delete:"):
        table = pa.table(
            {
                "run": column([clean(one.name) for one in trashed], TEXT),
                "moved": column([int(1e6 * one.moved) for one in trashed], TIME),
                "folder": column([clean(one.home.parent) for one in trashed], TEXT),
            }
        )
        # Another list is another table, without the old selection: a tick never stays on another run.
        key = f"runs-trash-{hash(tuple(one.path for one in trashed))}"
        found = st.dataframe(
            table,
            key=key,
            hide_index=True,
            on_select="rerun",
            selection_mode="multi-row",
            column_config={
                "run": st.column_config.TextColumn("Run", width="large"),
                "moved": st.column_config.DatetimeColumn("Moved", format="distance"),
                "folder": "From",
            },
        )
        chosen = [trashed[row] for row in found.selection.rows if row < len(trashed)]
        _buttons({str(one.path): one for one in chosen})


def _buttons(chosen: dict[str, Trashed]) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Restore", icon=":material/undo:", disabled=not chosen, on_click=_restore, args=(chosen,))
        st.button(
            "Delete for good",
            icon=":material/delete_forever:",
            disabled=not chosen,
            on_click=_ask,
            args=(chosen,),
        )
    asked = st.session_state.get(ASKED)
    if asked and asked == list(chosen):
        files, size = (sum(part) for part in zip(*(_size(one.path) for one in chosen.values()), strict=True))
        st.warning(
            f"This deletes {counted(len(chosen), 'run')} for good: {counted(int(files), 'file')}, "
            f"{size:,.1f} MiB. It can't be undone."
        )
        with st.container(horizontal=True):
            st.button(
                f"Yes, delete {counted(len(chosen), 'run')}", on_click=_delete, args=(chosen,), type="primary"
            )
            st.button("Keep", on_click=lambda: st.session_state.pop(ASKED, None))


def _ask(chosen: dict[str, Trashed]) -> None:
    st.session_state[ASKED] = list(chosen)


def _restore(chosen: dict[str, Trashed]) -> None:
    attempt(chosen, lambda run: restore(chosen[str(run.path)]), "Restored")


def _delete(chosen: dict[str, Trashed]) -> None:
    st.session_state.pop(ASKED, None)
    attempt(chosen, lambda run: delete_for_good(chosen[str(run.path)]), "Deleted for good:")


def _size(folder: Path) -> tuple[int, float]:
    """Return the number of files below a folder and their size in MiB. No link is followed."""
    files, size = 0, 0
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(here, name)).st_size
                files += 1
            except OSError:  # it is being deleted
                continue
    return files, size / 2**20
