"""``labkit stop``, ``resume`` and ``delete``: what is done with a run that is there."""

import argparse
import os
import re
import shlex
import signal
import socket
import sys
import time
from pathlib import Path

from labkit.commands import Run
from labkit.commands.terminal.arguments import Parser, seconds
from labkit.errors import InputError
from labkit.run_directory import ACTIVE_STATES, RunDirectory, RunLock, Status
from labkit.run_directory.disk import STOP_REQUEST
from labkit.run_directory.find import find_run

__all__ = ["declare_delete", "declare_resume", "declare_stop"]

LOCKS = (".launcher", ".lock")  # who starts the tasks of a cluster goes before the task that writes the run


def _add_run(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="Directory of the run, or its name.")


# ---- stop ----------------------------------------------------------------------------------------------


def declare_stop(parser: Parser) -> Run:
    """Declare the flags of ``labkit stop``."""
    _add_run(parser)
    parser.add_argument(
        "--wait-seconds",
        type=seconds,
        default=120.0,
        metavar="X",
        help="Longest time to wait for the training to save and end. Default: 120.",
    )
    return _stop


def _stop(options: argparse.Namespace) -> int:
    """Ask a training to save and stop. Returns 0 when it has, 1 where that takes too long."""
    run = RunDirectory(find_run(options.run))
    process = _process(run)
    if process is None:
        status = run.read_status()
        _refuse_elsewhere(run, status, "stop")
        print(f"{run.name} isn't running: {_standing(status)}")
        return 0
    print(f"{_ask(run, process)}; waiting up to {options.wait_seconds:g} s", flush=True)
    give_up = time.monotonic() + options.wait_seconds
    while _process(run, process) is not None:
        if time.monotonic() >= give_up:
            print(f"process {process} still trains {run.name}; labkit stop {options.run} waits again")
            return 1
        time.sleep(0.1)
    (run.path / STOP_REQUEST).unlink(missing_ok=True)
    status = run.read_status()
    hint = "" if status and status.state == "finished" else f"; labkit resume {options.run} continues it"
    print(f"{run.name}: {_standing(status)}{hint}")
    return 0


def _ask(run: RunDirectory, process: int) -> str:
    """Send SIGTERM, once: a second one would end the training without saving. Returns what was done."""
    asked = run.path / STOP_REQUEST
    if asked.is_file() and asked.read_text() == str(process):
        return f"process {process} was asked before and is stopping"
    if not _takes_sigterm(process):
        return f"process {process} takes no further request; it may be stopping already"
    asked.write_text(str(process))
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:
        return f"process {process} has ended"
    except PermissionError:
        asked.unlink()
        raise InputError(f"process {process} belongs to another user; ask its owner to stop it") from None
    return f"asked process {process} to save and stop"


def _process(run: RunDirectory, only: int | None = None) -> int | None:
    """Return the process on this machine that trains the run, or launches its tasks; None: there is none."""
    among = None if only is None else [only]
    if Path("/proc/self/fdinfo").is_dir():
        return next(filter(None, (RunLock(run, name).holder(among) for name in LOCKS)), None)
    # Without /proc only the run's own word says which process holds the lock.
    status = run.read_status()
    if status is None or status.host != socket.gethostname() or _take_locks(run, release=True):
        return None
    return status.pid


