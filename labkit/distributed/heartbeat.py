"""Heartbeat files: each task of a cluster writes one, and the others read it. And a watch on progress: tasks
that send heartbeats, but make no steps, and steps that don't end. Without TensorFlow.

A file holds one JSON object of fixed size. It is written in place from open to close and opened anew for each
read: with NFS, that makes a change visible to other hosts at once, while a renamed file could leave readers
with the old one. A reader that finds a half-written file (wrong checksum) reads it again.

Heartbeats go on when the network between the tasks fails, when a connection hangs without an error, and when
a thread of a task waits for ever. Then no task finishes its step, and each notices it by itself.
"""

import json
import os
import re
import socket
import statistics
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec

from labkit.distributed.task import split_address
from labkit.run_directory import process_alive
from labkit.run_directory.files import open_run_descriptor, open_run_file

BLOCK = 4096  # bytes; the size of a file is a multiple of it
LONGEST_FILE = 1 << 20  # bytes; longer files are not heartbeats
LONGEST_MESSAGE = 300  # characters


@dataclass(frozen=True)
class Heartbeat:
    """What one task last reported.

    ``incarnation``: a random word for one process of the task; a restarted task has another one.
    ``counter``: increases with each heartbeat. ``phase``: ``waiting`` before the rendezvous, ``lost`` after
    the loss of a peer, ``left`` after a clean end, and in between what the task sets. ``seen``: for every
    peer that the task watches, the incarnation that is in its session, or "". ``process_space``: where
    ``pid`` is valid; containers may share a host name, but not process ids. ``begun``: the last step whose
    input the task has. ``activity``: what it does while it is not in a step, such as ``saves``, or "".
    ``dismissed``: by the names of tasks whose step does not end, the incarnation that must end itself.
    """

    name: str
    address: str
    host: str
    pid: int
    incarnation: str
    counter: int
    phase: str
    step: int
    seen: dict[str, str]
    message: str
    examples_per_second: float | None
    process_space: str = ""
    begun: int = 0
    activity: str = ""
    dismissed: dict[str, str] = field(default_factory=dict)


def heartbeat_path(folder: Path, name: str) -> Path:
    """Return the file of a task. Raises ValueError for a name that is not of the form ``worker:1``."""
    if not re.fullmatch(r"[a-z_]+:\d+", name):
        raise ValueError(f"a task's name is like worker:1, not {name!r}")
    return folder / f"{name.replace(':', '-')}.json"


def read_heartbeats(folder: Path) -> dict[str, Heartbeat]:
    """Return the last heartbeat of every task with a readable file in ``folder``, by name."""
    heartbeats = (read_heartbeat(path) for path in sorted(folder.glob("*-*.json")))
    return {heartbeat.name: heartbeat for heartbeat in heartbeats if heartbeat is not None}


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the heartbeat in a file, or None if it is missing, unreadable or damaged."""
    for attempt in range(3):
        time.sleep(0.005 * attempt)
        try:
            with open_run_file(path) as file:
                data = file.read(LONGEST_FILE)
        except OSError:
            return None
        heartbeat = _decode(data)
        if heartbeat is not None:
            return heartbeat
    return None


def write_heartbeat(path: Path, heartbeat: Heartbeat) -> None:
    """Overwrite the heartbeat in a file. Raises OSError if that fails."""
    data = _encode(heartbeat)
    file = open_run_descriptor(os.fspath(path), os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(file, data, 0)
        if os.fstat(file).st_size != len(data):  # an earlier session had more peers
            os.ftruncate(file, len(data))
    finally:
        os.close(file)


@dataclass(eq=False)
class PeerState:
    """What this process knows about a peer from its heartbeat file.

    ``alive``: its heartbeat was seen to change, and not longer ago than the timeout. ``exited``: its process
    on this host has ended. ``silent_seconds``: time of watching without a new heartbeat. ``member``: the
    incarnation that is in the session with this process, or "".
    """

    name: str
    address: str
    path: Path
    heartbeat: Heartbeat | None = None
    alive: bool = False
    exited: bool = False
    silent_seconds: float = 0.0
    member: str = ""

    def refresh(self, space: str, elapsed: float, timeout: float) -> None:
        """Read the peer's file.

        Args:
            space: the caller's ``process_space()``; the end of a process in it is noticed at once.
            elapsed: seconds that the caller has watched since the last call.
            timeout: seconds without a new heartbeat after which the peer no longer counts as alive.
        """
        before, heartbeat = self.heartbeat, read_heartbeat(self.path)
        self.exited = bool(
            heartbeat and heartbeat.process_space == space and not process_alive(heartbeat.pid)
        )
        if self.exited:  # it may have written its last heartbeat after the read above
            heartbeat = read_heartbeat(self.path) or heartbeat
        self.heartbeat = heartbeat or before
        last = (before.incarnation, before.counter) if before else None
        news = bool(last and heartbeat and (heartbeat.incarnation, heartbeat.counter) != last)
        self.silent_seconds = 0.0 if news else self.silent_seconds + elapsed
        left = self.heartbeat is None or self.heartbeat.phase in ("left", "lost")
        self.alive = (self.alive or news) and not left and not self.exited and self.silent_seconds < timeout

    @property
    def incarnation(self) -> str:
        """Return the incarnation that could be in a session with this process, or ""."""
        usable = self.heartbeat is not None and self.alive and self.heartbeat.address == self.address
        return self.heartbeat.incarnation if self.heartbeat and usable else ""

    def __str__(self) -> str:
        process = f", pid {self.heartbeat.pid} on {self.heartbeat.host}" if self.heartbeat else ""
        return f"{self.name} ({self.address}{process})"


def process_space() -> str:
    """Return an identifier of the kernel and process namespace in which this process's id is valid.

    Processes with host names of their own count as on different hosts, as ``labkit cluster local --hosts``
    makes them.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.readlink('/proc/self/ns/uts')}"
    except OSError:
        return socket.gethostname()


