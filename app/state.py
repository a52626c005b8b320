"""State that the pages share: the selected run, mirrored in the URL, and the metrics read so far."""

import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import streamlit as st

from app import address, gate
from app.charts.machine import Machine, MachineStore
from app.charts.store import CurveStore, Snapshot, store_of
from app.markup import plain, show_command
from labkit.config.config import describe
from labkit.errors import InputError
from labkit.home import runs_home
from labkit.plurals import counted
from labkit.run_directory import RunDirectory, list_runs
from labkit.run_directory.directory import check_folders
from labkit.run_directory.find import known_runs
from labkit.run_directory.stop import list_trash
from labkit.run_directory.summary import RunSummary, Summaries

MAX_RUNS = 50  # that are compared at once
SEEN = "run-seen"  # the path of the run that was shown last
WATCH_SECONDS = 5.0  # between two checks of what changes rarely: the list of runs, a run that has ended


def refuse_open_server() -> None:
    """Stop with an explanation if the server listens on all interfaces because no address was set.

    ``app/.streamlit/config.toml`` binds the server to loopback; this check is for when that file is missing.
    """
    if not st.get_option("server.address"):
        st.error(
            "No server address is set, so this server would answer every machine in the network. "
            "Start it with `--server.address 127.0.0.1`, or with the address that it shall answer on.",
            icon=":material/lock:",
        )
        st.stop()


def run_folders() -> list[Path]:
    """Return the folders of the listed runs: the typed one, those of ``LABKIT_RUNS``, ``<home>/runs``."""
    # The URL is used until the text field has been drawn once.
    typed = str(st.session_state.get("folder", st.query_params.get("folder")) or "")
    if gate.is_locked():  # a visitor without the token sees what the owner shows
        typed = ""
    named = [typed, *os.environ.get("LABKIT_RUNS", "").split(os.pathsep)]
    folders = [Path(os.path.expanduser(name)).absolute() for name in named if name.strip()]
    return list(dict.fromkeys([*folders, runs_home()]))


def may_act() -> bool:
    """Return whether the pages may change something."""
    return not why_not()


def why_not() -> str:
    """Return why the pages may change nothing, in a sentence; "" where they may."""
    if os.environ.get("LABKIT_READ_ONLY", "") not in ("", "0"):
        return "This dashboard is read-only: it was started with --read-only."
    return "To act on runs, give the token that the server printed." if gate.is_locked() else ""


def check_may_act() -> None:
    """Raise InputError where the pages may change nothing."""
    if why := why_not():
        raise InputError(why)


def attempt(key: str, act: Callable[..., object], *args: Any) -> None:
    """Do what a click asks for. If it is refused, the reason is kept under ``key`` until the next attempt."""
    st.session_state.pop(key, None)
    try:
        act(*args)
    except InputError as error:
        st.session_state[key] = str(error)


def say_failure(key: str) -> None:
    """Draw why the last attempt under ``key`` was refused, if it was."""
    if why := st.session_state.get(key):
        st.error(plain(why), icon=":material/block:")


def conditions_in(text: str) -> list[str]:
    """Return the words and conditions of a filter. Raises InputError for half a quotation."""
    try:
        text = re.sub(r"\s*([!<>]?=|[<>])\s*", r"\1", text)  # "accuracy > 80 %" is one condition
        return shlex.split(re.sub(r"([<>]=?[\d.]+)\s+(?=(%|s|min|h|d)(\s|$))", r"\1", text))
    except ValueError:
        raise InputError(f"{text!r} has a quotation mark without its partner") from None


def allows_code() -> bool:
    """Return whether the form may name a file of code and an address to listen on."""
    return os.environ.get("LABKIT_ALLOW_CODE", "") not in ("", "0")


def listed_runs() -> dict[str, RunDirectory]:
    """Return the runs of all folders by their labels, the most recently active first.

    The label of a run is its name, or its path if another run has the same name.
    """
    others = [folder for folder in run_folders() if folder != runs_home()]
    found = [*(run for folder in others for run in list_runs(folder)), *known_runs()]
    runs = list({run.path: run for run in found}.values())
    runs.sort(key=RunDirectory.last_active, reverse=True)
    shared = Counter(clean(run.name) for run in runs)
    labels: dict[str, RunDirectory] = {}
    for run in runs:
        label = clean(run.name)
        if shared[label] > 1:
            label = clean(run.path)
        while label in labels:  # two names that differ in bytes that aren't Unicode
            label += "?"
        labels[label] = run
    return labels


