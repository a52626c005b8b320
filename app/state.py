"""What the pages share: the chosen run, mirrored in the URL, and what was read from disk."""

import os
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path

import streamlit as st

from app.curves import CurveStore, Snapshot
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

# Seconds between two looks at what changes seldom: the list of runs, a run that has ended.
WATCH_SECONDS = 5.0


def refuse_open_server() -> None:
    """Stop with an explanation where the server listens on all interfaces and nobody asked for that.

    ``app/.streamlit/config.toml`` binds it to loopback; this is for the day that the file isn't there.
    """
    if not st.get_option("server.address"):
        st.error(
            "This server would answer every machine in the network, because no address was given. "
            "Start it with `--server.address 127.0.0.1`, or name the address to open.",
            icon=":material/lock:",
        )
        st.stop()


def run_folders() -> list[Path]:
    """Return the folders whose runs are listed: the one typed in, those of ``LABKIT_RUNS``, the home's."""
    # The URL counts until the field below the choice of run has been drawn once.
    typed = str(st.session_state.get("folder", st.query_params.get("folder")) or "")
    named = [typed, *os.environ.get("LABKIT_RUNS", "").split(os.pathsep)]
    folders = [Path(name).expanduser().absolute() for name in named if name.strip()]
    return list(dict.fromkeys([*folders, runs_home()]))


def run_labels() -> list[str]:
    """Return what names each known run, the last active one first: its name, or its path if two share it."""
    runs = [run for folder in run_folders() for run in list_runs(folder)]
    runs.sort(key=RunDirectory.last_active, reverse=True)
    shared = Counter(run.name for run in runs)
    return [run.name if shared[run.name] == 1 else str(run.path) for run in runs]


def find_run(label: str) -> RunDirectory:
    """Return the run that ``label`` names: a path, or a name in one of the folders. It may not exist."""
    given = Path(label.strip()).expanduser()
    if given.is_absolute():
        return RunDirectory(given)
    for folder in reversed(run_folders()):
        if (run := RunDirectory(folder / given)).exists():
            return run
    here = RunDirectory(given)
    return here if here.exists() else RunDirectory(runs_home() / given)


def choose_run() -> None:
    """Draw the choice of run; it is kept in ``st.session_state["run"]`` and in the URL's ``run``."""
    labels = run_labels()
    # The URL first: a run that isn't listed is an option too, so that the page can say what is wrong with it.
    chosen = st.session_state.get("run") or st.query_params.get("run") or (labels[0] if labels else None)
    st.session_state["run"] = chosen
    st.selectbox(
        "Run",
        labels if not chosen or chosen in labels else [chosen, *labels],
        index=None,
        key="run",
        accept_new_options=True,
        placeholder="Choose a run, or type a path",
        help="The last active first. The path of any run directory can be typed too.",
    )
    # A reload and a shared link stay with this run. By hand: Streamlit's binding of a widget to the URL
    # forgets it where the page changes while an earlier run of the script is still under way.
    if chosen and st.query_params.get("run") != chosen:
        st.query_params["run"] = chosen
    st.text_input(
        "More runs from",
        key="folder",
        bind="query-params",
        placeholder="/path/to/a/folder/of/runs",
        help="Listed beside those of the environment variable LABKIT_RUNS and of labkit's home.",
    )
    st.caption(
        f"{len(labels):,} run{'s' * (len(labels) != 1)} in " + ", ".join(f"`{f}`" for f in run_folders())
    )
    watch("runs", lambda: frozenset(run_labels()))


def selected_run() -> RunDirectory:
    """Return the chosen run; where there is none to show, say why and stop the page."""
    label = st.session_state.get("run")
    if not label:
        st.title("No runs yet")
        st.write("Train something, and it shows here within seconds:")
        st.code("labkit train --preset smoke", language="bash")
        watch("none", lambda: bool(run_labels()))
        st.stop()
    run = find_run(label)
    if not run.exists():
        st.title(run.name)
        st.warning(
            f"There is no run in `{run.path}`: it has no `config.json`. "
            "Choose another one on the left, or wait if it is only now being started.",
            icon=":material/folder_off:",
        )
        watch(f"missing-{run.path}", run.exists)
        st.stop()
    return run


def watch(name: str, signature: Callable[[], Hashable]) -> None:
    """Run the whole page again when ``signature`` has changed; looked at every ``WATCH_SECONDS``.

    The signature should cost no more than a few file attributes.
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
    """Return the run's metrics as of now; only what was appended since the last call is read."""
    return _curve_store(run.metrics_path).poll()


def tail(path: Path, max_bytes: int = 32_768) -> str:
    """Return the end of a text file, whole lines only, at most ``max_bytes``; "" where it can't be read."""
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