def _takes_sigterm(process: int) -> bool:
    """Return whether the process has a handler for SIGTERM. Unknown without ``/proc``: then it is assumed."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return not Path("/proc/self/status").exists()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", text, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def _standing(status: Status | None) -> str:
    if status is None:
        return "it has no readable status"
    return f"{status.liveness()} at step {status.step} of {status.total_steps}"


def _refuse_elsewhere(run: RunDirectory, status: Status | None, command: str) -> None:
    """Raise InputError where the run is trained on another machine, as far as its heartbeat tells."""
    if status and status.host != socket.gethostname() and status.liveness() in ACTIVE_STATES:
        raise InputError(
            f"{run.name} is running on host {status.host!r}, this is {socket.gethostname()!r}; "
            f"there: labkit {command} {run.path}"
        )


# ---- resume --------------------------------------------------------------------------------------------


def declare_resume(parser: Parser) -> Run:
    """Declare the flags of ``labkit resume``."""
    _add_run(parser)
    return _resume


def _resume(options: argparse.Namespace) -> int:
    """Train a run to its end with the configuration that it was started with. Returns the exit code."""
    from labkit.cluster.flags import CLUSTER_FLAGS, train_arguments
    from labkit.commands.train import train_as
    from labkit.config import fields_by_name
    from labkit.config.recorded import recorded_config
    from labkit.distributed.heartbeat import read_heartbeats

    run = RunDirectory(find_run(options.run))
    config = recorded_config(run).replace({"job_dir": str(run.path)})
    status = run.read_status()
    if status and status.state == "finished":
        print(f"nothing left to do: {run.name} is finished at step {status.step}")
        return 0
    process = _process(run)
    if process is not None:
        raise InputError(f"{run.name} is running in process {process}; labkit stop {options.run} stops it")
    _refuse_elsewhere(run, status, "resume")
    for name in CLUSTER_FLAGS:
        if config.flat()[name] is not None:
            raise InputError(
                f"{run.name} was trained by a cluster with {fields_by_name()[name].flag}; start each of its "
                "tasks again with the command that started it"
            )
    tasks = [name.partition(":")[0] for name in read_heartbeats(run.cluster_path)]
    if tasks:
        servers = ["--ps", str(tasks.count("ps"))] if "ps" in tasks else []
        words = ["labkit", "cluster", "local", "--workers", str(tasks.count("worker")), *servers, "--"]
        command = shlex.join([*words, *train_arguments(config)])
        raise InputError(
            f"{run.name} was trained by a cluster; submit its job again, or continue it on this machine "
            f"with: {command}"
        )
    return train_as(None, config, overwrite=False)


# ---- delete --------------------------------------------------------------------------------------------


def declare_delete(parser: Parser) -> Run:
    """Declare the flags of ``labkit delete``."""
    _add_run(parser)
    parser.add_argument("--yes", action="store_true", help="Deletes the run without asking.")
    return _delete


def _delete(options: argparse.Namespace) -> int:
    """Delete what a run wrote, after a question. Returns 0, or 1 where the answer is no."""
    from labkit.run_directory.disk import discard

    run = RunDirectory(find_run(options.run))
    status = run.read_status()
    _refuse_elsewhere(run, status, "delete")
    locks = _take_locks(run)
    if not locks:
        raise InputError(f"{run.name} is running; labkit stop {options.run} stops it")
    try:
        if not options.yes and not _confirmed(run, status):
            print("nothing was deleted")
            return 1
        discard(run)
        _remove_empty(run)
    finally:
        for lock in locks:
            lock.release()
    left = sorted(path.name for path in run.path.iterdir()) if run.path.is_dir() else []
    kept = f"; kept {', '.join(left)} in {run.path}, which the training didn't write" if left else ""
    print(f"deleted {run.name}{kept}")
    return 0


def _take_locks(run: RunDirectory, *, release: bool = False) -> list[RunLock]:
    """Take the run's locks and return them; an empty list where another process holds one.

    ``release``: give them back at once.
    """
    taken: list[RunLock] = []
    for name in LOCKS:
        lock = RunLock(run, name)
        if not lock.acquire():
            for other in taken:
                other.release()
            return []
        taken.append(lock)
    if release:
        for lock in taken:
            lock.release()
    return taken


def _confirmed(run: RunDirectory, status: Status | None) -> bool:
    """Ask whether the run shall be deleted. Raises InputError where nobody can be asked."""
    files = [path for path in run.path.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum(path.stat().st_size for path in files) / 2**20
    print(f"{run.path}: {_standing(status)}, {len(files)} files, {size:.1f} MiB")
    if not sys.stdin.isatty():
        raise InputError(
            "labkit delete asks before it deletes, but there is no terminal to ask on; add --yes"
        )
    try:
        return input("delete this run? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _remove_empty(run: RunDirectory) -> None:
    """Remove locks, unfinished files, and then each of the run's folders that is empty."""
    for path in (*(run.path / name for name in (*LOCKS, STOP_REQUEST)), *run.path.glob(".*.tmp")):
        if path.is_file():
            path.unlink()
    for folder in (run.events_path, run.checkpoints_path, run.path):
        try:
            folder.rmdir()
        except OSError:  # something that the run didn't write is in it
            continue
