"""Views of the table of runs that are kept under a name: filter, columns, groups and order."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import streamlit as st

from app import state
from app.markup import plain
from labkit.errors import InputError, reason_of
from labkit.home import runs_home
from labkit.run_directory.directory import write_json_atomic
from labkit.run_directory.files import locked, read_json

VERSION = 1  # of the file
LOCK_SECONDS = 2.0  # somebody else who keeps a view holds the lock for milliseconds
FAILED, NAME, LONGEST_NAME = "views-failed", "views-name", 40


@dataclass(frozen=True)
class View:
    """What the controls say: filter, columns, by what runs are grouped, whether archived ones show, order."""

    text: str = ""
    columns: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    archived: bool = False
    sort: str = ""


@dataclass(frozen=True)
class Kept:
    """The content of the file: the views by their names."""

    views: dict[str, View] = field(default_factory=dict)
    version: int = VERSION


def kept_path() -> Path:
    """Return the file of the views, for all who see these runs."""
    return runs_home() / ".views.json"


def read_kept() -> dict[str, View]:
    """Return the views. Raises InputError if the file is damaged or of another version."""
    try:
        kept: Kept = read_json(kept_path(), Kept)
    except FileNotFoundError:
        return {}
    if kept.version != VERSION:
        raise InputError(f"{kept_path()} has version {kept.version}; allowed: {VERSION}")
    return kept.views


def keep(name: str, view: View | None) -> None:
    """Keep a view under a name; None removes it. Raises InputError where that can't be done."""
    state.check_may_act()
    if view is not None and not name:
        raise InputError("the view has no name; give it one")
    try:
        kept_path().parent.mkdir(parents=True, exist_ok=True)
        with locked(kept_path().with_name(".views.lock"), LOCK_SECONDS):  # two who keep one at once
            views = {other: one for other, one in read_kept().items() if other != name}
            write_json_atomic(kept_path(), asdict(Kept(views | ({name: view} if view else {}))))
    except OSError as error:
        raise InputError(f"{kept_path()} can't be written: {reason_of(error)}") from None


def control(view: View, show: Callable[[View], None]) -> None:
    """Draw the views, and what keeps the one that is shown. ``show``: called with the view of a click."""
    with st.popover("Views", icon=":material/bookmarks:"):
        state.say_failure(FAILED)
        try:
            kept = read_kept()
        except InputError as error:
            st.error(plain(str(error)), icon=":material/error:")
            return
        for name, one in sorted(kept.items()):
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                st.button(plain(name), key=f"view-{name}", on_click=show, args=(one,), width=240)
                if state.may_act():
                    words, args = f"Remove {name}", (FAILED, keep, name, None)
                    st.button(
                        ":material/delete:",
                        key=f"no-view-{name}",
                        help=plain(words),
                        on_click=state.attempt,
                        args=args,
                    )
        if not kept:
            st.caption("A view is the filter, columns, groups and order of the table. None is kept yet.")
        if state.may_act():
            st.text_input("Name", key=NAME, max_chars=LONGEST_NAME, placeholder="paper, table 2")
            st.button(
                "Keep this view",
                on_click=lambda: state.attempt(FAILED, keep, st.session_state[NAME].strip(), view),
            )
