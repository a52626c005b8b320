"""Which process trains a run, how it is asked to save and stop, and the trash of a folder of runs,
``.trash``.

Only a folder that holds a run and lies directly in a folder of runs is moved there, and no link is followed.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import InputError
from labkit.run_directory.directory import ACTIVE_STATES, RunDirectory, RunLock, write_text_atomic
from labkit.run_directory.files import read_json

LOCKS = (".launcher", ".lock")  # who starts the tasks of a cluster goes before the task that writes the run


def training_process(run: RunDirectory, only: int | None = None) -> int | None:
    """Return the process on this machine that trains the run, or launches its tasks; None: there is none.

    ``only``: the one process to look at.
    """
    among = None if only is None else [only]
    if Path("/proc/self/fdinfo").is_dir():
        return next(filter(None, (RunLock(run, name).holder(among) for name in LOCKS)), None)
    # Without /proc only the run's own word says which process holds the lock.
    status = run.read_status()
    if status is None or status.host != socket.gethostname() or is_free(run):
        return None
    return status.pid


def ask_to_stop(run: RunDirectory, process: int) -> str:
    """Send SIGTERM, once: a second one would end the training without saving. Returns what was done.

    Raises InputError if the process belongs to another user.
    """
    asked = run.stop_path
    if asked_to_stop(run) == process:
        return f"process {process} was asked before and is stopping"
    if not _takes_sigterm(process):
        return f"process {process} takes no further request; it may be stopping already"
    write_text_atomic(asked, str(process))
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return f"process {process} has ended"
    except PermissionError:
        asked.unlink()
        raise InputError(f"process {process} belongs to another user; ask its owner to stop it") from None
    return f"asked process {process} to save and stop"


def asked_to_stop(run: RunDirectory) -> int | None:
    """Return the process of the run that somebody has asked to save and stop; None if there is none."""
    try:
        return int(read_json(run.stop_path, int))
    except (OSError, InputError):
        return None


def refuse_elsewhere(run: RunDirectory, command: str) -> None:
    """Raise InputError where the run is trained on another machine, as far as its heartbeat tells.

    ``command``: of labkit, which the message names.
    """
    status = run.read_status()
    if status and status.host != socket.gethostname() and status.liveness() in ACTIVE_STATES:
        # Of a pulled run, the host is HOST:FOLDER, where HOST may be an IPv6 address in brackets.
        pulled = run.pulled_path.is_file()
        there = re.sub(r"^[^:\[]*(\[[^]]*\])?:", "", status.host) if pulled else str(run.path)
        raise InputError(
            f"{run.name} is running on host {status.host!r}, this is {socket.gethostname()!r}; "
            f"there: labkit {command} {shlex.quote(there)}"
        )


def forget_request(run: RunDirectory) -> None:
    """Remove what ``ask_to_stop`` left, once the process has ended."""
    run.stop_path.unlink(missing_ok=True)


@contextmanager
def held(run: RunDirectory, otherwise: str, names: Iterable[str] = LOCKS) -> Iterator[None]:
    """Hold locks of a run. Raises InputError, saying ``otherwise``, where another process has one."""
    with ExitStack() as stack:
        for lock in (RunLock(run, name) for name in names):
            if not lock.acquire():
                raise InputError(otherwise)
            stack.callback(lock.release)
        yield


@contextmanager
def idle(run: RunDirectory, command: str) -> Iterator[None]:
    """Hold the locks of a run. Raises InputError where it trains. ``command``: as of ``refuse_elsewhere``."""
    refuse_elsewhere(run, command)
    with held(run, f"{run.name} is running; labkit stop {shlex.quote(run.name)} stops it"):
        yield


def is_free(run: RunDirectory) -> bool:
    """Return whether no process writes the run."""
    if not run.path.is_dir():
        return True
    with suppress(InputError), held(run, ""):
        return True
    return False


def _takes_sigterm(process: int) -> bool:
    """Return whether the process has a handler for SIGTERM. Unknown without ``/proc``: then it is assumed."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return not Path("/proc/self/status").exists()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", text, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


