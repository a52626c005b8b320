"""State that the pages share: the selected run, mirrored in the URL, and the metrics read so far."""

import os
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path

import streamlit as st

from app.charts.store import CurveStore, Snapshot
from labkit.home import runs_home
from labkit.run_directory import RunDirectory, list_runs

__all__ = [
    "choose_run",
    "curves",
    "find_run",
    "refuse_open_server",
    "run_folders",
    "run_labels",
    "selected_run",
    "tail",
    "watch",
]

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
    named = [typed, *os.environ.get("LABKIT_RUNS", "").split(os.pathsep)]
    folders = [Path(name).expanduser().absolute() for name in named if name.strip()]
    return list(dict.fromkeys([*folders, runs_home()]))


def run_labels() -> list[str]:
    """Return the label of each run, the most recently active first: its name, or its path if not unique."""
    runs = [run for folder in run_folders() for run in list_runs(folder)]
    runs.sort(key=RunDirectory.last_active, reverse=True)
    shared = Counter(run.name for run in runs)
    return [run.name if shared[run.name] == 1 else str(run.path) for run in runs]


def find_run(label: str) -> RunDirectory:
    """Return the run of ``label``: a path, or a name in one of the folders. The run may not exist."""
    given = Path(label.strip()).expanduser()
    if given.is_absolute():
        return RunDirectory(given)
    for folder in reversed(run_folders()):
        if (run := RunDirectory(folder / given)).exists():
            return run
    here = RunDirectory(given)
    return here if here.exists() else RunDirectory(runs_home() / given)


def choose_run() -> None:
    """Draw the selection of the run. It is kept in ``st.session_state["run"]`` and in the URL."""
    labels = run_labels()
    # A run of the URL that isn't listed becomes an option, so that the page can say what is wrong with it.
    chosen = st.session_state.get("run") or st.query_params.get("run") or (labels[0] if labels else None)
    st.session_state["run"] = chosen
    st.selectbox(
        "Run",
        labels if not chosen or chosen in labels else [chosen, *labels],
        index=None,
        key="run",
        accept_new_options=True,
        placeholder="Choose a run, or type a path",
        help="The most recently active run is first. You can also type the path of a run directory.",
    )
    # Reloading the page or sharing its link keeps this run. Streamlit's own binding of a widget to the URL
    # loses the value when the page changes while an earlier run of the script is still active.
    if chosen and st.query_params.get("run") != chosen:
        st.query_params["run"] = chosen
    st.text_input(
        "More runs from",
        key="folder",
        bind="query-params",
        placeholder="/path/to/a/folder/of/runs",
        help="Listed in addition to the folders of the variable LABKIT_RUNS and of labkit's home.",
    )
    st.caption(
        f"{len(labels):,} run{'s' * (len(labels) != 1)} in " + ", ".join(f"`{f}`" for f in run_folders())
    )
    watch("runs", lambda: frozenset(run_labels()))


def selected_run() -> RunDirectory:
    """Return the selected run. If there is none to show, say why and stop the page."""
    label = st.session_state.get("run")
    if not label:
        st.title("No runs yet")
        st.write("Start a training, and it appears here within seconds:")
        st.code("labkit train --preset smoke", language="bash")
        watch("none", lambda: bool(run_labels()))
        st.stop()
    run = find_run(label)
    if not run.exists():
        st.title(run.name)
        st.warning(
            f"There is no run in `{run.path}`: it has no `config.json`. "
            "Choose another run on the left, or wait if this one is just being started.",
            icon=":material/folder_off:",
        )
        watch(f"missing-{run.path}", run.exists)
        st.stop()
    return run


def watch(name: str, signature: Callable[[], Hashable]) -> None:
    """Run the whole page again when ``signature`` has changed. It is checked every ``WATCH_SECONDS``.

    Args:
        name: identifies the watch on the page.
        signature: returns the value to watch. It should read no more than a few file attributes.
    """
    seen = signature()

    @st.fragment(run_every=WATCH_SECONDS, key=f"watch-{name}")
    def look() -> None:
        nonlocal seen
        now = signature()
        if now != seen:
            seen = now
            st.rerun()

    look()


@st.cache_resource(max_entries=16, show_spinner=False)
def _curve_store(path: Path) -> CurveStore:
    return CurveStore(path)


def curves(run: RunDirectory) -> Snapshot:
    """Return the current metrics of a run. Only what was appended since the last call is read."""
    return _curve_store(run.metrics_path).poll()


def tail(path: Path, max_bytes: int = 32_768) -> str:
    """Return the last whole lines of a text file, at most ``max_bytes``; empty if it can't be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            data = file.read(max_bytes)
    except OSError:
        return ""
    if size > max_bytes:
        data = data[data.find(b"\n") + 1 :]
    return data.decode(errors="replace")
