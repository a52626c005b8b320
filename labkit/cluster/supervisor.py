"""The processes of a local cluster: start them, read their output, watch and kill them, in one loop.

Each task is the child of a small process (``subreaper.py``), which kills the task and everything that the
task started when it is told to, and when the launcher ends, even by SIGKILL.
"""

import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster.hosts import PrivateNetwork
from labkit.cluster.reaped import start_reaped
from labkit.distributed.heartbeat import PeerState, heartbeat_path
from labkit.distributed.peers import EXIT_LOST_PEER
from labkit.distributed.task import ClusterTask, make_tf_config
from labkit.startup.interruption import ANNOUNCEMENTS, STOPPED, restore_handlers, take_requests

__all__ = ["Lines", "Supervisor", "TaskExit", "stop_signals"]

LONGEST_LINE = 1 << 16  # bytes of an unfinished line that are buffered
DRAIN_SECONDS = 2.0  # for the output of a task that has ended while another process holds its pipes
REAP_SECONDS = 15.0  # for the subreapers to kill their tasks; more than subreaper.KILL_SECONDS


@dataclass(frozen=True)
class TaskExit:
    """How a task ended: ``code`` is its exit code, or minus the signal that killed it.

    ``killed_because``: why the launcher killed it, or "".
    """

    name: str
    code: int
    killed_because: str = ""

    @property
    def stopped(self) -> bool:
        """Return whether it ended on request, after a checkpoint."""
        return self.code in STOPPED

    @property
    def lost(self) -> bool:
        """Return whether it was killed, or ended because it lost a peer: a restart may help."""
        by_signal = self.code < 0 or (self.code > 128 and not self.stopped)  # a shell returns 137 for SIGKILL
        return by_signal or self.code == EXIT_LOST_PEER

    @property
    def failed(self) -> bool:
        """Return whether it failed in a way that a restart would repeat."""
        return self.code != 0 and not self.stopped and not self.lost

    def __str__(self) -> str:
        if self.killed_because:
            return f"{self.name} {self.killed_because} and was killed"
        if self.code == EXIT_LOST_PEER:
            return f"{self.name} lost a peer (exit code {self.code})"
        if self.lost:
            number = -self.code if self.code < 0 else self.code - 128
            known = number in set(signal.Signals)
            return f"{self.name} was killed by {signal.Signals(number).name if known else f'signal {number}'}"
        if self.stopped:
            return f"{self.name} was stopped by {signal.Signals(self.code - 128).name}"
        return f"{self.name} failed (exit code {self.code})" if self.code else f"{self.name} ended"


class Lines:
    """Splits bytes into lines. Of a line that was redrawn (``\\r``) only the last state is kept."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Add bytes; return the lines that are now complete."""
        *whole, rest = (self._rest + data).split(b"\n")
        *earlier, current = rest.rsplit(b"\r", 1)
        self._rest = b"".join(_last_state(state) + b"\r" for state in earlier) + current
        if len(self._rest) > LONGEST_LINE:
            whole.append(self._rest)
            self._rest = b""
        return [_last_state(line).decode(errors="replace") for line in whole]

    def end(self) -> list[str]:
        """Return the last, unfinished line at the end of the stream."""
        return self.feed(b"\n") if self._rest else []


def _last_state(line: bytes) -> bytes:
    return next((state for state in reversed(line.split(b"\r")) if state.strip()), b"")


