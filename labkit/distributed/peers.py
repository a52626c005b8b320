"""Heartbeats between the tasks of a cluster, through one small file per task in ``<run>/cluster/``.

A thread of every task writes the task's own file and reads those of the peers it depends on. All tasks share
the run directory anyway, so this needs no further port, server or firewall rule. Standard library only.

Clocks of different hosts are never compared: a peer is alive as long as its counter increases, measured with
the reader's own monotonic clock. An *incarnation* is one process of a task. Under Kubernetes a pod may
restart while the other tasks are still in the old session, and must not join a session that does not know
it. A rendezvous therefore ends only when all tasks name the same incarnations.
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
from typing import Any, NoReturn

from labkit.distributed.heartbeat import (
    Heartbeat,
    PeerState,
    heartbeat_path,
    process_space,
    read_heartbeat,
    write_heartbeat,
)

Judge = Callable[[float, Heartbeat, Mapping[str, Heartbeat]], str | None]

EXIT_LOST_PEER = 75  # EX_TEMPFAIL of sysexits.h: a temporary failure, worth another try
JOINING_INTERVAL = 0.1  # seconds between two reads during a rendezvous, so that a session starts quickly


class PeerLost(Exception):
    """A peer did not appear, or was lost. The message names it, its address and what was observed."""


def exit_after_loss(message: str) -> NoReturn:
    """Print that a peer was lost and exit at once with code 75.

    For a process whose main thread waits inside TensorFlow's C++ code, where no exception reaches it.
    """

    def report() -> None:
        print(f"labkit: lost peer: {message}", file=sys.stderr, flush=True)
        sys.stdout.flush()

    # Its reader may not read, or the main thread may hold its lock: wait for the stream for 2 s only.
    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    reporter.join(2.0)
    os._exit(EXIT_LOST_PEER)


class Peers:
    """Writes this task's heartbeat and watches those of its peers.

    Args:
        folder: the ``cluster/`` folder of the run directory, the same for all tasks.
        name: this task, such as ``worker:1``.
        address: ``host:port`` of this task, as the cluster's description has it.
        peers: name → address of the tasks that this one depends on, without itself. In an asynchronous
            cluster a server depends on the chief only.
        interval: seconds between two heartbeats.
        timeout: seconds without a heartbeat after which a peer counts as lost.
        judge: takes the seconds since it was last called, this task's heartbeat and those of the peers in
            the session that haven't ended. Returns why the session can't continue, or None.

    Each interval costs one small read per peer.
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
        judge: Judge = lambda elapsed, own, peers: None,
    ) -> None:
        if name in peers:
            raise ValueError(f"{name} can't be a peer of itself")
        self._path = heartbeat_path(folder, name)
        self._interval, self._timeout, self._judge = interval, timeout, judge
        self._peers = {peer: PeerState(peer, at, heartbeat_path(folder, peer)) for peer, at in peers.items()}
        self._heartbeat = Heartbeat(
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
        self._changed = threading.Condition()  # guards what follows and self._heartbeat
        self._joining = False
        self._settled = not peers
        self._watched: frozenset[str] = frozenset()
        self._on_loss: Callable[[str], None] | None = None
        self._lost: str | None = None
        self._reported = False
        self._ending = threading.Event()
        self._last_error = ""

    def start(self) -> None:
        """Write the first heartbeat and start the thread that writes the others.

        Raises OSError if the folder can't be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write()
        self._thread.start()

    def rendezvous(self, timeout: float, stop: Callable[[], object] | None = None) -> bool:
        """Wait until this task and all its peers agree on the members of the session.

        A peer may restart meanwhile. Files of an earlier session don't count, because their counters stand
        still. A peer that does not list this task only has to be alive. Allow a minute or more on NFS, whose
        clients may take a new file for missing for 30 s.

        Args:
            timeout: seconds to wait.
            stop: called repeatedly; the wait ends when it returns a true value (a signal has arrived).

        Returns True if all agree, False after ``stop``. Raises PeerLost that names all missing peers.
        """
        end = time.monotonic() + timeout
        with self._changed:
            self._joining = not self._settled
            while not self._settled and self._lost is None:
                if stop is not None and stop():
                    return False
                missing = self._missing_peers(timeout) if time.monotonic() >= end else ""
                if missing:
                    raise PeerLost(missing)
                self._changed.wait(JOINING_INTERVAL)
            if self._lost is not None:
                raise PeerLost(self._lost)
        return True

    def watch(self, on_loss: Callable[[str], None], of: Collection[str] | None = None) -> None:
        """From now on call ``on_loss`` with a message, once and in the thread, when a peer is lost.

        A peer is lost if its counter stands still, if its process on this host has ended, if it has lost a
        peer itself, if it was restarted, or if it has dismissed this task. A peer that has left is never
        lost, so a task may leave only when the session no longer needs it.

        Args:
            on_loss: may end the process (``exit_after_loss``).
            of: the peers whose loss counts; None for all. The others may restart, and a rendezvous of theirs
                with this task succeeds at any time.
        """
        with self._changed:
            self._watched = frozenset(self._peers if of is None else of)
            if not self._watched <= self._peers.keys():
                raise ValueError(f"these are not peers: {sorted(self._watched - self._peers.keys())}")
            self._joining, self._settled, self._on_loss = False, True, on_loss

    def lost(self, wait: float = 0.0) -> str | None:
        """Return the message of a loss, or None; wait for a loss up to ``wait`` seconds.

        Waiting is useful after a failed collective, because a broken connection shows up there first.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, wait)
            return self._lost

    def tell(self, **changes: Any) -> None:
        """Set fields of the next ``Heartbeat``; None leaves a field unchanged. Does no I/O."""
        with self._changed:
            if self._heartbeat.phase != "lost":  # the other tasks must hear of the loss
                changes = {name: value for name, value in changes.items() if value is not None}
                self._heartbeat = replace(self._heartbeat, **changes)

    def dismiss(self, name: str, incarnation: str) -> None:
        """Tell a process of a peer, whose step does not end, that it must end itself."""
        with self._changed:
            dismissed = self._heartbeat.dismissed | {name: incarnation}
            self._heartbeat = replace(self._heartbeat, dismissed=dismissed)

    def incarnation_of(self, name: str) -> str:
        """Return the incarnation in the last heartbeat of a peer, or ""."""
        heartbeat = self._peers[name].heartbeat
        return heartbeat.incarnation if heartbeat else ""

    def leave(self) -> None:
        """Write a last heartbeat with phase ``left`` and end the thread. A second call does nothing."""
        self._ending.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(5.0)  # bounded, because the file system may hang

    def heartbeats(self) -> dict[str, Heartbeat]:
        """Return the last heartbeat read from each peer, by name, without peers that never wrote one."""
        return {name: peer.heartbeat for name, peer in self._peers.items() if peer.heartbeat is not None}

    def silent(self) -> list[str]:
        """Return the peers without a heartbeat for ``timeout`` seconds, except those that have left."""
        return [
            name
            for name, peer in self._peers.items()
            if peer.silent_seconds >= self._timeout
            and not (peer.heartbeat and peer.heartbeat.phase == "left")
        ]

    def _run(self) -> None:
        before = time.monotonic()
        while not self._ending.wait(self._pace()):
            now = time.monotonic()
            # After a pause of this process (SIGSTOP, a suspended machine) the peers' files look old, although
            # nobody watched them: a late read counts as two intervals at most.
            self._guarded(self._refresh, min(now - before, 2 * self._interval))
            before = now
        with self._changed:
            self._heartbeat = replace(self._heartbeat, phase="lost" if self._lost else "left")
        self._guarded(self._write)

    def _guarded(self, action: Callable[..., None], *arguments: object) -> None:
        """Run ``action`` and report an error once: this thread must survive all of them."""
        try:
            action(*arguments)
            self._last_error = ""
        except OSError as error:
            if not self._last_error:
                print(f"labkit: the heartbeat can't be written: {error}", file=sys.stderr, flush=True)
            self._last_error = str(error)
        except Exception as error:
            if repr(error) != self._last_error:
                traceback.print_exc()
            self._last_error = repr(error)

    def _pace(self) -> float:
        if self._settled:
            return self._interval
        return min(self._interval, max(JOINING_INTERVAL, 0.01 * len(self._peers)))

    def _refresh(self, elapsed: float) -> None:
        for peer in self._peers.values():
            peer.refresh(self._heartbeat.process_space, elapsed, self._timeout)
        own = read_heartbeat(self._path)
        with self._changed:
            for peer in self._peers.values():
                frozen = self._settled and (self._on_loss is None or peer.name in self._watched)
                if not frozen or not peer.member:
                    peer.member = peer.incarnation
            if self._joining and not any(map(self._obstacle, self._peers.values())):
                self._joining, self._settled = False, True
            message = self._loss(own, elapsed) if self._lost is None else None
            if message is not None:
                self._heartbeat = replace(self._heartbeat, phase="lost", message=message)
            seen = {name: peer.member for name, peer in self._peers.items()}
            self._heartbeat = replace(self._heartbeat, seen=seen, counter=self._heartbeat.counter + 1)
        try:
            self._write()  # before on_loss ends this process: the other tasks should hear of the loss
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

    def _obstacle(self, peer: PeerState) -> str:
        """Return why a session with this peer can't begin yet, or ""."""
        heartbeat, me = peer.heartbeat, self._heartbeat
        if heartbeat is None or not peer.alive:
            return "did not appear"
        if heartbeat.address != peer.address:
            return f"appeared as {heartbeat.address} instead (the tasks' TF_CONFIG differ)"
        members = {name: other.member for name, other in self._peers.items()}
        members[me.name] = me.incarnation
        if heartbeat.seen.get(me.name, me.incarnation) != me.incarnation:
            return "is running, but did not accept this task into its session"
        strangers = [name for name, word in heartbeat.seen.items() if members.get(name, word) != word]
        return f"is running, but did not agree on {', '.join(strangers)}" if strangers else ""

    def _missing_peers(self, timeout: float) -> str:
        reasons = {peer: self._obstacle(peer) for peer in self._peers.values()}
        missing = [f"{peer.name} ({peer.address}) {reason}" for peer, reason in reasons.items() if reason]
        if not missing:
            return ""
        return (
            f"{'; '.join(missing)} within {timeout:g} s; start the missing tasks with the same run directory "
            f"({self._path.parent.parent}), or wait longer"
        )

    def _loss(self, own: Heartbeat | None, elapsed: float) -> str | None:
        """Return the message of a loss, once this task is in a session; None without one."""
        if own is not None and own.incarnation != self._heartbeat.incarnation:
            return f"{own.name} was started a second time (pid {own.pid} on {own.host}); this process ends"
        if self._on_loss is None:
            return None
        members = [self._peers[name] for name in self._watched if self._peers[name].member]
        # A peer that has lost another one names the first cause; report that one.
        for peer in sorted(members, key=lambda peer: not (peer.heartbeat and peer.heartbeat.phase == "lost")):
            heartbeat = peer.heartbeat
            if heartbeat is None or heartbeat.phase == "left":
                continue
            if heartbeat.incarnation != peer.member:
                return f"{peer} was restarted"
            if heartbeat.dismissed.get(self._heartbeat.name) == self._heartbeat.incarnation:
                return f"{peer} took this task for lost: its step did not end"
            if heartbeat.phase == "lost":
                if heartbeat.message.startswith(f"{self._heartbeat.name} ("):
                    return f"{peer} took this task for lost: {heartbeat.message}"
                return heartbeat.message
            if peer.exited:
                return f"{peer} has ended: its process is gone"
            if peer.silent_seconds >= self._timeout:
                return f"{peer} has sent no heartbeat for {self._timeout:g} s"
        there = {peer.name: peer.heartbeat for peer in members if peer.heartbeat}
        running = {name: heartbeat for name, heartbeat in there.items() if heartbeat.phase != "left"}
        return self._judge(elapsed, self._heartbeat, running)

    def _write(self) -> None:
        with self._changed:
            heartbeat = self._heartbeat
        write_heartbeat(self._path, heartbeat)
