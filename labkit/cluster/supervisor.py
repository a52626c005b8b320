"""The processes of a local cluster: start them, read their output, watch and kill them, in one loop.

Each task is a ``labkit.startup.process.Child``: it ends with the launcher, even if that ends by SIGKILL.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster.hosts import PrivateNetwork
from labkit.distributed.heartbeat import PeerState, heartbeat_path
from labkit.distributed.peers import EXIT_LOST_PEER
from labkit.distributed.task import ClusterTask, make_tf_config
from labkit.startup.child import record_reason
from labkit.startup.interruption import STOPPED
from labkit.startup.process import REAP_SECONDS, Child, Lines, signal_name
from labkit.startup.template import Template

DRAIN_SECONDS = 2.0  # for the output of a task that has ended while another process holds its pipes


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
            return (
                f"{self.name} was killed by {signal_name(-self.code if self.code < 0 else self.code - 128)}"
            )
        if self.stopped:
            return f"{self.name} was stopped by {signal_name(self.code - 128)}"
        return f"{self.name} failed (exit code {self.code})" if self.code else f"{self.name} ended"


class _Task:
    """One process of one task."""

    def __init__(self, task: ClusterTask, child: Child, folder: Path) -> None:
        self.peer = PeerState(task.name, task.address, heartbeat_path(folder, task.name))
        self.child = child
        self.was_alive = False
        self.announced = False
        self.killed_because = ""
        self.ended_at: float | None = None
        self.streams = {pipe.fileno(): Lines() for pipe in child.streams}

    def frozen(self, elapsed: float, timeout: float) -> bool:
        """Return whether it has written heartbeats, but none for ``timeout`` seconds."""
        self.peer.refresh("", elapsed, timeout)
        self.was_alive = self.was_alive or self.peer.alive
        heartbeat = self.peer.heartbeat
        ended = heartbeat is None or heartbeat.phase in ("left", "lost")
        return self.was_alive and self.peer.silent_seconds >= timeout and not ended


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
        template: from which the tasks are forked; None: they are started as new programs.
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
        template: Template | None,
    ) -> None:
        self._command, self._folder, self._output, self._template = list(command), folder, output, template
        self._arguments, self._environment, self._hosts = arguments, environment, hosts
        self._stall_timeout, self._interval = stall_timeout, min(1.0, stall_timeout / 5)
        self._selector = selectors.DefaultSelector()
        self._tasks: dict[str, _Task] = {}
        self._last_look = time.monotonic()

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._tasks)

    def say(self, line: str) -> None:
        """Print a line of the launcher itself."""
        self._output(f"[cluster] {line}")

    def start(self, task: ClusterTask) -> None:
        """Start a task. Raises OSError if the system can't create a process."""
        child = Child(
            [*self._command, *self._arguments(task)],
            {**self._environment(task), "TF_CONFIG": make_tf_config(task)},
            stderr=subprocess.PIPE,  # separate, so that lines of the two streams don't mix
            namespaces=self._hosts.namespaces(task.name) if self._hosts else (),
            template=self._template,
        )
        started = self._tasks[task.name] = _Task(task, child, self._folder)
        for stream in started.streams:
            self._selector.register(stream, selectors.EVENT_READ, task.name)

    def terminate(self, names: Iterable[str], number: int = signal.SIGTERM) -> None:
        """Send SIGTERM to the process groups of those tasks that run; SIGINT where that is the ``number``."""
        for name in self.running.intersection(names):
            self._tasks[name].child.terminate(number)

    def kill(self, names: Iterable[str], because: str) -> None:
        """Kill tasks and all that they started. ``because``: a verb phrase such as "did not end in time"."""
        for name in self.running.intersection(names):
            task = self._tasks[name]
            if not task.killed_because and task.child.poll() is None:
                task.killed_because = because
                task.child.kill()

    def poll(self, timeout: float) -> list[TaskExit]:
        """Pass on output for up to ``timeout`` seconds; return the tasks that have ended."""
        for key, _ in self._selector.select(timeout):
            self._read(key.data, key.fd)
        self._look()
        return [self._remove(name) for name in list(self._tasks) if self._over(name)]

    def close(self) -> None:
        """Kill all running tasks and wait for their end."""
        self.kill(self.running, "was left over")
        end = time.monotonic() + REAP_SECONDS
        while self._tasks and time.monotonic() < end:
            try:
                self.poll(0.05)
            except Exception:  # such as the closed pipe that may be the reason for this call
                self._output = lambda line: None
        for name in list(self._tasks):
            self._remove(name)
        self._selector.close()

    def _read(self, name: str, stream: int) -> None:
        streams = self._tasks[name].streams
        data = os.read(stream, 1 << 16)
        lines = streams[stream].feed(data) if data else streams[stream].end()
        if not data:
            self._selector.unregister(stream)
            del streams[stream]
        for line in lines:
            self._output(f"[{name}] {line}")

    def _look(self) -> None:
        now = time.monotonic()
        elapsed = now - self._last_look
        if elapsed < self._interval:
            return
        self._last_look = now
        for name, task in self._tasks.items():
            # As in labkit.distributed.peers: a pause of this process counts as two intervals at most.
            if task.frozen(min(elapsed, 2 * self._interval), self._stall_timeout):
                self.kill([name], f"sent no heartbeat for {self._stall_timeout:g} s")
            heartbeat = task.peer.heartbeat
            if task.was_alive and heartbeat and not task.announced:
                task.announced = True
                self._output(f"[{name}] runs as process {heartbeat.pid}")

    def _over(self, name: str) -> bool:
        task = self._tasks[name]
        if task.child.poll() is None:
            return False
        if task.ended_at is None:
            task.ended_at = time.monotonic()
        return not task.streams or time.monotonic() - task.ended_at > DRAIN_SECONDS

    def _remove(self, name: str) -> TaskExit:
        task = self._tasks.pop(name)
        for stream, lines in task.streams.items():
            self._selector.unregister(stream)
            for line in lines.end():
                self._output(f"[{name}] {line}")
        if reason := task.child.reason:
            record_reason(reason)
        task.child.close()
        code = task.child.poll()
        assert code is not None, "close waits for the end"
        return TaskExit(name, code, task.killed_because)