class _Process:
    """One process of one task."""

    def __init__(
        self,
        task: ClusterTask,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        prefix: Sequence[str],
    ):
        self.peer = PeerState(task.name, task.address, heartbeat_path(folder, task.name))
        self.was_alive = False
        self.announced = False
        self.killed_because = ""
        self.ended_at: float | None = None
        self.popen, self._control = start_reaped(
            command,
            {**environment, "TF_CONFIG": make_tf_config(task)},
            stderr=subprocess.PIPE,  # separate, so that lines of the two streams don't mix
            prefix=prefix,
        )
        pipes = [pipe for pipe in (self.popen.stdout, self.popen.stderr) if pipe is not None]
        self.streams = {pipe.fileno(): Lines() for pipe in pipes}

    def control(self, command: bytes) -> None:
        """Send ``T`` (terminate) or ``K`` (kill) to the subreaper."""
        with suppress(OSError):  # it has ended
            os.write(self._control, command)

    def frozen(self, elapsed: float, timeout: float) -> bool:
        """Return whether it has written heartbeats, but none for ``timeout`` seconds."""
        self.peer.refresh("", elapsed, timeout)
        self.was_alive = self.was_alive or self.peer.alive
        heartbeat = self.peer.heartbeat
        ended = heartbeat is None or heartbeat.phase in ("left", "lost")
        return self.was_alive and self.peer.silent_seconds >= timeout and not ended

    def close(self) -> None:
        os.close(self._control)
        for stream in (self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()


class Supervisor:
    """Runs tasks, and passes their output on line by line with the task's name in front.

    Args:
        command: what every task runs.
        arguments: for a task, additions to the command.
        environment: for a task, additions to this process's environment besides TF_CONFIG.
        hosts: of the tasks; None: this machine.
        folder: of the tasks' heartbeats.
        output: takes one line without its line break.
        stall_timeout: seconds without a heartbeat after which a task counts as frozen and is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        arguments: Callable[[ClusterTask], Sequence[str]],
        environment: Callable[[ClusterTask], Mapping[str, str]],
        hosts: PrivateNetwork | None,
        folder: Path,
        output: Callable[[str], None],
        stall_timeout: float,
    ) -> None:
        self._command, self._folder, self._output = list(command), folder, output
        self._arguments, self._environment, self._hosts = arguments, environment, hosts
        self._stall_timeout, self._interval = stall_timeout, min(1.0, stall_timeout / 5)
        self._selector = selectors.DefaultSelector()
        self._processes: dict[str, _Process] = {}
        self._last_look = time.monotonic()

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._processes)

    def say(self, line: str) -> None:
        """Print a line of the launcher itself."""
        self._output(f"[cluster] {line}")

    def start(self, task: ClusterTask) -> None:
        """Start a task. Raises OSError if the system can't create a process."""
        command = [*self._command, *self._arguments(task)]
        environment = {**os.environ, **self._environment(task)}
        prefix = self._hosts.entering(task.name) if self._hosts else []
        process = _Process(task, command, environment, self._folder, prefix)
        self._processes[task.name] = process
        for stream in process.streams:
            self._selector.register(stream, selectors.EVENT_READ, task.name)

    def terminate(self, names: Iterable[str]) -> None:
        """Send SIGTERM to the process groups of those tasks that run."""
        for name in self.running.intersection(names):
            self._processes[name].control(b"T")

    def kill(self, names: Iterable[str], because: str) -> None:
        """Kill tasks and all that they started. ``because``: a verb phrase such as "did not end in time"."""
        for name in self.running.intersection(names):
            process = self._processes[name]
            if not process.killed_because and process.popen.poll() is None:
                process.killed_because = because
                process.control(b"K")
                process.popen.send_signal(signal.SIGCONT)  # in case the subreaper is stopped, too

    def poll(self, timeout: float) -> list[TaskExit]:
        """Pass on output for up to ``timeout`` seconds; return the tasks that have ended."""
        for key, _ in self._selector.select(timeout):
            self._read(key.data, key.fd)
        self._look()
        return [self._remove(name) for name in list(self._processes) if self._over(name)]

    def close(self) -> None:
        """Kill all running tasks and wait for their end."""
        self.kill(self.running, "was left over")
        end = time.monotonic() + REAP_SECONDS
        while self._processes and time.monotonic() < end:
            try:
                self.poll(0.05)
            except Exception:  # such as the closed pipe that may be the reason for this call
                self._output = lambda line: None
        for name in list(self._processes):  # its subreaper hangs; the kernel kills the task with it
            self._processes[name].popen.kill()
            self._processes[name].popen.wait()
            self._remove(name)
        self._selector.close()

    def _read(self, name: str, stream: int) -> None:
        process = self._processes[name]
        data = os.read(stream, 1 << 16)
        lines = process.streams[stream].feed(data) if data else process.streams[stream].end()
        if not data:
            self._selector.unregister(stream)
            del process.streams[stream]
        for line in lines:
            self._output(f"[{name}] {line}")

    def _look(self) -> None:
        now = time.monotonic()
        elapsed = now - self._last_look
        if elapsed < self._interval:
            return
        self._last_look = now
        for name, process in self._processes.items():
            # As in labkit.distributed.peers: a pause of this process counts as two intervals at most.
            if process.frozen(min(elapsed, 2 * self._interval), self._stall_timeout):
                self.kill([name], f"sent no heartbeat for {self._stall_timeout:g} s")
            heartbeat = process.peer.heartbeat
            if process.was_alive and heartbeat and not process.announced:
                process.announced = True
                self._output(f"[{name}] runs as process {heartbeat.pid}")

    def _over(self, name: str) -> bool:
        process = self._processes[name]
        if process.popen.poll() is None:
            return False
        if process.ended_at is None:
            process.ended_at = time.monotonic()
        return not process.streams or time.monotonic() - process.ended_at > DRAIN_SECONDS

    def _remove(self, name: str) -> TaskExit:
        process = self._processes.pop(name)
        for stream, lines in process.streams.items():
            self._selector.unregister(stream)
            for line in lines.end():
                self._output(f"[{name}] {line}")
        process.close()
        return TaskExit(name, process.popen.returncode, process.killed_because)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect the signals in ``labkit.startup.interruption.REQUESTS`` in a list in place of acting on them.

    Signals within a second count as one request, because a closing terminal and its shell both send SIGHUP.
    What batch systems send counts once, however often they do. Outside of the main thread the list stays
    empty.
    """
    received: list[int] = []
    last = -math.inf

    def note(number: int, frame: object) -> None:
        nonlocal last
        if time.monotonic() - last > 1.0 and not (received and number in ANNOUNCEMENTS):
            received.append(number)
            last = time.monotonic()

    before = take_requests(note)
    try:
        yield received
    finally:
        restore_handlers(before)
