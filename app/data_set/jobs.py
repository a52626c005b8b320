"""Work that takes seconds, done in a thread while the page shows how far it is. A page never waits for it."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import streamlit as st

from app.images.text import plain
from labkit.errors import InputError

__all__ = ["Job", "shown", "start"]

KEPT = 16  # results
POLL_SECONDS = 0.5
SHORT_SECONDS = 0.3  # that a page waits, to spare the reader a flicker

T = TypeVar("T")
Progress = Callable[[int, int], None]


class Job(Generic[T]):
    """Work that is being done, or was. One of ``result`` and ``error`` is set when it is done."""

    def __init__(self) -> None:
        self.result: T | None = None
        self.error = ""
        self.finished = threading.Event()
        self._progress: tuple[int, int] | None = None

    def run(self, work: Callable[[Progress], T]) -> None:
        """Do the work. Called in a thread of its own."""
        try:
            self.result = work(self._report)
        except InputError as error:
            self.error = str(error)
        except Exception as error:  # an error of ours must not leave the page waiting for ever
            self.error = f"This can't be computed ({type(error).__name__}: {error})."
        finally:
            self.finished.set()

    def in_words(self, doing: str) -> str:
        """Return what is being done, and how much of it is done."""
        if self._progress:
            return f"{doing}: {self._progress[0]:,} of {self._progress[1]:,}…"
        return f"{doing}…"

    def _report(self, done: int, total: int) -> None:
        self._progress = (done, total)
        time.sleep(0)  # lets a thread that draws a page go first


class _Jobs:
    def __init__(self) -> None:
        self.known: OrderedDict[Hashable, Job[Any]] = OrderedDict()
        self.lock = threading.Lock()


@st.cache_resource(show_spinner=False)
def _jobs() -> _Jobs:
    return _Jobs()


def start(key: Hashable, work: Callable[[Progress], T]) -> Job[T]:
    """Begin some work, unless it was begun before.

    Args:
        key: tells this work from any other.
        work: reports how much it has done, and returns the result. It must not use Streamlit.
    """
    jobs = _jobs()
    with jobs.lock:
        if (known := jobs.known.get(key)) is None:
            known = jobs.known[key] = Job()
            threading.Thread(target=known.run, args=(work,), daemon=True).start()
            while len(jobs.known) > KEPT:
                jobs.known.popitem(last=False)
        jobs.known.move_to_end(key)
    return known


def shown(job: Job[T], doing: str, name: str) -> T | None:
    """Return the result. Without one, draw the progress or why there is none, and return None.

    Not for use within a fragment, because it draws one.
    """
    if not job.finished.wait(SHORT_SECONDS):
        _waiting(job, doing)
        return None
    if job.error:
        st.warning(plain(job.error), icon=":material/error:")
        st.button("Try again", key=f"again-{name}", on_click=_forget, args=(job,))
        return None
    return job.result


def _forget(job: Job[Any]) -> None:
    jobs = _jobs()
    with jobs.lock:
        for key in [key for key, known in jobs.known.items() if known is job]:
            del jobs.known[key]


@st.fragment(run_every=POLL_SECONDS)
def _waiting(job: Job[Any], doing: str) -> None:
    if job.finished.is_set():
        st.rerun()
    st.caption(f":material/hourglass_top: {plain(job.in_words(doing))}")
