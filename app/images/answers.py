"""Questions to the networks of runs, asked in the background, with their answers.

A page never waits for a network: ``ask`` returns at once. ``shown`` draws progress in its place until the
answer is there, and then has the page drawn again.
"""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.images.text import plain
from labkit.analysis.ask.client import AskedNetwork, Networks, NoAnswer
from labkit.analysis.examples import checkpoint_to_ask
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

__all__ = [
    "SHORT_SECONDS",
    "Asked",
    "ask",
    "digest",
    "pause_until",
    "pinned_step",
    "result_of",
    "shown",
    "written",
]

KEPT = 256  # answers
POLL_SECONDS = 0.5
SHORT_SECONDS = 0.15  # that a page waits for an answer, to spare the reader a flicker

T = TypeVar("T")
Progress = Callable[[int, int], None]


class Asked(Generic[T]):
    """A question that is being answered, or was. One of ``result`` and ``error`` is set when it is done."""

    def __init__(self) -> None:
        self.result: T | None = None
        self.error = ""
        self.network: AskedNetwork | None = None
        self._done = threading.Event()
        self._progress: tuple[int, int] | None = None

    def wait(self, seconds: float) -> bool:
        """Wait for the answer; return whether it is there."""
        return self._done.wait(seconds)

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def in_words(self, doing: str) -> str:
        """Return what is being done: the network is loaded, or ``doing``, with how much of it is done."""
        seconds = self.network.loading_seconds if self.network else None
        if seconds is not None:
            return f"Loading the network… {seconds:.0f} s"
        if self._progress:
            return f"{doing}: {self._progress[0]:,} of {self._progress[1]:,}…"
        return f"{doing}…"

    def run(
        self, networks: Networks, run: RunDirectory, step: int, work: Callable[[AskedNetwork, Progress], T]
    ) -> None:
        """Answer the question. Called in a thread of its own."""
        try:
            self.network = networks.of(run.path, step)
            self.result = work(self.network, self._report)
        except InputError as error:
            self.error = str(error)
        except NoAnswer as error:
            self.error = str(error)
        except Exception as error:  # an error of ours must not leave the page waiting for ever
            self.error = f"The answer can't be used ({type(error).__name__}: {error})."
        finally:
            self._done.set()

    def _report(self, done: int, total: int) -> None:
        self._progress = (done, total)


class _Answers:
    def __init__(self) -> None:
        self.networks = Networks()
        self.asked: OrderedDict[Hashable, Asked[Any]] = OrderedDict()
        self.lock = threading.Lock()


@st.cache_resource(show_spinner=False)
def _answers() -> _Answers:
    return _Answers()


def ask(
    run: RunDirectory,
    step: int,
    key: Hashable,
    work: Callable[[AskedNetwork, Progress], T],
    when: int | None = None,
) -> Asked[T]:
    """Ask a network something, unless this was asked before.

    Args:
        run: the run directory.
        step: of the checkpoint.
        key: tells this question from any other about the same network.
        work: asks the network and returns the answer; reports what it has done. It runs in another thread
            and must not use Streamlit.
        when: what ``written`` gave when the reader asked, for a question that outlives its checkpoint; None:
            what it gives now.
    """
    answers = _answers()
    whole = (run.path, step, written(run, step) if when is None else when, key)
    with answers.lock:
        if (known := answers.asked.get(whole)) is None:
            known = answers.asked[whole] = Asked()
            threading.Thread(target=known.run, args=(answers.networks, run, step, work), daemon=True).start()
            while len(answers.asked) > KEPT:
                answers.asked.popitem(last=False)
        answers.asked.move_to_end(whole)
    return known


def pinned_step(run: RunDirectory, name: str, preferred: object = None) -> int | None:
    """Return the step of the checkpoint to ask, in this session the same while it exists; None without any.

    The best and the newest checkpoint are others while a run trains, which would start every answer again.

    Args:
        run: the run directory.
        name: of the place on the page.
        preferred: taken at first if this step is kept, as by ``checkpoint_to_ask``.
    """
    key = f"{name}-process-{run.path}"
    step: int | None = st.session_state.get(key)
    if step not in run.checkpoint_steps():
        step = st.session_state[key] = checkpoint_to_ask(run, preferred)
    return step


def written(run: RunDirectory, step: int) -> int:
    """Return when the checkpoint was written, in ns: a run that was started over may write a step again.

    0 if the checkpoint is gone.
    """
    try:
        return (run.checkpoints_path / f"step-{step:08d}" / "state.json").stat().st_mtime_ns
    except OSError:
        return 0


def shown(asked: Asked[T], doing: str, name: str, wait: float = SHORT_SECONDS) -> T | None:
    """Return the answer. Without one, draw the progress or why there is none, and return None.

    Not for use within a fragment, because it draws one.

    Args:
        asked: the question.
        doing: what the network does, for the reader.
        name: of the place on the page.
        wait: seconds to wait for the answer.
    """
    if not asked.wait(wait):
        _waiting(asked, doing)
        return None
    return result_of(asked, name)


def result_of(asked: Asked[T], name: str) -> T | None:
    """Return the answer of a question that is done. If it has none, draw why, and return None."""
    if asked.error:
        st.warning(plain(asked.error), icon=":material/error:")
        st.button("Ask again", key=f"again-{name}", on_click=_forget, args=(asked,))
        return None
    return asked.result


def _forget(asked: Asked[Any]) -> None:
    answers = _answers()
    if asked.network is not None:
        asked.network.process.load_again()
    with answers.lock:
        for key in [key for key, known in answers.asked.items() if known is asked or known.error]:
            del answers.asked[key]


@st.fragment(run_every=POLL_SECONDS)
def _waiting(asked: Asked[Any], doing: str) -> None:
    if asked.done:
        st.rerun()
    st.caption(f":material/hourglass_top: {plain(asked.in_words(doing))}")


def digest(image: NDArray[np.uint8]) -> str:
    """Return a short text that tells an image from any other."""
    return hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest() + str(image.shape)


def pause_until(asked: Asked[Any], seconds: float) -> None:
    """Wait for an answer in steps, so that Streamlit can end a page that nobody looks at any more."""
    end = time.monotonic() + seconds
    while not asked.wait(0.1) and time.monotonic() < end:
        pass
