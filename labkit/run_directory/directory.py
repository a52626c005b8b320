"""The run directory: the files that training, notebook, command line and dashboard share.

``docs/run-directory.md`` describes the files. Only the chief process writes them; any number of processes may
read them. It needs the standard library and msgspec alone, so that a reader starts within milliseconds.
"""

import json
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from labkit.errors import InputError
from labkit.run_directory.checkpoints import checkpoint_steps
from labkit.run_directory.files import Count, open_run_file, read_json, read_object

ACTIVE_STATES = ("starting", "running")
CODE_FOLDER = "code"
STATES = (*ACTIVE_STATES, "finished", "interrupted", "failed")


def write_json_atomic(path: Path, value: Any) -> None:
    """Write ``value`` as JSON to ``path``. A reader sees the whole old file or the whole new one."""
    write_text_atomic(path, json.dumps(value, indent=2, default=str) + "\n")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file to write that becomes ``path`` at the end, or is removed after an error.

    A reader sees the whole old file or the whole new one.
    """
    # Somebody who can write to the folder could put a link where they know that this will be.
    temporary = path.with_name(f".{path.name[:100]}.r{secrets.token_hex(8)}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text_atomic(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 to ``path``. A reader sees the whole old file or the whole new one."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def flush(path: Path) -> None:
    """Wait until the disk has what was written to a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def overwrite(path: Path, text: str) -> None:
    """Write ``text`` over a file that exists, in the room that it has, followed by spaces.

    Raises OSError if it doesn't exist, or if ``text`` is longer than it and there is no room.
    """
    with open_run_file(path, "r+b", buffering=0) as file:
        data = text.encode()
        file.write(data.ljust(os.fstat(file.fileno()).st_size))


def process_alive(pid: int) -> bool:
    """Return whether a process with this id exists on this machine and isn't a zombie."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False


WEIGHT_NOT_FINITE = "a weight or velocity is not finite"  # a failed run's message begins with it


@dataclass(frozen=True)
class Status:
    """The state and progress of a run, as its writer last recorded them in ``status.json``.

    ``heartbeat`` and ``started`` are in seconds since the epoch. A run counts as stalled when its heartbeat
    is older than ``stalled_after_seconds``, which the writer sets according to how often it writes.
    ``message`` is one line for people, such as the reason of a failure or what the run is doing. ``metrics``
    is what ``labkit.run_directory.metrics.MetricsSummary`` is made of; empty in older runs.
    """

    state: str
    step: Count = 0
    total_steps: Count = 0
    heartbeat: float = 0.0
    started: float = 0.0
    pid: Count = 0
    host: str = ""
    message: str = ""
    examples_per_second: float | None = None
    eta_seconds: float | None = None
    stalled_after_seconds: float = 15.0
    metrics: Mapping[str, Any] = field(default_factory=dict)

    def liveness(self, now: float | None = None) -> str:
        """Return the state that a reader should show: the recorded one, ``lost`` or ``stalled``.

        A run that is recorded as active is ``lost`` if its process no longer exists on this host, and
        ``stalled`` if its heartbeat is older than ``stalled_after_seconds``.

        Args:
            now: the current time in seconds since the epoch; None reads the clock.
        """
        if self.state not in ACTIVE_STATES:
            return self.state
        if self.host == socket.gethostname() and self.pid and not process_alive(self.pid):
            return "lost"
        age = (time.time() if now is None else now) - self.heartbeat
        return "stalled" if age > self.stalled_after_seconds else self.state


_KINDS = get_type_hints(Status, include_extras=True)


class _Inside:
    """The path of a file or folder of a run, which has the same name in every run. Folders have no dot."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "RunDirectory", owner: type) -> Path:
        return run.path / self.name


