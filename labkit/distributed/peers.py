"""Signs of life of the tasks of a cluster: one small file for each in ``<run>/cluster/``.

Every task renews its own file from a thread and reads those of the peers that matter to it. The run
directory is where the tasks meet anyway, so no port, no server and no firewall rule is added. Standard
library only.

Clocks of different hosts are never compared: a peer lives as long as its counter moves, by the reader's
own monotonic clock. An *incarnation* is one life of one task. Under Kubernetes a pod may restart alone
while the others still are in the old session; it must not join a session that doesn't know it. So a
rendezvous ends only when all tasks name the same incarnations.
"""

import os
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from labkit.distributed.heartbeat import (
    Heartbeat,
    PeerState,
    beat_path,
    process_space,
    read_beat,
    read_beats,
    write_beat,
)

__all__ = ["EXIT_LOST_PEER", "Heartbeat", "PeerLost", "Peers", "die_of_loss", "read_beats"]

EXIT_LOST_PEER = 75  # EX_TEMPFAIL of sysexits.h: a failure that another try may cure
JOINING_PACE = 0.1  # seconds between two looks while a session forms, so that its start costs little


class PeerLost(Exception):
    """A peer never came, or is gone. The message names it, its address and what was seen."""


def die_of_loss(message: str) -> NoReturn:
    """Say that a peer is lost and end this process at once with code 75.

    For a process whose main thread waits inside TensorFlow's C++, where no exception can reach it.
    """

    def say() -> None:
        print(f"labkit: lost peer: {message}", file=sys.stderr, flush=True)
        sys.stdout.flush()

    # A stream can be blocked by a reader that sleeps, or held by the thread that hangs: don't wait for long.
    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    speaker.join(2.0)
    os._exit(EXIT_LOST_PEER)


