"""Questions to the networks of runs, asked in the background, with their answers.

A page never waits for a network: ``ask`` returns at once, and ``app.background.shown`` draws the progress.
"""

import functools
import hashlib
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app import gate
from app.ask.client import AskedNetwork, Networks
from app.ask.process import NoAnswer
from app.background import Job, Progress, start
from app.images.subject import checkpoint_to_ask, recorded_step
from app.markup import show_command
from app.state import changed_at
from labkit.config.config import recorded_by
from labkit.errors import InputError
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import state_path

T = TypeVar("T")
KEEP_SOME = "--checkpoint-every-steps 100 --keep-checkpoints 20"


class Asked(Job[T]):
    """A question that is being answered, or was. ``network`` is set when its process is known."""

    kept = 256
    expected = (InputError, NoAnswer)

    def __init__(self) -> None:
        super().__init__()
        self.network: AskedNetwork | None = None

    def in_words(self, doing: str) -> str:
        """Return what is being done: the network is loaded, or ``doing``, with how much of it is done."""
        seconds = self.network.loading_seconds if self.network else None
        return super().in_words(doing) if seconds is None else f"Loading the network… {seconds:.0f} s"

    def before_another_try(self) -> None:
        if self.network is not None:
            self.network.process.load_again()


@functools.cache
def networks() -> Networks:
    """Return the networks that the server asks."""
    return Networks()


def expect(run: RunDirectory) -> None:
    """Prepare for the first question about a run, once in a session, on a page whose reader may ask one."""
    key = f"expected-{run.path}"
    if key not in st.session_state and not gate.is_locked() and run.checkpoint_steps():
        st.session_state[key] = True
        networks().prepare(run.path)


def ask(
    run: RunDirectory,
    step: int,
    key: Hashable,
    work: Callable[[AskedNetwork, Progress], T],
    when: int | None = None,
    asked: Asked[T] | None = None,
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
        asked: the job, where few of its kind are kept.
    """
    job, held = asked or Asked[T](), networks()
    if gate.is_locked():
        return start((run.path, "locked"), job, _without_token)

    def answer(progress: Progress) -> T:
        job.network = held.of(run.path, step)
        return work(job.network, progress)

    whole = (run.path, step, written(run, step) if when is None else when, key)
    return start(whole, job, answer)


def _without_token(progress: Progress) -> Any:
    raise NoAnswer("The network answers who has given the token that the server printed.")


def pinned_step(run: RunDirectory, name: str) -> int | None:
    """Return the step of the checkpoint to ask, in this session the same while it exists; None without any.

    The best and the newest checkpoint are others while a run trains, which would start every answer again. At
    first it is that of the recorded evaluation, as on the page of an image.

    ``name``: of the place on the page.
    """
    key = f"{name}-process-{run.path}"
    step: int | None = st.session_state.get(key)
    if step not in run.checkpoint_steps():
        step = st.session_state[key] = checkpoint_to_ask(run, recorded_step(run))
    return step


def written(run: RunDirectory, step: int) -> int:
    """Return when the checkpoint was written, in ns: a run that was started over may write a step again.

    0 if the checkpoint is gone.
    """
    return changed_at(state_path(run.checkpoints_path, step))


def digest(image: NDArray[np.uint8]) -> str:
    """Return a short text that tells an image from any other."""
    return hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest() + str(image.shape)


def no_checkpoint(run: RunDirectory) -> None:
    """Say that there is no network to ask, and how to keep some."""
    if recorded_by(run):
        st.info("Another program trains this run, so labkit can't ask its network.")
        return
    st.info("This run has kept no checkpoint, so its network can't be asked. To keep some, train with:")
    show_command(KEEP_SOME)
