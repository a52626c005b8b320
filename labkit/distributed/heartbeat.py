"""The file in which one task of a cluster says that it lives, and what it does.

One JSON object of fixed size, written in place from open to close and opened anew at each look. Under NFS
that is what makes a change visible to other hosts at once; a rename would leave readers with the old file.
A reader that meets a half-written block (the checksum tells) tries again. Standard library only.
"""

import json
import os
import re
import socket
import time
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from labkit.run_directory import process_alive

__all__ = ["Heartbeat", "PeerState", "beat_path", "process_space", "read_beat", "read_beats", "write_beat"]

BLOCK = 4096  # bytes; a file is a multiple of it
LONGEST_FILE = 1 << 20  # bytes; a longer file is none of ours
LONGEST_MESSAGE = 300  # characters


@dataclass(frozen=True)
class Heartbeat:
    """What one task last said.

    ``incarnation`` is a random word for one life of the task; ``counter`` moves with each renewal. ``phase``
    is ``waiting`` before the rendezvous, ``lost`` after a loss, ``left`` after a clean end, and between
    these what the task tells. ``seen`` has an entry for every peer that matters to the task: the incarnation
    that it takes for a member of its session, or "". ``process_space`` says where ``pid`` has a meaning:
    containers may share a host's name, but not its process ids.
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


KINDS: dict[str, type | tuple[type, ...]] = {
    "name": str, "address": str, "host": str, "pid": int, "incarnation": str, "counter": int, "phase": str,
    "step": int, "seen": dict, "message": str, "examples_per_second": (int, float, type(None)),
    "process_space": str,
}  # fmt: skip


def beat_path(folder: Path, name: str) -> Path:
    """Return the file of a task. Raises ValueError for a name that isn't like ``worker:1``."""
    if not re.fullmatch(r"[a-z_]+:\d+", name):
        raise ValueError(f"a task's name is like worker:1, not {name!r}")
    return folder / f"{name.replace(':', '-')}.json"


def read_beats(folder: Path) -> dict[str, Heartbeat]:
    """Return the last beat of every task that has a readable file in ``folder``, by name."""
    beats = (read_beat(path) for path in sorted(folder.glob("*-*.json")))
    return {beat.name: beat for beat in beats if beat is not None}


def read_beat(path: Path) -> Heartbeat | None:
    """Return the beat in a file, or None where it is missing, out of reach or damaged."""
    for attempt in range(3):
        time.sleep(0.005 * attempt)
        try:
            with open(path, "rb") as file:
                data = file.read(LONGEST_FILE)
        except OSError:
            return None
        beat = _decode(data)
        if beat is not None:
            return beat
    return None


def write_beat(path: Path, beat: Heartbeat) -> None:
    """Write a beat over the one in the file. Raises OSError where that isn't possible."""
    data = _encode(beat)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(file, data, 0)
        if os.fstat(file).st_size != len(data):  # an earlier session had more peers
            os.ftruncate(file, len(data))
    finally:
        os.close(file)


@dataclass(eq=False)
class PeerState:
    """A peer as its file shows it to this process."""

    name: str
    address: str
    path: Path
    beat: Heartbeat | None = None
    alive: bool = False  # its counter or its incarnation was seen to change, and not long ago
    gone: bool = False  # its process is
    still: float = 0.0  # seconds of watching without news
    member: str = ""  # the incarnation that is in the session with this process

    def look(self, space: str, elapsed: float, timeout: float) -> None:
        """Read the peer's file.

        Args:
            space: the caller's ``process_space()``; there a vanished process is noticed at once.
            elapsed: seconds that the caller has watched since its last look.
            timeout: seconds without news after which the peer no longer counts as alive.
        """
        before, beat = self.beat, read_beat(self.path)
        self.gone = bool(beat and beat.process_space == space and not process_alive(beat.pid))
        if self.gone:  # it may have said goodbye between the two looks
            beat = read_beat(self.path) or beat
        self.beat = beat or before
        life = (before.incarnation, before.counter) if before else None
        news = bool(life and beat and (beat.incarnation, beat.counter) != life)
        self.still = 0.0 if news else self.still + elapsed
        left = self.beat is None or self.beat.phase in ("left", "lost")
        self.alive = (self.alive or news) and not left and not self.gone and self.still < timeout

    @property
    def incarnation(self) -> str:
        """The incarnation that could be in a session with this process, or ""."""
        return self.beat.incarnation if self.beat and self.alive and self.beat.address == self.address else ""

    def __str__(self) -> str:
        beat = self.beat
        where = f", pid {beat.pid} on {beat.host}" if beat else ""
        return f"{self.name} ({self.address}{where})"


def process_space() -> str:
    """Return what tells the kernel and the namespace that this process's id belongs to from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _encode(beat: Heartbeat) -> bytes:
    # The room depends on what stays the same for a life, so that the file keeps its size: JSON needs up to
    # six bytes for a character.
    room = 1000 + 6 * LONGEST_MESSAGE + sum(len(name) + 24 for name in beat.seen)
    body = json.dumps(asdict(replace(beat, message=beat.message[:LONGEST_MESSAGE])))
    text = f'{{"checksum": {zlib.crc32(body.encode())}, "beat": {body}}}'
    return text.ljust(-(-room // BLOCK) * BLOCK - 1).encode() + b"\n"


def _decode(data: bytes) -> Heartbeat | None:
    try:
        value = json.loads(data)
        fields = value["beat"]
        if zlib.crc32(json.dumps(fields).encode()) != value["checksum"]:
            return None
        beat = Heartbeat(**{name: fields[name] for name in KINDS})
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    whole = all(isinstance(getattr(beat, name), kind) for name, kind in KINDS.items())
    return beat if whole and all(isinstance(word, str) for word in beat.seen.values()) else None
