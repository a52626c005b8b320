"""What can be done with the selected runs (compare, open, tag, note, archive, trash), and the trash."""

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st

from app import address, state
from app.markup import plain
from app.run_table import table
from app.run_table.table import Column
from app.state import MAX_RUNS, clean
from labkit.errors import InputError
from labkit.plurals import counted, listed
from labkit.run_directory import RunDirectory
from labkit.run_directory.find import rename_run
from labkit.run_directory.notes import MAX_TAG, Notes, change_notes
from labkit.run_directory.stop import Trashed, delete_for_good, list_trash, move_to_trash, restore
from labkit.run_directory.summary import RunSummary

LINK, DONE, FAILED, UNDO = "runs-link", "runs-done", "runs-failed", "runs-undo"
T = TypeVar("T")
SHOWN_NAMES = 3  # of the selected runs


def bar(chosen: Sequence[RunSummary], labels: dict[str, str]) -> None:
    """Draw the buttons. They are there without a selection, too: the table must not jump below the pointer.

    Args:
        chosen: the selected runs.
        labels: of the runs by their paths.
    """
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="runs-bar"):
        there = [labels[run.path] for run in chosen]
        for label, icon, page, fits, how in (
            ("Compare", "stacked_line_chart", "compare", 1 < len(there) <= MAX_RUNS, f"2 to {MAX_RUNS} runs"),
            ("Open live", "monitoring", "live", len(there) == 1, "one run"),
        ):
            about: dict[str, Any] = {} if fits else {"disabled": True, "help": f"Select {how}."}
            st.button(label, icon=f":material/{icon}:", on_click=link, args=(page, there), **about)
        if state.may_act():
            _tags(chosen)
            _archive(chosen)
            st.button(
                "Move to trash",
                icon=":material/delete:",
                disabled=not chosen,
                on_click=_to_trash,
                args=([run.path for run in chosen],),
            )
    names = listed([clean(run.name) for run in chosen], SHOWN_NAMES)
    nothing = "Click a name to open its run. Tick runs to compare or change them."
    if state.may_act():
        nothing += " The pencil beside a name, or F2, changes name, tags and note."
    st.text(f"{len(chosen)} selected: {names}" if chosen else nothing)


def link(page: str, labels: list[str]) -> None:
    """Remember the page to go to. Runs before the sidebar is drawn, whose run can be set only then."""
    state.select_run(labels[0])
    st.session_state[LINK] = (page, labels)


def follow_link() -> None:
    """Go to the page that a name or a button chose, if one did."""
    page, labels = st.session_state.pop(LINK, (None, []))
    if page:
        runs = {"runs": labels} if page == "compare" else {}
        address.go(page, **runs, run=labels[0])


def attempt(runs: Iterable[str], act: Callable[[RunDirectory], T], done: str) -> list[T]:
    """Do something with each of the runs, and remember what to report. Returns the results.

    Args:
        runs: the paths.
        act: raises InputError where it can't be done.
        done: what was done, before the number of runs: ``Archived``.
    """
    results, failures = [], []
    if why := state.why_not():
        runs, failures = (), [why]
    for path in runs:
        try:
            results.append(act(RunDirectory(path)))
        except InputError as error:
            failures.append(clean(error))
    st.session_state[DONE] = f"{done} {counted(len(results), 'run')}." if results else ""
    st.session_state[FAILED] = failures
    st.session_state.pop(UNDO, None)
    return results


def report() -> None:
    """Show what the last button did. What failed, and the way to undo it, stay until the next one."""
    for failure in st.session_state.get(FAILED, []):
        st.error(plain(failure), icon=":material/block:")
    if undo := st.session_state.get(UNDO):
        with st.container(horizontal=True, vertical_alignment="center", key="runs-undo-bar"):
            st.text(st.session_state[DONE], width="content")
            st.button("Undo", icon=":material/undo:", on_click=undo[0], args=undo[1:])
    elif done := st.session_state.pop(DONE, ""):
        st.toast(plain(done))


def _to_trash(paths: list[str]) -> None:
    folders = state.run_folders()
    moved = attempt(paths, lambda run: move_to_trash(run, folders), "Moved to the trash:")
    if moved:
        st.session_state[UNDO] = (_take_back, moved)


def _take_back(moved: list[Trashed]) -> None:
    by_path = {str(one.path): one for one in moved}
    attempt(by_path, lambda run: restore(by_path[str(run.path)]), "Restored")


def _tags(chosen: Sequence[RunSummary]) -> None:
    with st.popover("Tags", icon=":material/label:", disabled=not chosen):
        there = list(dict.fromkeys(tag for run in chosen for tag in run.notes.tags))
        with st.form("runs-tags", border=False):
            st.text_input("Add a tag", max_chars=MAX_TAG, key="runs-add-tag")
            st.pills(
                "Remove",
                there,
                selection_mode="multi",
                key="runs-remove-tags",
                disabled=not there,
                format_func=plain,
            )
            st.form_submit_button("Save", on_click=_save_tags, args=([run.path for run in chosen],))