def clean(text: object) -> str:
    """Return ``text`` with what isn't Unicode, as in the name of a file, replaced by question marks."""
    return str(text).encode(errors="replace").decode()


@st.cache_resource(max_entries=12, show_spinner=False)
def follower(what: tuple[Path, ...]) -> Summaries:
    """Return what all sessions follow runs with: those of some folders, or some runs that are compared."""
    return Summaries(describe)


def summaries(runs: Iterable[RunDirectory], seconds: float) -> list[RunSummary]:
    """Return the summary of each listed run. Only what has changed is read, for about ``seconds`` at most.

    Metrics that there was no time for are unknown until the next call.
    """
    return follower(tuple(run_folders())).of(runs, seconds)


def find_run(label: str) -> RunDirectory:
    """Return the run of ``label``: a path, or a name in one of the folders. The run may not exist."""
    given = Path(os.path.expanduser(label))
    if gate.is_locked():
        every = listed_runs()
        known = next((run for run in every.values() if str(run.path) == label), every.get(label))
        return known or RunDirectory(runs_home() / given.name)
    if given.is_absolute():
        return RunDirectory(given)
    for folder in reversed(run_folders()):
        if (run := RunDirectory(folder / given)).exists():
            return run
    here = RunDirectory(given)
    if here.exists():
        return here
    # Of a run elsewhere, or with "?" for what isn't Unicode.
    return listed_runs().get(label) or RunDirectory(runs_home() / given)


SETTLES = 2.0  # seconds in which the browser may still send the run that was selected before


def select_run(label: str) -> None:
    """Select a run. Call it from a callback: once the sidebar is drawn, its widget decides.

    A timer of the page may send the widget as the browser still has it, which is no choice of the reader.
    """
    before = st.session_state.get("run")
    st.session_state["run-selected"] = label, before, time.monotonic()
    st.session_state["run"] = label


def _take_choice() -> None:
    chosen = st.session_state.get("run")
    label, before, at = st.session_state.get("run-selected", (None, None, 0.0))
    late = label and chosen == before and time.monotonic() - at < SETTLES
    st.session_state["run"] = label if late else completed(chosen)


def choose_run() -> None:
    """Draw the selection of the run. It is kept in ``st.session_state["run"]`` and in the URL."""
    listed = listed_runs()
    labels = list(listed)
    # Streamlit's own binding of a widget to the URL loses the value when the page changes while an earlier
    # run of the script is still active. A run of the URL that isn't listed becomes an option, so that the
    # page can say what is wrong with it.
    shown = st.session_state.get("run") or (labels[0] if labels else None)
    chosen = address.follow("run", shown) or shown
    st.session_state["run"] = chosen
    options = labels if not chosen or chosen in labels else [chosen, *labels]
    st.selectbox(
        "Run",
        options,
        index=0 if options else None,  # with None there would be a button that clears the choice
        key="run",
        on_change=_take_choice,
        accept_new_options=True,
        placeholder="Choose a run, or type a path",
        help="The most recently active run is first. You can also type a part of a name, "
        "or the path of a run directory.",
    )
    st.text_input(
        "More runs from",
        key="folder",
        bind="query-params",
        placeholder="/path/to/a/folder/of/runs",
        help="Listed in addition to the folders of the variable LABKIT_RUNS and of labkit's home.",
    )
    missing = [folder for folder in run_folders() if folder != runs_home() and not os.path.isdir(folder)]
    for folder in missing:
        st.warning(f"There is no folder {as_code(folder)}.", icon=":material/folder_off:")
    there = [as_code(folder) for folder in run_folders() if folder not in missing]
    folders = {folder.absolute() for folder in run_folders()}
    there += ["elsewhere"] if any(run.path.parent not in folders for run in listed.values()) else []
    st.caption(f"{counted(len(labels), 'run')} in {', '.join(there)}")

    def training() -> int:
        return changed_at(find_run(chosen).config_path) if chosen else 0

    watch("runs", lambda: (frozenset(listed_runs()), training()), seen=(frozenset(labels), training()))