class RunDirectory:
    """The paths of one run, and access to its small files. Creating the object touches nothing on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.expanduser(path)).absolute()

    @property
    def name(self) -> str:
        return self.path.name

    environment_path = _Inside("environment.json")
    metrics_path = _Inside("metrics.jsonl")
    evaluations_path = _Inside("evaluations.jsonl")
    layers_path = _Inside("layers.jsonl")
    machine_path = _Inside("machine.jsonl")
    status_path = _Inside("status.json")
    notes_path = _Inside("notes.json")
    transfer_path = _Inside("transfer.json")
    lineage_path = _Inside("lineage.json")
    certificate_path = _Inside("certificate.json")
    #: Of a run that ``labkit pull`` copies: where it is, and by how many seconds the clock there is ahead.
    pulled_path = _Inside("pulled.json")
    log_path = _Inside("out.log")
    #: What the processes print that the dashboard started: also errors of Python and TensorFlow.
    console_path = _Inside("console.log")
    #: Names the process that ``labkit stop`` asked to stop.
    stop_path = _Inside(".stop")
    events_path = _Inside("events")
    checkpoints_path = _Inside("checkpoints")
    #: The states that ``--check-numerics`` kept.
    numerics_path = _Inside("numerics")
    #: Images, histograms and texts that callbacks kept.
    media_path = _Inside("media")
    cluster_path = _Inside("cluster")
    predictions_path = _Inside("predictions")
    #: Copies of the files of code that the training ran.
    code_path = _Inside(CODE_FOLDER)
    #: By which the directory is known as a run.
    config_path = _Inside("config.json")

    @property
    def files(self) -> list[Path]:
        """The files that a run may have, that of its configuration last."""
        return [self.path / name for name in _INSIDE if "." in name]

    @property
    def folders(self) -> list[Path]:
        """The folders that a training writes."""
        return [self.path / name for name in _INSIDE if "." not in name]

    def exists(self) -> bool:
        """Return whether this directory holds a run."""
        try:
            return self.config_path.is_file()
        except OSError:  # this user may not read the folder
            return False

    def last_active(self) -> float:
        """Return when the run's status was last written, in seconds since the epoch.

        Without a status, the time of its configuration; without either, 0.0. Only file attributes are read,
        so sorting thousands of runs is quick.
        """
        for path in (self.status_path, self.config_path):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return 0.0

    def checkpoint_steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, ascending."""
        return checkpoint_steps(self.checkpoints_path)

    def numerics_steps(self) -> list[int]:
        """Return the steps of the states that ``--check-numerics`` kept, ascending."""
        return checkpoint_steps(self.numerics_path)

    def create(self) -> None:
        """Create the directory and its folders. What already exists is kept.

        Where a file mode creation mask lets every account write, only this account may enter the directory.
        """
        make_private(self.path)
        for folder in (self.path, self.events_path, self.checkpoints_path):
            folder.mkdir(exist_ok=True)

    def flush(self) -> None:
        """Wait until the disk has all that was written, so that a power failure takes nothing of it back.

        The folders in it aren't included; a checkpoint is flushed by itself.
        """
        for path in self.path.iterdir():
            if path.is_file() and not path.name.startswith("."):
                with suppress(FileNotFoundError, PermissionError):  # removed, or somebody else's
                    flush(path)
        flush(self.path)

    def read_config(self) -> dict[str, Any]:
        """Return the run's configuration. Raises InputError if it is missing or isn't a JSON object."""
        try:
            return dict(read_json(self.config_path))
        except FileNotFoundError:
            raise InputError(
                f"config.json is missing in {self.path}, which is not a run without it"
            ) from None

    def read_environment(self) -> dict[str, Any]:
        """Return the recorded environment, or an empty dict if there is no readable one."""
        return read_object(self.environment_path)

    def read_status(self) -> Status | None:
        """Return the last written status, or None if there is no readable one.

        The times of a run that is copied from another machine are by this machine's clock.
        """
        value, known = read_object(self.status_path), {}
        for name in _KINDS.keys() & value.keys():
            with suppress(ValueError):  # what isn't of its kind counts as not written
                known[name] = msgspec.convert(value[name], _KINDS[name])
        if known.get("state") not in STATES:
            return None
        status = Status(**known)
        if self.pulled_path.exists():
            pulled = read_object(self.pulled_path)
            ahead, place = pulled.get("clock_ahead"), str(pulled.get("from"))
            ahead = ahead if isinstance(ahead, float) else 0.0
            status = replace(
                status, heartbeat=status.heartbeat - ahead, started=status.started - ahead, host=place
            )
        return status

    def write_status(self, status: Status) -> None:
        """Replace ``status.json``. Raises ValueError for an unknown state.

        Whoever writes it goes on with the run on this machine, so it is no longer a copy.
        """
        if status.state not in STATES:
            raise ValueError(f"unknown state {status.state!r}; known: {', '.join(STATES)}")
        self.pulled_path.unlink(missing_ok=True)
        try:
            write_json_atomic(self.status_path, asdict(status))
        except OSError:
            # On a full disk there is no room for a second file, but still for the one that is there.
            overwrite(self.status_path, json.dumps(asdict(status)))