def _save_tags(paths: list[str]) -> None:
    add = [tag for tag in [str(st.session_state.get("runs-add-tag") or "").strip()] if tag]
    remove = list(st.session_state.get("runs-remove-tags") or [])
    if add or remove:
        attempt(paths, lambda run: change_notes(run, add=add, remove=remove), "Changed the tags of")
        st.session_state["runs-add-tag"] = ""


def texts_of(run: RunSummary) -> dict[str, str]:
    """Return what can be changed of a run beside its name; a tag with a comma stands in quotes."""
    quoted = [
        '"' + tag.replace('"', '""') + '"' if "," in tag or '"' in tag else tag for tag in run.notes.tags
    ]
    return {"tags": ", ".join(quoted), "note": run.notes.note}


def _tags_in(text: str) -> list[str]:
    try:
        (tags,) = csv.reader([text], skipinitialspace=True) if text.strip() else [[]]
    except csv.Error as error:
        raise InputError(f"the tags can't be read: {error}; write them with commas between") from None
    return [tag.strip() for tag in tags if tag.strip()]


def edit(path: str, before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Change what ``now`` has of name, tags and note of a listed run, whose ``texts_of`` were ``before``.

    What others have changed meanwhile stays. Returns the path of the run; None if something was refused.
    """

    def change(run: RunDirectory) -> Notes:
        old, new = (_tags_in(texts.get("tags", "")) for texts in (before, now))
        add, remove = (set(new) - set(old), set(old) - set(new)) if "tags" in now else ((), ())
        was = before.get("note", "") if "note" in now else None
        tags = [tag for tag in new if tag in add]
        return change_notes(run, add=tags, remove=remove, note=now.get("note"), instead_of=was)

    if path not in map(str, (run.path for run in state.listed_runs().values())):
        st.session_state[FAILED] = [clean(f"{path} isn't among the runs any more; reload the page")]
        return None
    if now.keys() & {"tags", "note"} and not attempt([path], change, "Changed tags or note of"):
        return None
    return rename(path, now["name"].strip()) if "name" in now else path


def _set_archived(paths: list[str], archived: bool, may_undo: bool = True) -> None:
    done = "Archived" if archived else "Unarchived"
    if attempt(paths, lambda run: change_notes(run, archived=archived), done) and may_undo:
        st.session_state[UNDO] = (_set_archived, paths, not archived, False)


def _archive(chosen: Sequence[RunSummary]) -> None:
    back = bool(chosen) and all(run.notes.archived for run in chosen)
    paths = [run.path for run in chosen if run.notes.archived is back]
    st.button(
        "Unarchive" if back else "Archive",
        key="runs-archive",
        icon=":material/unarchive:" if back else ":material/archive:",
        disabled=not chosen,
        help="An archived run is left out of lists; its files stay.",
        on_click=_set_archived,
        args=(paths, not back),
    )


def rename(path: str, new: str) -> str | None:
    """Rename a listed run, and say what keeps its old name. It stays selected if it is. Returns its path."""
    labels = {str(run.path): label for label, run in state.listed_runs().items()}
    renamed = attempt([path] if path in labels else [], lambda run: rename_run(run, new), "Renamed")
    for run, lines in renamed:
        st.session_state[DONE] = clean(f"The run is now called {run.name}. {' '.join(lines)}")
        st.session_state[UNDO] = (rename, str(run.path), Path(path).name)
        if st.session_state.get("run") == labels[path]:
            state.select_run(
                next(label for label, one in state.listed_runs().items() if one.path == run.path)
            )
    return str(renamed[0][0].path) if renamed else None


ASKED = "runs-delete"  # the paths that the page asks about
TRASH_TABLE = "runs-trash"
TRASH = {
    "moved": Column("Moved", lambda one: one.moved, round, "time"),
    "folder": Column("From", lambda one: one.home.parent),
}


def show_trash() -> None:
    """Draw what was moved to the trash, if there is something."""
    trashed = [one for folder in state.run_folders() for one in list_trash(folder)]
    if not trashed or not state.may_act():
        return
    with st.expander(f"Trash · {counted(len(trashed), 'run')}", icon=":material/delete:"):
        rows = [table.row(str(one.path), one.name, one, TRASH.values()) for one in trashed]
        table.draw(TRASH, rows, key=TRASH_TABLE, label="Runs in the trash")
        ticked = table.ticked(TRASH_TABLE)
        _buttons({str(one.path): one for one in trashed if str(one.path) in ticked})


def _buttons(chosen: dict[str, Trashed]) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        moved = list(chosen.values())
        st.button("Restore", icon=":material/undo:", disabled=not moved, on_click=_take_back, args=(moved,))
        st.button(
            "Delete for good",
            icon=":material/delete_forever:",
            disabled=not chosen,
            on_click=lambda: st.session_state.update({ASKED: list(chosen)}),
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
