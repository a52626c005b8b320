"""Wait for a run, follow its state, and tell what happens to runs, without TensorFlow and without writing."""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from labkit import home
from labkit.errors import InputError
from labkit.plurals import printable
from labkit.run_directory import ACTIVE_STATES, RunDirectory, Status
from labkit.run_directory.find import chosen_runs, find_run, runs_elsewhere
from labkit.run_directory.summary import RunSummary

ENDED = ("finished", "interrupted", "failed", "lost")
TOLD = (*ENDED, "stalled")


def wait_for_run(
    name: str,
    wait_seconds: float,
    pause: Callable[[], None],
    announce: Callable[[str], None],
    flag: str = "--wait-seconds",
) -> RunDirectory:
    """Return the run that ``name`` refers to, a path or a name under ``<home>/runs``, once it exists.

    Args:
        name: as the user gave it.
        wait_seconds: how long to wait for the run.
        pause: sleeps between two checks.
        announce: takes one line for people when the waiting begins.
        flag: the one that sets ``wait_seconds``.

    Raises InputError if the run doesn't exist within ``wait_seconds``.
    """
    candidates = [RunDirectory(name), RunDirectory(home.runs_home() / name)]
    give_up = time.monotonic() + wait_seconds
    announced = False
    while True:
        if any(run.exists() for run in candidates) or name in [run.name for run in runs_elsewhere()]:
            return RunDirectory(find_run(name))  # which refuses a name that several have
        if time.monotonic() >= give_up:
            raise InputError(
                f"no run at {name!r} within {wait_seconds:g} s ({flag}); "
                "give a run directory or a name that labkit runs lists"
            )
        if not announced:
            announce(f"no run at {name!r} yet; waiting for it for up to {wait_seconds:g} s ({flag})")
            announced = True
        pause()


@dataclass(frozen=True)
class Standing:
    """The state of a run as its followers see it. ``over``: the run won't write any more checkpoints."""

    state: str
    over: bool
    message: str


class RunWatch:
    """Tells whether a run may still write checkpoints.

    A run that is recorded as running counts as running as long as its heartbeat changes. This process times
    the changes with its own clock, because the clocks of two machines differ. If the run stops for any
    reason but success, ``wait_seconds`` pass before it counts as over: interrupted and killed runs are often
    restarted automatically.

    Args:
        run: may have no status yet.
        wait_seconds: how long to wait for a run that has stopped or stalled.
        clock: returns seconds; tests replace it.
        flag: the one that sets ``wait_seconds``.
    """

    def __init__(
        self,
        run: RunDirectory,
        wait_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        flag: str = "--wait-seconds",
    ) -> None:
        self._run, self._wait_seconds, self._clock, self._flag = run, wait_seconds, clock, flag
        self._seen: tuple[Status | None, str] | None = None
        self._since = 0.0

    def look(self) -> Standing:
        """Read the run's status and return its state."""
        status = self._run.read_status()
        state = status.state if status else "unknown"
        if status and state in ACTIVE_STATES:  # its heartbeat is timed below
            state = "lost" if status.liveness() == "lost" else "running"
        if (status, state) != self._seen:
            self._seen, self._since = (status, state), self._clock()
        progress = f" at step {status.step} of {status.total_steps}" if status else ""
        if state == "finished":
            return Standing(state, True, f"the run is finished{progress}")
        silence, patience = self._clock() - self._since, self._wait_seconds
        if status is not None and state == "running":
            if silence < status.stalled_after_seconds:
                return Standing(state, False, f"the run is running{progress}")
            state = "stalled"
            patience += status.stalled_after_seconds
        phrases = {"unknown": "has not written its status yet", "lost": "is lost", "stalled": "has stalled"}
        reason = f" ({status.message})" if status and status.message else ""
        what = f"the run {phrases.get(state, f'is {state}')}{progress}{reason}"
        limit = f"{self._wait_seconds:g} s"
        if silence < patience:
            return Standing(state, False, f"{what}; waiting {limit} for it to resume ({self._flag})")
        return Standing(state, True, f"{what}, and did not resume within {limit}")


@dataclass
class Watched:
    """What has been said of each run. Construction raises InputError for a text that is no condition.

    Args:
        conditions: texts of ``labkit.run_directory.find``.
        aliases: of fields, as ``chosen_runs`` takes them.
        tell_ended: whether a run that had ended before is told.
    """

    conditions: Sequence[str]
    aliases: Mapping[str, str]
    tell_ended: bool = False
    _said: dict[str, tuple[float, set[str]]] = field(default_factory=dict)  # when it was active, and what
    _looked: bool = False

    def __post_init__(self) -> None:
        if odd := [text for text in self.conditions if not re.search(r"[=<>]", text)]:
            raise InputError(f"--when is {odd[0]!r}; allowed: a condition such as accuracy<0.5")
        chosen_runs([], self.conditions, self.aliases)

    def look(self, runs: Sequence[RunSummary]) -> Iterator[tuple[RunSummary, str]]:
        """Yield each run of which something is new, with a line. What ceases may be told again."""
        gone = [self._said[path] for path in self._said.keys() - {run.path for run in runs}]
        for run in runs:
            now = {text for text in self.conditions if chosen_runs([run], [text], self.aliases)}
            diverged = run.training_loss is not None and not math.isfinite(run.training_loss)
            if diverged and "loss is" not in run.message:  # which says it, too
                now.add(f"the loss is {run.training_loss}".replace("nan", "NaN"))
            if run.state in TOLD:
                now.add(f"{run.state}: {run.message}" if run.message else run.state)
            is_old = not self._looked and not self.tell_ended and run.state in ENDED
            is_renamed = run.path not in self._said and (run.last_active, now) in gone
            known = now if is_old or is_renamed else self._said.get(run.path, (0.0, set()))[1]
            step = f" at step {run.step:,}" if run.step else ""
            for event in sorted(now - known):
                yield run, printable(f"{run.name}: {event}{'' if 'step' in event else step}")
            self._said[run.path] = run.last_active, now
        self._looked = True