_INSIDE = [one.name for one in vars(RunDirectory).values() if isinstance(one, _Inside)]


def check_folders(run: RunDirectory) -> None:
    """Raise InputError if something in the folders of a run is a link: it could lead to files elsewhere."""
    for folder in run.folders:
        if link := _link_in(folder):
            raise InputError(
                f"{link} is a link, which labkit doesn't follow in a run; put what it leads to into its "
                "place, or move the whole run to where there is room"
            )


def _link_in(folder: Path) -> str:
    """Return the path of a link in a folder, or the folder's own if it is one; "" without any."""
    if folder.is_symlink():
        return str(folder)
    for parent, names, files in os.walk(folder):
        for name in (*names, *files):
            if os.path.islink(path := os.path.join(parent, name)):
                return path
    return ""


def make_private(folder: Path) -> None:
    """Make a folder and those around it. Only this account enters a new one that all could write to."""
    if folder.exists():
        return
    make_private(folder.parent)
    folder.mkdir(exist_ok=True)
    if folder.stat().st_mode & stat.S_IWOTH:
        folder.chmod(0o700)


def list_runs(folder: Path) -> list[RunDirectory]:
    """Return the runs directly under ``folder``, the most recently active first."""
    try:
        children = list(folder.iterdir())
    except (OSError, ValueError):  # the folder is missing, can't be listed, or its name has a null
        return []
    runs = [run for run in map(RunDirectory, children) if run.exists()]
    return sorted(runs, key=RunDirectory.last_active, reverse=True)


def _holds(pid: int, path: str) -> bool:
    """Return whether the process holds a lock on the file, as the kernel says in ``/proc/<pid>/fdinfo``."""
    try:
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{descriptor}") == path:
                with open(f"/proc/{pid}/fdinfo/{descriptor}") as file:
                    # A process that was forked has the file open too; the lock names the one that took it.
                    if re.search(rf"^lock:.*FLOCK.* {pid} ", file.read(), re.MULTILINE):
                        return True
    except OSError:  # it has ended meanwhile, or belongs to somebody else
        pass
    return False


class RunLock:
    """An exclusive lock on a run directory. The kernel releases it when the process ends.

    Args:
        run: the run directory, which must exist.
        name: of the lock file. The process that writes the run holds ``.lock``; the one that starts the
            tasks of its cluster holds ``.launcher``.
    """

    def __init__(self, run: RunDirectory, name: str = ".lock") -> None:
        self._path = run.path / name
        self._file: Any = None

    def acquire(self) -> bool:
        """Take the lock. Returns False if another process holds it."""
        import fcntl

        self._file = open_run_file(self._path, "a+")  # stays open until release
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            self._file = None
            return False
        return True

    def holder(self, among: Iterable[int] | None = None) -> int | None:
        """Return the id of the process on this machine that holds the lock.

        ``among``: process ids to look at; None: all. None is returned where no process holds it, where the
        holder runs on another machine or belongs to another user, and on systems without ``/proc``.
        """
        # A link to the lock of another run is not held by that run's process.
        path = os.path.join(os.path.realpath(self._path.parent), self._path.name)
        processes = (
            (int(entry) for entry in os.listdir("/proc") if entry.isdigit()) if among is None else among
        )
        return next((pid for pid in processes if _holds(pid, path)), None)

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
