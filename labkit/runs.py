"""The run directory: the one place where training, notebook, command line and dashboard meet.

Standard library only, so that a reader starts in milliseconds. ``docs/run-directory.md`` describes
the files. Only the chief process writes; any number of readers follow.
"""

import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import InputError

__all__ = [
    "ACTIVE_STATES",
    "MetricsReader",
    "MetricsWriter",
    "RunDirectory",
    "RunLock",
    "Seam",
    "Status",
    "list_runs",
    "process_alive",
    "write_json_atomic",
]

ACTIVE_STATES = ("starting", "running")
STATES = (*ACTIVE_STATES, "finished", "interrupted", "failed")


def write_json_atomic(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as JSON: a reader sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    temporary.write_text(json.dumps(value, indent=2, default=str) + "\n")
    os.replace(temporary, path)


def process_alive(pid: int) -> bool:
    """Return whether a process with this id exists on this machine and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return False
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@dataclass(frozen=True)
class Status:
    """What ``status.json`` holds: where a run stands, as its writer last said.

    ``heartbeat`` and ``started`` are seconds since the epoch. ``stalled_after_seconds`` is the age of the
    heartbeat after which the run counts as stalled; the writer knows its own pace. ``message`` is one
    line for people (the reason of a failure, what is being done now).
    """

    state: str
    step: int = 0
    total_steps: int = 0
    heartbeat: float = 0.0
    started: float = 0.0
    pid: int = 0
    host: str = ""
    message: str = ""
    examples_per_second: float | None = None
    eta_seconds: float | None = None
    stalled_after_seconds: float = 15.0

    def liveness(self, now: float | None = None) -> str:
        """Return the state as a reader should show it: the written one, ``stalled`` or ``dead``.

        ``dead``: written as active, but its process no longer exists on this host. ``stalled``:
        written as active, but the heartbeat is older than ``stalled_after_seconds``.
        """
        if self.state not in ACTIVE_STATES:
            return self.state
        if self.host == socket.gethostname() and self.pid and not process_alive(self.pid):
            return "dead"
        age = (time.time() if now is None else now) - self.heartbeat
        return "stalled" if age > self.stalled_after_seconds else self.state


@dataclass(frozen=True)
class Seam:
    """A place where a run went on: rows after ``step`` written before the seam are superseded."""

    step: int
    wall_time: float


class RunDirectory:
    """Paths of one run and its small files. Creating the object touches nothing on disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def environment_path(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def status_path(self) -> Path:
        return self.path / "status.json"

    @property
    def log_path(self) -> Path:
        return self.path / "out.log"

    @property
    def events_path(self) -> Path:
        return self.path / "events"

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"

    @property
    def predictions_path(self) -> Path:
        return self.path / "predictions"

    def exists(self) -> bool:
        """Return whether this directory holds a run."""
        try:
            return self.config_path.is_file()
        except OSError:  # a folder that this user may not look into
            return False

    def last_active(self) -> float:
        """Return when the run's status, or else its configuration, was last written, in epoch seconds.

        0.0 where neither is there. Only file attributes are read, so that thousands of runs can be sorted.
        """
        for path in (self.status_path, self.config_path):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return 0.0

    def create(self) -> None:
        """Make the directory and its folders; keep what is there."""
        for folder in (self.path, self.events_path, self.checkpoints_path):
            folder.mkdir(parents=True, exist_ok=True)

    def read_config(self) -> dict[str, Any]:
        """Return the run's configuration. Raises InputError where there is none or it is no JSON object."""
        try:
            value = json.loads(self.config_path.read_text())
        except FileNotFoundError:
            raise InputError(f"{self.path} is not a run directory: it has no config.json") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.config_path} can't be read: {error}") from None
        if not isinstance(value, dict):
            raise InputError(f"{self.config_path} holds no JSON object")
        return value

    def read_environment(self) -> dict[str, Any]:
        """Return the recorded environment, or an empty dict where none is readable."""
        return _read_object(self.environment_path)

    def read_status(self) -> Status | None:
        """Return the last written status, or None where there is no readable one."""
        value = _read_object(self.status_path)
        if not isinstance(value.get("state"), str):
            return None
        kinds = {"host": str, "message": str, "state": str}
        known = {
            name: value[name]
            for name in Status.__dataclass_fields__
            if isinstance(value.get(name), kinds.get(name, int | float))
        }
        return Status(**known)

    def write_status(self, status: Status) -> None:
        """Replace ``status.json``. Raises ValueError for an unknown state."""
        if status.state not in STATES:
            raise ValueError(f"unknown state {status.state!r}; known: {', '.join(STATES)}")
        write_json_atomic(self.status_path, asdict(status))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def list_runs(folder: Path) -> list[RunDirectory]:
    """Return the runs directly under ``folder``, the one that was active last first."""
    try:
        children = list(folder.iterdir())
    except OSError:  # no such folder, or one that can't be listed
        return []
    runs = [run for run in map(RunDirectory, children) if run.exists()]
    return sorted(runs, key=RunDirectory.last_active, reverse=True)


class RunLock:
    """Exclusive right to write into a run directory, released by the kernel when the process ends."""

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.path / ".lock"
        self._file: Any = None

    def acquire(self) -> bool:
        """Take the lock; return False where another process holds it."""
        import fcntl

        self._file = open(self._path, "a+")  # noqa: SIM115 - held until release
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            self._file = None
            return False
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class MetricsWriter:
    """Append rows to ``metrics.jsonl``; each row is one ``write`` of one line.

    On a file that exists, a torn last line (the writer was killed inside it) is cut off. Readers never
    go past the last newline, so none of them has seen it.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._cut_torn_line()

    def _cut_torn_line(self) -> None:
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 65536)
            newline = os.pread(self._descriptor, position - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            position = end = start
        os.ftruncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)

    def append(self, rows: list[Mapping[str, Any]]) -> None:
        """Write ``rows`` in order. NaN and Infinity are kept, as the tokens NaN and Infinity."""
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def mark_seam(self, step: int) -> None:
        """Say that the run goes on from ``step``: earlier rows after it no longer count."""
        self.append([{"resumed_at_step": step, "wall_time": time.time()}])

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass
class MetricsReader:
    """Follow ``metrics.jsonl`` by byte offset.

    ``rows`` holds what counts, in order of writing: after a seam at step s, rows with a step greater
    than s that were written before it are gone. Lines that aren't JSON objects are counted in
    ``damaged_lines`` and skipped.

    With ``keep_rows=False`` nothing is kept in ``rows`` (300,000 of them are some 190 MB as dicts): the
    caller stores what ``poll`` returns in its own form, drops its rows beyond the step of each new
    entry of ``seams``, and drops everything, seams included, when ``generation`` has grown.
    """

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    seams: list[Seam] = field(default_factory=list)
    damaged_lines: int = 0
    generation: int = 0  # grows whenever rows that a caller may have seen were dropped
    keep_rows: bool = True
    caught_up: bool = False  # whether the last poll reached the end of the file
    _offset: int = 0
    _inode: int | None = None
    _behind_offset: bytes = b""  # the last bytes read, to know the file again

    def poll(self, max_bytes: int | None = None) -> list[dict[str, Any]]:
        """Read what was appended since the last call; return the new rows that count.

        ``max_bytes`` bounds what one call takes in (a longer line is still read whole); ``caught_up``
        then says whether there was more. A file that was replaced, rewritten or cut shorter than the
        offset is read from its beginning. A missing file has no rows; other OSErrors are raised.
        """
        try:
            with open(self.path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if self._inode is not None and not (inode == self._inode and self._knows(file)):
                    self._restart()
                self._inode = inode
                file.seek(self._offset)
                data = file.read(-1 if max_bytes is None else max_bytes)
                while max_bytes and b"\n" not in data and (more := file.read(max_bytes)):
                    data += more
                self.caught_up = not file.read(1)
        except FileNotFoundError:
            if self._inode is not None:
                self._restart()
                self._inode = None
            self.caught_up = True
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        self._behind_offset = (self._behind_offset + complete[-256:])[-256:]
        fresh: list[dict[str, Any]] = []
        for row in _parse_lines(complete.splitlines()):
            fresh = self._take(row, fresh)
        if self.keep_rows:
            self.rows.extend(fresh)
        return fresh

    def _knows(self, file: Any) -> bool:
        # A run that is started over often gets the inode of the file that was removed, and may have
        # outgrown the offset by the next poll: only the bytes tell the two apart.
        file.seek(self._offset - len(self._behind_offset))
        return bool(file.read(len(self._behind_offset)) == self._behind_offset)

    def _take(self, row: Any, fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not isinstance(row, dict):
            self.damaged_lines += 1
            return fresh
        if "resumed_at_step" not in row:
            fresh.append(row)
            return fresh
        step, wall_time = row["resumed_at_step"], row.get("wall_time")
        if not isinstance(step, int):
            self.damaged_lines += 1
            return fresh
        seam = Seam(step, float(wall_time) if isinstance(wall_time, int | float) else math.nan)
        self.seams.append(seam)
        before = len(self.rows)
        self.rows = [old for old in self.rows if _step_of(old) <= seam.step]
        self.generation += len(self.rows) != before
        return [old for old in fresh if _step_of(old) <= seam.step]

    def _restart(self) -> None:
        self.rows = []
        self.seams = []
        self.damaged_lines = 0
        self.generation += 1
        self._offset = 0
        self._behind_offset = b""

    def split(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of one split: ``train``, ``validation`` or ``test``."""
        return [row for row in self.rows if row.get("split") == name]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def _step_of(row: dict[str, Any]) -> float:
    step = row.get("step")
    return step if isinstance(step, int | float) else 0


def _parse_lines(lines: list[bytes], block: int = 4096) -> Iterator[Any]:
    """Yield the value of each line that isn't blank, None where it is no JSON.

    A block of lines is parsed as one JSON array: quicker than one call per line (0.57 times, the median
    of five tries on a busy machine), and the rows share their keys' strings, which halves their memory.
    A block that doesn't parse so is read line by line.
    """
    lines = [line for line in lines if line.strip()]
    for start in range(0, len(lines), block):
        part = lines[start : start + block]
        if all(line.startswith(b"{") and line.endswith(b"}") for line in part):
            values = _parse(b"[" + b",".join(part) + b"]")
            if values is not None and len(values) == len(part):
                yield from values
                continue
        yield from map(_parse, part)


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