def as_code(path: object) -> str:
    """Return a path or a name as Markdown shows it unchanged."""
    return "`" + clean(path).replace("`", "'") + "`"


def changed_at(path: Path) -> int:
    """Return when a file was changed, in ns; 0 if it's gone.

    That of a run's configuration tells a training from one that was started over in the same directory.
    """
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):  # ValueError: a NUL in a link's name
        return 0


def completed(typed: str | None) -> str:
    """Return the label of the only run whose label has the text that was typed.

    If there is a run of that very name or path, or not exactly one such label, it is the text itself.
    """
    labels = listed_runs()
    text = typed if typed in labels else (typed or "").strip()
    if not text or text in labels or find_run(text).exists():
        return text
    fitting = [label for label in labels if text.lower() in label.lower()]
    return fitting[0] if len(fitting) == 1 else text


def selected_run() -> RunDirectory:
    """Return the selected run. If there is none to show, say why and stop the page."""
    label = st.session_state.get("run")
    if not label:
        say_no_runs()
        watch("none", lambda: bool(listed_runs()))
        st.stop()
    run = find_run(label)
    if why := why_not_shown(run):
        st.title(plain(run.name))
        st.warning(why, icon=":material/folder_off:")
        watch(f"missing-{clean(run.path)}", lambda: why_not_shown(run), seen=why)
        st.stop()
    st.session_state[SEEN] = run.path
    return run


def why_not_shown(run: RunDirectory) -> str:
    """Return in Markdown why a run can't be shown; "" if it can."""
    if not run.exists():
        return _why_missing(run)
    if clean(run.path) != str(run.path):  # Streamlit's caches know only paths in Unicode
        words = "has bytes that aren't Unicode. Rename the folder to see the run here."
        return f"The path {as_code(run.path)} {words}"
    try:
        check_folders(run)
    except InputError as error:
        return plain(str(error))
    return ""


def say_no_runs() -> None:
    """Say that there are no runs yet, with the ways to start one."""
    st.write("No runs yet. Start a training, and it appears here within seconds:")
    address.link("start", "Start a training", "add_circle")
    show_command("labkit train --preset smoke")


def _why_missing(run: RunDirectory) -> str:
    """Return in Markdown what has become of a run that isn't there, and what to do."""
    if any(one.home == run.path for one in list_trash(run.path.parent)):
        restore = shlex.join(["labkit", "restore", str(run.path)])
        how = "*Restore*, below the table of the page *Runs*," if may_act() else f"`{restore}`"
        return f"{as_code(run.path)} was moved to the trash. {how} brings it back."
    if st.session_state.get(SEEN) == run.path:
        return (
            f"There is no run in {as_code(run.path)} any more: it was deleted, moved or renamed. "
            "Choose another run on the left. If this one is started over, it appears here by itself."
        )
    return (
        f"There is no run in {as_code(run.path)}: it has no `config.json`. "
        "Choose another run on the left, or wait if this one is just being started."
    )


def watch(name: str, look: Callable[[], Any], seconds: float = WATCH_SECONDS, seen: Any = None) -> None:
    """Run the whole page again when what ``look`` returns has changed. Until then nothing is drawn.

    Args:
        name: identifies the watch on the page.
        look: returns the value to watch. It should read no more than a few file attributes.
        seconds: between two looks.
        seen: the value that the page shows; None takes a first look.
    """
    shown = look() if seen is None else seen
    drawn = False

    @st.fragment(run_every=seconds, key=f"watch-{name}")
    def again() -> None:
        nonlocal shown, drawn
        if not drawn:  # with the page, which has just looked
            drawn = True
            return
        now = look()
        if now != shown:
            shown = now
            st.rerun()

    again()


def machine(run: RunDirectory) -> Machine:
    """Return what the processes of a run have taken of their machines. Raises OSError."""
    return store_of(MachineStore, run.path).poll()


def curves(run: RunDirectory) -> Snapshot:
    """Return the current metrics of a run. Only what was appended since the last call is read."""
    return store_of(CurveStore, run.metrics_path).poll()
