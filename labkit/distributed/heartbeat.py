"""Heartbeat files: each task of a cluster writes one, and the others read it.

A file holds one JSON object of fixed size. It is written in place from open to close and opened anew for
each read: with NFS, that makes a change visible to other hosts at once, while a renamed file could leave
readers with the old one. A reader that finds a half-written file (wrong checksum) reads it again. Without
TensorFlow.
"""

import json
import os
import re
import socket
import time
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec

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
