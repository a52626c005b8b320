"""The runs that labkit made outside of ``<home>/runs``, so that ``labkit runs`` lists them too.

``<home>/runs/.elsewhere`` has the path of each, one a line, the newest last.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labkit import home
from labkit.run_directory.directory import RunDirectory, list_runs, replacing

__all__ = ["known_runs", "remember", "runs_elsewhere"]

MOST_RUNS = 1000  # the newest are kept
LOCK_SECONDS = 2.0  # another process holds the lock for milliseconds


def remember(run: RunDirectory) -> None:
    """Write down where a run is, unless it is in ``<home>/runs`` or one of a comparison's.

    Runs that are gone are left out of the list. Nothing happens where the list can't be written: a training
    doesn't fail for it.
    """
    path = os.fsencode(run.path)
    if run.path.parent == home.runs_home() or b"\n" in path or (run.path.parent / "comparison.json").exists():
        return
    if (run.path.parents[1] / "comparison.json").exists():
        return
    with suppress(OSError):
        home.runs_home().mkdir(parents=True, exist_ok=True)
        with _locked(home.runs_home() / ".elsewhere.lock"):
            kept = [os.fsencode(other.path) for other in runs_elsewhere() if other.path != run.path]
            with replacing(_list_path()) as temporary:
                temporary.write_bytes(b"".join(line + b"\n" for line in [*kept, path][-MOST_RUNS:]))


def runs_elsewhere() -> list[RunDirectory]:
    """Return the remembered runs that are still there, each once, the newest last."""
    try:
        lines = _list_path().read_bytes().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(os.fsdecode(line) for line in lines if line.startswith(b"/") and b"\0" not in line)
    return [run for run in map(RunDirectory, paths) if run.exists()]


def known_runs() -> list[RunDirectory]:
    """Return the runs in ``<home>/runs`` and the remembered ones, the most recently active first."""
    own = list_runs(home.runs_home())
    there = {os.path.realpath(run.path) for run in own}
    more = [run for run in runs_elsewhere() if os.path.realpath(run.path) not in there]
    return sorted([*own, *more], key=RunDirectory.last_active, reverse=True)


def _list_path() -> Path:
    return home.runs_home() / ".elsewhere"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file. Raises TimeoutError, an OSError, if another process keeps it."""
    import fcntl

    give_up = time.monotonic() + LOCK_SECONDS
    with open(path, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise TimeoutError(f"{path} is locked") from None
                time.sleep(0.02)
        yield