def _encode(heartbeat: Heartbeat) -> bytes:
    # The size depends only on what does not change during the life of a task, so that the file keeps its
    # size. JSON needs up to six bytes for a character.
    room = 1000 + 6 * LONGEST_MESSAGE + 2 * sum(len(name) + 24 for name in heartbeat.seen)
    body = json.dumps(asdict(replace(heartbeat, message=heartbeat.message[:LONGEST_MESSAGE])))
    text = f'{{"checksum": {zlib.crc32(body.encode())}, "heartbeat": {body}}}'
    return text.ljust(-(-room // BLOCK) * BLOCK - 1).encode() + b"\n"


def _decode(data: bytes) -> Heartbeat | None:
    try:
        value = json.loads(data)
        if zlib.crc32(json.dumps(value["heartbeat"]).encode()) != value["checksum"]:
            return None
        return msgspec.convert(value["heartbeat"], Heartbeat)
    except (ValueError, LookupError, TypeError, RecursionError, msgspec.ValidationError):
        return None


USUAL_STEPS = 20  # whose median is the usual time of a step
TIMES_AS_LONG = 20  # as the usual step
PATIENCE = 10  # times as long for what has no usual time: compiling, a batch of an evaluation, a checkpoint
SECONDS_TO_CONNECT = 2.0
SECONDS_FOR_OTHERS = 10.0  # to find a cause, where this task finds none
BETWEEN_STEPS = "is between two steps"


class Progress:
    """Judges whether a cluster still makes progress.

    Args:
        name: of this task.
        addresses: of all tasks, by name.
        minimum: seconds without progress that are never too long.
    """

    def __init__(self, name: str, addresses: Mapping[str, str], minimum: float) -> None:
        self._name, self._addresses, self._minimum = name, dict(addresses), minimum
        self._seconds: deque[float] = deque(maxlen=USUAL_STEPS)
        self._moves = self._seen = 0
        self._still = 0.0  # seconds of watching without a move

    def move(self, step_seconds: float | None = None) -> None:
        """Note progress. ``step_seconds``: of a step that has ended; None: something else has."""
        if step_seconds is not None:
            self._seconds.append(step_seconds)
        self._moves += 1

    def judge(
        self, elapsed: float, own: Heartbeat, peers: Mapping[str, Heartbeat], needed: Iterable[str]
    ) -> str | None:
        """Return what hinders the steps if they have ended for too long, else None.

        Args:
            elapsed: seconds that the caller has watched since the last call.
            own: the heartbeat of this task.
            peers: those of the other tasks that make the same steps.
            needed: the tasks that this one must reach.
        """
        self._still = 0.0 if self._moves != self._seen else self._still + elapsed
        self._seen = self._moves
        tasks = {own.name: own, **peers}
        busy = {name: task for name, task in tasks.items() if task.activity}
        limit = max(self._minimum, TIMES_AS_LONG * statistics.median(self._seconds or [0.0]))
        if busy or not self._seconds:
            limit *= PATIENCE
        if self._still < limit:
            return None
        reason = self._reason(tasks, needed)
        if not reason and self._still < limit + SECONDS_FOR_OTHERS:
            return None
        return f"no progress for {self._still:.0f} s: {reason or 'all tasks reach each other'}"

    def _reason(self, tasks: Mapping[str, Heartbeat], needed: Iterable[str]) -> str:
        """Return what can be seen of the cause, or ""."""
        newest = max(task.begun for task in tasks.values())
        behind = {name: task for name, task in tasks.items() if task.begun < newest}
        if behind:
            words = [self._described(name, task) for name, task in behind.items()]
            return f"step {newest} has begun, but not in {'; '.join(words)}"
        cut = unreachable({name: self._addresses[name] for name in needed})
        return f"{self._name} can't reach {cut}" if cut else ""

    def _described(self, name: str, task: Heartbeat) -> str:
        doing = f", which {task.activity}" if task.activity else ", which waits for its input"
        return f"{name} (pid {task.pid} on {task.host}{doing})"


def unreachable(addresses: Mapping[str, str]) -> str:
    """Return the tasks among ``addresses`` (by name) that no connection can be made to, and why, or ""."""
    with ThreadPoolExecutor(32) as pool:
        errors = dict(zip(addresses, pool.map(connection_error, addresses.values()), strict=True))
    return "; ".join(f"{name} ({addresses[name]}): {error}" for name, error in errors.items() if error)


def connection_error(address: str, seconds: float = SECONDS_TO_CONNECT) -> OSError | None:
    """Return why no connection to ``address`` can be made within ``seconds``, or None."""
    try:
        socket.create_connection(split_address(address), seconds).close()
    except OSError as error:
        return error
    return None


# ---- the steps of asynchronous workers


@dataclass(eq=False)
class Attempt:
    """A step that a worker makes now.

    ``incarnation``: of the worker's process. ``first``: whether it compiles the step. ``watched``: seconds
    for which ``overdue`` has seen it. ``others_ended``: whether another worker has ended a step since it
    began. ``dismissed``, ``reported``: for the caller of ``overdue``: whether it has told the worker to end,
    or has said why it can't.
    """

    worker: str
    incarnation: str
    first: bool
    watched: float = 0.0
    others_ended: bool = False
    dismissed: bool = False
    reported: bool = False


class Attempts:
    """Finds workers whose step does not end, although other workers' steps do.

    Used by the threads of the coordinator that serve the workers (``attempt``), and by the one that watches.

    Args:
        incarnation_of: returns the incarnation of a worker's process, as its heartbeat names it.
    """

    def __init__(self, incarnation_of: Callable[[str], str]) -> None:
        self._incarnation_of = incarnation_of
        self._running: dict[str, Attempt] = {}
        self._seconds: dict[str, deque[float]] = {}  # of the last steps of each worker
        self._changed = threading.Lock()

    @contextmanager
    def attempt(self, worker: str) -> Iterator[None]:
        """Note that ``worker``, such as ``worker:1``, makes a step within this context."""
        began, incarnation = time.monotonic(), self._incarnation_of(worker)
        with self._changed:
            self._running[worker] = Attempt(worker, incarnation, first=worker not in self._seconds)
        try:
            yield
        except BaseException:
            with self._changed:
                del self._running[worker]
                self._seconds.pop(worker, None)  # another process may make the next step, and compile it
            raise
        with self._changed:
            del self._running[worker]
            last = self._seconds.setdefault(worker, deque(maxlen=USUAL_STEPS))
            last.append(time.monotonic() - began)
            for other in self._running.values():
                other.others_ended = True

    def overdue(self, elapsed: float, minimum: float) -> list[Attempt]:
        """Return the steps that take too long, of workers that are to blame for it.

        A worker is to blame if another worker has ended a step meanwhile, and no other worker's step takes
        long, too: else they may all be waiting for a parameter server.

        Args:
            elapsed: seconds that the caller has watched since the last call. The clock goes on while this
                process is suspended, and the workers with it.
            minimum: seconds that are never too long. A step may also take ``TIMES_AS_LONG`` times as long as
                the worker's usual one, and a worker's first step ``PATIENCE`` times longer than all others.
        """
        with self._changed:
            running = list(self._running.values())
            for attempt in running:
                attempt.watched += elapsed
            return [each for each in running if self._is_overdue(each, running, minimum)]

    def _is_overdue(self, attempt: Attempt, running: list[Attempt], minimum: float) -> bool:
        usual = statistics.median(self._seconds.get(attempt.worker) or [0.0])
        limit = max(minimum, TIMES_AS_LONG * usual) * (PATIENCE if attempt.first else 1)
        others_are_quick = all(other is attempt or other.watched < limit / 2 for other in running)
        return attempt.watched > limit and attempt.others_ended and others_are_quick
