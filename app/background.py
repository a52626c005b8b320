"""Work that takes seconds, done in a thread while the page shows how far it is. A page never waits for it."""

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Generic, TypeVar

import streamlit as st

from app.ask.client import Progress
from app.markup import plain
from labkit.errors import InputError

POLL_SECONDS = 0.5
SHORT_SECONDS = 0.15  # that a page waits, to spare the reader a flicker

T = TypeVar("T")


class Job(Generic[T]):
    """Work that is being done, or was. One of ``result`` and ``error`` is set when it is done."""

    kept: ClassVar[int] = 16  # jobs of this class
    expected: ClassVar[tuple[type[Exception], ...]] = (InputError,)  # errors whose text is for the reader

    def __init__(self) -> None:
        self.result: T | None = None
        self.error = ""
        self._done = threading.Event()
        self._progress: tuple[int, int] | None = None

    def run(self, work: Callable[[Progress], T]) -> None:
        """Do the work. Called in a thread of its own."""
        try:
            self.result = work(self._report)
        except self.expected as error:
            self.error = str(error)
        except Exception as error:  # an error of ours must not leave the page waiting for ever
            self.error = f"This can't be computed ({type(error).__name__}: {error})."
        finally:
            self._done.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end; return whether it is reached."""
        return self._done.wait(seconds)

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def in_words(self, doing: str) -> str:
        """Return what is being done, and how much of it is done."""
        if self._progress:
            return f"{doing}: {self._progress[0]:,} of {self._progress[1]:,}…"
        return f"{doing}…"

    def before_another_try(self) -> None:
        """Called when the reader wants the work to be done once more."""

    def _report(self, done: int, total: int) -> None:
        self._progress = (done, total)
        time.sleep(0)  # lets a thread that draws a page go first


J = TypeVar("J", bound=Job[Any])


_jobs: defaultdict[str, OrderedDict[Hashable, Job[Any]]] = defaultdict(OrderedDict)  # by their class
_lock = threading.Lock()


def start(key: Hashable, job: J, work: Callable[[Progress], Any]) -> J:
    """Begin some work, unless it was begun before. Returns the job that does it.

    Args:
        key: tells this work from any other of the same class of jobs.
        job: a new one, which isn't used if the work was begun before.
        work: reports how much it has done, and returns the result. It must not use Streamlit.
    """
    with _lock:
        jobs = _jobs[type(job).__name__]
        if (found := jobs.get(key)) is None:
            found = jobs[key] = job
            threading.Thread(target=job.run, args=(work,), daemon=True).start()
            while len(jobs) > job.kept:
                jobs.popitem(last=False)
        jobs.move_to_end(key)
    return found  # type: ignore[return-value]


def shown(job: Job[T], doing: str, name: str) -> T | None:
    """Return the result. Without one, draw the progress or why there is none, and return None.

    Not for use within a fragment, because it draws one.

    Args:
        job: the work.
        doing: what is done, for the reader.
        name: of the place on the page.
    """
    if not job.wait(SHORT_SECONDS):
        _waiting(job, doing)
        return None
    return result_of(job, name)


def result_of(job: Job[T], name: str) -> T | None:
    """Return the result of work that is done. If it has none, draw why, and return None."""
    if job.error:
        st.warning(plain(job.error), icon=":material/error:")
        st.button("Try again", key=f"again-{name}", on_click=_forget, args=(job,))
        return None
    return job.result


def _forget(job: Job[Any]) -> None:
    """Forget the job, and all others of its class that failed."""
    job.before_another_try()
    with _lock:
        jobs = _jobs[type(job).__name__]
        for key in [key for key, other in jobs.items() if other is job or other.error]:
            del jobs[key]


@st.fragment(run_every=POLL_SECONDS)
def _waiting(job: Job[Any], doing: str) -> None:
    if job.done:
        st.rerun()
    st.caption(f":material/hourglass_top: {plain(job.in_words(doing))}")
