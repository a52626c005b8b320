"""Which process trains a run, and how it is asked to save and stop."""

import os
import re
import shlex
import signal
import socket
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
    if status is None or status.host != socket.gethostname() or take_locks(run, release=True):
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
        raise InputError(
            f"{run.name} is running on host {status.host!r}, this is {socket.gethostname()!r}; "
            f"there: labkit {command} {shlex.quote(str(run.path))}"
        )


def forget_request(run: RunDirectory) -> None:
    """Remove what ``ask_to_stop`` left, once the process has ended."""
    run.stop_path.unlink(missing_ok=True)


def take_locks(run: RunDirectory, *, release: bool = False) -> list[RunLock]:
    """Take the run's locks and return them; an empty list where another process holds one.

    ``release``: give them back at once.
    """
    locks = [RunLock(run, name) for name in LOCKS]
    all_taken = all(lock.acquire() for lock in locks)
    if release or not all_taken:
        for lock in locks:
            lock.release()
    return locks if all_taken else []


def _takes_sigterm(process: int) -> bool:
    """Return whether the process has a handler for SIGTERM. Unknown without ``/proc``: then it is assumed."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return not Path("/proc/self/status").exists()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", text, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)
