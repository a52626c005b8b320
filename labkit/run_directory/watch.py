"""Where a run stands, for processes that follow it: nothing here imports TensorFlow or writes a file."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from labkit import home
from labkit.errors import InputError
from labkit.run_directory import ACTIVE_STATES, RunDirectory, Status

__all__ = ["RunWatch", "Standing", "wait_for_run"]


def wait_for_run(
    name: str, wait_seconds: float, pause: Callable[[], None], announce: Callable[[str], None]
) -> RunDirectory:
    """Return the run that ``name`` means, a directory or a name under ``<home>/runs``, once it is there.

    Raises InputError where that takes longer than ``wait_seconds``.
    """
    places = [RunDirectory(name), RunDirectory(home.runs_home() / name)]
    give_up = time.monotonic() + wait_seconds
    told = False
    while True:
        for run in places:
            if run.exists():
                return run
        if time.monotonic() >= give_up:
            raise InputError(
                f"no run at {name!r} within {wait_seconds:g} s (--wait-seconds); "
                "give a run directory or a name that labkit runs lists"
            )
        if not told:
            announce(f"no run at {name!r} yet; waiting for it for up to {wait_seconds:g} s (--wait-seconds)")
            told = True
        pause()


@dataclass(frozen=True)
class Standing:
    """Where a run stands for its followers. ``over``: nothing more is to be expected of it."""

    state: str
    over: bool
    message: str


class RunWatch:
    """Tells whether a run may still write checkpoints.

    A run that says so is believed as long as its heartbeat changes: changes are timed by this process, since
    the clocks of two machines differ. One that stands still, for whatever reason, gets ``wait_seconds``
    to go on: an interrupted or killed run is often started again by whoever watches over it.
    """

    def __init__(
        self, run: RunDirectory, wait_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run, self._wait_seconds, self._clock = run, wait_seconds, clock
        self._seen: tuple[Status | None, str] | None = None
        self._since = 0.0

    def look(self) -> Standing:
        """Read the run's status."""
        status = self._run.read_status()
        said = _said(status)
        if (status, said) != self._seen:
            self._seen, self._since = (status, said), self._clock()
        place = f" at step {status.step} of {status.total_steps}" if status else ""
        if said == "finished":
            return Standing(said, True, f"the run is finished{place}")
        silence, patience = self._clock() - self._since, self._wait_seconds
        if status is not None and said == "running":
            if silence < status.stalled_after_seconds:
                return Standing(said, False, f"the run is running{place}")
            said = "stalled"
            patience += status.stalled_after_seconds
        words = {
            "unknown": "has not said yet where it stands",
            "lost": "is lost",
            "stalled": "has gone silent",
        }
        reason = f" ({status.message})" if status and status.message else ""
        what = f"the run {words.get(said, f'is {said}')}{place}{reason}"
        if silence < patience:
            return Standing(
                said, False, f"{what}; waiting {self._wait_seconds:g} s for it to go on (--wait-seconds)"
            )
        return Standing(said, True, f"{what}, and did not go on within {self._wait_seconds:g} s")


def _said(status: Status | None) -> str:
    if status is None:
        return "unknown"
    if status.state not in ACTIVE_STATES:
        return status.state
    return "lost" if status.liveness() == "lost" else "running"