class Peers:
    """This task's sign of life, and its eyes on the others.

    Args:
        folder: the ``cluster/`` folder of the run directory, the same for all tasks.
        name: this task, like ``worker:1``.
        address: ``host:port`` of this task, as the cluster's description has it.
        peers: name → address of those that matter to this task, without itself. They may be fewer than all:
            in an asynchronous cluster a server needs the chief alone.
        interval: seconds between two renewals.
        timeout: seconds without news after which a peer counts as lost.

    Each look costs one small read for each peer.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        address: str,
        peers: Mapping[str, str],
        *,
        interval: float = 1.0,
        timeout: float = 15.0,
    ) -> None:
        if name in peers:
            raise ValueError(f"{name} can't be a peer of itself")
        self._path = beat_path(folder, name)
        self._interval, self._timeout = interval, timeout
        self._sightings = {
            peer: PeerState(peer, where, beat_path(folder, peer)) for peer, where in peers.items()
        }
        self._beat = Heartbeat(
            name=name,
            address=address,
            host=socket.gethostname(),
            pid=os.getpid(),
            incarnation=secrets.token_hex(6),
            counter=0,
            phase="waiting",
            step=0,
            seen=dict.fromkeys(peers, ""),
            message="",
            examples_per_second=None,
            process_space=process_space(),
        )
        self._thread = threading.Thread(target=self._run, name="labkit-peers", daemon=True)
        self._changed = threading.Condition()  # guards what follows and self._beat
        self._joining = False
        self._settled = not peers
        self._watched: frozenset[str] = frozenset()
        self._on_loss: Callable[[str], None] | None = None
        self._lost: str | None = None
        self._reported = False
        self._ending = threading.Event()
        self._complaint = ""

    def start(self) -> None:
        """Write the first beat, then renew it from a thread.

        Raises OSError where the folder can't be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write()
        self._thread.start()

    def rendezvous(self, timeout: float, stop: Callable[[], object] | None = None) -> bool:
        """Wait until this task and all its peers agree on who is in the session.

        A peer may restart meanwhile; files of an earlier session don't count, because nobody moves them. A
        peer that doesn't list this task only has to be alive. Give a minute or more where the directory is
        on NFS, whose clients may believe for 30 s that a file isn't there.

        Args:
            timeout: seconds to wait.
            stop: asked now and then; once it is true (a signal came), the wait ends.

        Returns whether all agree: False only after ``stop``. Raises PeerLost that names all that are missing.
        """
        end = time.monotonic() + timeout
        with self._changed:
            self._joining = not self._settled
            while not self._settled and self._lost is None:
                if stop is not None and stop():
                    return False
                absence = self._absence(timeout) if time.monotonic() >= end else ""
                if absence:
                    raise PeerLost(absence)
                self._changed.wait(JOINING_PACE)
            if self._lost is not None:
                raise PeerLost(self._lost)
        return True

    def watch(self, on_loss: Callable[[str], None], of: Collection[str] | None = None) -> None:
        """From now on call ``on_loss`` with a message, once and in the thread, when a peer is lost.

        Lost is a peer whose counter stands still, whose process is gone from this host, that has itself lost
        a peer, or that was restarted. One that has left is not lost, whatever comes after it. So leave only
        when the session needs this task no more.

        Args:
            on_loss: may end the process (``die_of_loss``).
            of: the peers whose loss counts; None for all. The others may come and go, and a rendezvous of
                theirs with this task succeeds at any time.
        """
        with self._changed:
            self._watched = frozenset(self._sightings if of is None else of)
            if not self._watched <= self._sightings.keys():
                raise ValueError(f"not among the peers: {sorted(self._watched - self._sightings.keys())}")
            self._joining, self._settled, self._on_loss = False, True, on_loss

    def lost(self, wait: float = 0.0) -> str | None:
        """Return what was lost, once something is; wait for it up to ``wait`` seconds.

        The wait is for a task whose collective failed: a broken connection shows there first.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, wait)
            return self._lost

    def tell(
        self,
        *,
        phase: str | None = None,
        step: int | None = None,
        examples_per_second: float | None = None,
        message: str | None = None,
    ) -> None:
        """Say with the next beat what this task does; None leaves a field as it is. No I/O."""
        told = {"phase": phase, "step": step, "examples_per_second": examples_per_second, "message": message}
        with self._changed:
            if self._beat.phase != "lost":  # what was lost must reach the others
                told = {name: value for name, value in told.items() if value is not None}
                self._beat = replace(self._beat, **told)  # type: ignore[arg-type]

    def leave(self) -> None:
        """Say goodbye with a last beat and end the thread. A second call does nothing."""
        self._ending.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(5.0)  # a file system that hangs must not keep the task from ending

    def beats(self) -> dict[str, Heartbeat]:
        """Return what was last read of the others, by name; whoever never wrote is missing."""
        return {name: seen.beat for name, seen in self._sightings.items() if seen.beat is not None}

    def silent(self) -> list[str]:
        """Return the peers that have given no sign of life for ``timeout`` and did not say goodbye."""
        return [
            name
            for name, seen in self._sightings.items()
            if seen.still >= self._timeout and not (seen.beat and seen.beat.phase == "left")
        ]

    def _run(self) -> None:
        before = time.monotonic()
        while not self._ending.wait(self._pace()):
            now = time.monotonic()
            # After a pause of this very process (SIGSTOP, a paused machine) the others' files look old,
            # although nobody watched: a late look counts as two intervals at most.
            self._guarded(self._look, min(now - before, 2 * self._interval))
            before = now
        with self._changed:
            self._beat = replace(self._beat, phase="lost" if self._lost else "left")
        self._guarded(self._write)

    def _guarded(self, action: Callable[..., None], *arguments: object) -> None:
        """Run ``action``; say once what goes wrong, and go on: this thread must outlive any trouble."""
        try:
            action(*arguments)
            self._complaint = ""
        except OSError as error:
            if not self._complaint:
                print(f"labkit: the sign of life can't be written: {error}", file=sys.stderr, flush=True)
            self._complaint = str(error)
        except Exception as error:
            if repr(error) != self._complaint:
                traceback.print_exc()
            self._complaint = repr(error)

    def _pace(self) -> float:
        if self._settled:
            return self._interval
        return min(self._interval, max(JOINING_PACE, 0.01 * len(self._sightings)))

    def _look(self, elapsed: float) -> None:
        for sighting in self._sightings.values():
            sighting.look(self._beat.process_space, elapsed, self._timeout)
        own = read_beat(self._path)
        with self._changed:
            for sighting in self._sightings.values():
                frozen = self._settled and (self._on_loss is None or sighting.name in self._watched)
                if not frozen or not sighting.member:
                    sighting.member = sighting.incarnation
            if self._joining and not any(map(self._hindrance, self._sightings.values())):
                self._joining, self._settled = False, True
            message = self._loss(own) if self._lost is None else None
            if message is not None:
                self._beat = replace(self._beat, phase="lost", message=message)
            seen = {name: sighting.member for name, sighting in self._sightings.items()}
            self._beat = replace(self._beat, seen=seen, counter=self._beat.counter + 1)
        try:
            self._write()  # before anybody can act on the loss: the others should hear of it
        finally:
            self._report(message)

    def _report(self, message: str | None) -> None:
        with self._changed:
            self._lost = self._lost or message
            self._changed.notify_all()
            lost, on_loss = self._lost, None if self._reported else self._on_loss
        if lost is not None and on_loss is not None:
            self._reported = True
            on_loss(lost)

    def _hindrance(self, sighting: PeerState) -> str:
        """Say why a session with this peer can't begin yet, or return ""."""
        beat, me = sighting.beat, self._beat
        if beat is None or not sighting.alive:
            return "did not appear"
        if beat.address != sighting.address:
            return f"appeared as {beat.address} instead (the tasks' TF_CONFIG differ)"
        members = {name: other.member for name, other in self._sightings.items()}
        members[me.name] = me.incarnation
        if beat.seen.get(me.name, me.incarnation) != me.incarnation:
            return "is there, but did not take this task into its session"
        strangers = [name for name, word in beat.seen.items() if members.get(name, word) != word]
        return f"is there, but did not agree on {', '.join(strangers)}" if strangers else ""

    def _absence(self, timeout: float) -> str:
        reasons = {sighting: self._hindrance(sighting) for sighting in self._sightings.values()}
        missing = [f"{seen.name} ({seen.address}) {reason}" for seen, reason in reasons.items() if reason]
        if not missing:
            return ""
        return (
            f"{'; '.join(missing)} within {timeout:g} s; start what is missing, with the same run directory "
            f"({self._path.parent.parent}), or wait longer"
        )

    def _loss(self, own: Heartbeat | None) -> str | None:
        """Return what is wrong with the session, once this task is in it."""
        if own is not None and own.incarnation != self._beat.incarnation:
            return f"{own.name} runs a second time (pid {own.pid} on {own.host}); this process gives way"
        if self._on_loss is None:
            return None
        members = [self._sightings[name] for name in self._watched if self._sightings[name].member]
        # Whoever has lost a peer itself names the first cause, which others should hear of, too.
        for sighting in sorted(members, key=lambda seen: not (seen.beat and seen.beat.phase == "lost")):
            beat = sighting.beat
            if beat is None or beat.phase == "left":
                continue
            if beat.incarnation != sighting.member:
                return f"{sighting} is another process than before: it was restarted"
            if beat.phase == "lost":
                if beat.message.startswith(f"{self._beat.name} ("):
                    return f"{sighting} has given this task up: {beat.message}"
                return beat.message
            if sighting.gone:
                return f"{sighting} has ended: its process is gone"
            if sighting.still >= self._timeout:
                return f"{sighting} has given no sign of life for {self._timeout:g} s"
        return None

    def _write(self) -> None:
        with self._changed:
            beat = self._beat
        write_beat(self._path, beat)