TRASH = ".trash"
_ENTRY = re.compile(r"(.+)-(\d{8}-\d{6})(-\d+)?", re.DOTALL)


@dataclass(frozen=True)
class Trashed:
    """A run in the trash: where it is, what it was called, and when it was moved (seconds since 1970)."""

    path: Path
    name: str
    moved: float

    @property
    def home(self) -> Path:
        """Where it was, and is again when it is restored."""
        return self.path.parent.parent / self.name


def move_to_trash(run: RunDirectory, folders: Iterable[Path]) -> Trashed:
    """Move a run to the trash of the folder that it lies in.

    Args:
        folders: the folders of runs that are known.

    Raises InputError for what isn't a run directly in one of ``folders``, for a link, for a run that is being
    trained, and where the folder can't be moved. Nothing has changed then.
    """
    folder = run.path.parent
    if ".." in run.path.parts or folder not in [Path(known).absolute() for known in folders]:
        raise InputError(f"{run.path} doesn't lie directly in a folder of runs; move it by hand")
    if run.path.is_symlink():
        raise InputError(f"{run.path} is a link; remove the link by hand, the run stays where it is")
    if run.name.startswith(".") or not run.exists():
        raise InputError(f"there is no run at {run.path}")
    try:
        with idle(run, "stop"):
            trash = _trash_of(folder)
            trash.mkdir(exist_ok=True)
            now = time.time()
            target = trash / f"{run.name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"
            stem, number = target.name, 1
            while os.path.lexists(target):
                number += 1
                target = trash / f"{stem}-{number}"
            os.rename(run.path, target)
    except OSError as error:
        raise InputError(f"{run.path} can't be moved to the trash: {error.strerror}") from None
    return Trashed(target, run.name, now)


def _trash_of(folder: Path) -> Path:
    """Return the trash of a folder of runs. Raises InputError where a link stands in its place."""
    trash = folder / TRASH
    if trash.is_symlink():
        raise InputError(f"{trash} is a link; labkit follows none to delete something")
    return trash


def list_trash(folder: Path) -> list[Trashed]:
    """Return the runs in the trash of a folder of runs, the last one moved first."""
    try:
        entries = [entry for entry in os.scandir(_trash_of(folder)) if entry.is_dir(follow_symlinks=False)]
    except (OSError, ValueError, InputError):  # ValueError: a null in the name
        return []
    found = []
    for entry in entries:
        with suppress(ValueError, OverflowError):
            if named := _ENTRY.fullmatch(entry.name):
                moved = time.mktime(time.strptime(named[2], "%Y%m%d-%H%M%S"))
                found.append(Trashed(Path(entry.path), named[1], moved))
    return sorted(found, key=lambda one: (one.moved, one.path.name), reverse=True)


def _check(trashed: Trashed) -> None:
    """Raise InputError where it is no longer in the trash."""
    if trashed.path not in [one.path for one in list_trash(trashed.path.parent.parent)]:
        raise InputError(f"{trashed.name} is no longer in the trash")


def restore(trashed: Trashed) -> RunDirectory:
    """Move a run back to where it was. Raises InputError where there is something by its name meanwhile."""
    _check(trashed)
    if os.path.lexists(trashed.home):
        raise InputError(f"there is another {trashed.home} now; rename that one, then restore this one")
    try:
        os.rename(trashed.path, trashed.home)
    except OSError as error:
        raise InputError(f"{trashed.path} can't be moved back: {error.strerror}") from None
    return RunDirectory(trashed.home)


def delete_for_good(trashed: Trashed) -> None:
    """Remove a run in the trash with all that lies in it. Links in it are removed, not followed.

    Raises InputError where it is no longer there or can't be removed.
    """
    _check(trashed)
    try:
        shutil.rmtree(trashed.path)
        trashed.path.parent.rmdir()
    except OSError as error:
        if trashed.path.exists():
            raise InputError(f"{trashed.path} can't be removed: {error.strerror}") from None
