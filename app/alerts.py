"""Alerts: what happens to runs while a page is open, listed in the sidebar and told by the browser."""

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from app import address, state
from app.markup import component, plain
from labkit.config import field_aliases
from labkit.errors import InputError
from labkit.run_directory.watch import ENDED, Watched

SCRIPT = Path(__file__).parent / "views" / "assets" / "alerts.js"
LOOK_SECONDS = 5.0  # between two looks at the runs, however many pages are open
READ_SECONDS = 0.3  # the longest that metrics are read in a look
MOST = 30  # alerts that are listed


class Alerts:
    """What has been told of the listed runs, the newest first. Several sessions may look at once.

    Construction raises InputError for a text that is no condition.
    """

    def __init__(self, conditions: Sequence[str]) -> None:
        self._watched = Watched(conditions, field_aliases())
        self._lock = threading.Lock()
        self._looked, self._began = 0.0, time.time()
        self._seen: set[str] = set()
        self._told: deque[dict[str, Any]] = deque(maxlen=MOST)

    def look(self, *, anew: bool = True) -> list[dict[str, Any]]:
        """Return alerts: ``text``, ``at`` (seconds since 1970), ``href``. ``anew``: look at runs first."""
        with self._lock:
            if anew and time.monotonic() - self._looked >= 0.9 * LOOK_SECONDS:
                self._looked = time.monotonic()
                listed = state.listed_runs()
                labels = {str(run.path): label for label, run in listed.items()}
                read = [run for run in state.summaries(listed.values(), READ_SECONDS) if run.complete]
                for run, line in self._watched.look(read):
                    if run.path not in self._seen and run.state in ENDED and run.last_active < self._began:
                        continue  # it was read late, and is no news
                    text, href = state.clean(line), address.live_address(labels[run.path])
                    self._told.appendleft({"text": text, "at": time.time(), "href": href})
                self._seen.update(run.path for run in read)
            return list(self._told)


@st.cache_resource(max_entries=16, show_spinner=False)
def _alerts(folders: tuple[Path, ...], conditions: tuple[str, ...]) -> Alerts:
    return Alerts(conditions)


def draw() -> None:
    """Draw the list, the field for conditions, and the button that asks for the browser's notifications."""
    place = st.container()
    text = st.text_input(
        "Alert me when",
        key="alert",
        bind="query-params",
        placeholder="accuracy>0.9 training_loss>3",
        help="Conditions on results and settings, as in the filter of *Runs*; each is told by itself. "
        "Runs that end, fail, stall, are lost or have a NaN are told anyway.",
    )
    try:
        alerts = _alerts(tuple(state.run_folders()), tuple(state.conditions_in(text or "")))
    except InputError as error:
        st.warning(plain(str(error).removeprefix("--when is ")), icon=":material/notifications_off:")
        alerts = _alerts(tuple(state.run_folders()), ())
    told = alerts.look(anew=False)  # which would hold up the page
    with place:
        component(SCRIPT)(key="alerts", data=json.dumps(told).encode(), height="content")
    state.watch("alerts", alerts.look, LOOK_SECONDS, seen=told)
